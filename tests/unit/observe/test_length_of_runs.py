"""How many batches a run gives, as tqdm asks for it; a TypeError where that is not known."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

import pecan_ray as pecan
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.saved_state import SavedState
from pecan_ray.observe.pace import run_length
from pecan_ray.options import IterOptions

PIPE = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(95)), name="ours")


@pytest.mark.parametrize(
    ("pipe", "epochs", "expected"),
    [
        (PIPE.batch(10), 3, 30),
        (PIPE.batch(10, drop_remainder=True), 2, 18),
        (PIPE.map(lambda i: i, on="i").shuffle(10).batch(10).take(4), 2, 8),
        (PIPE.repeat(2).batch(10), 1, 19),
    ],
)
def test_a_loop_knows_how_many_batches_come(pipe: pecan.PecanPipeline, epochs: int, expected: int) -> None:
    with pipe.iter_batches(epochs=epochs, debug=True) as batches:
        assert len(batches) == expected and batches
        bar = tqdm(batches, file=io.StringIO())
        assert bar.total == expected and sum(1 for _ in bar) == expected
        assert len(batches) == expected


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epochs": None}, "epochs=None has no end"),
        ({"world_size": 2}, "each of several ranks"),
        ({"share": True, "visitation": "zero_or_more"}, "a reader that shares"),
        ({"sharding": "off"}, 'sharding="off"'),
        ({"on_error": "skip"}, 'on_error="skip" may leave'),
        ({"visitation": "zero_or_more"}, 'visitation="zero_or_more" may lose'),
    ],
)
def test_it_is_said_why_a_length_is_not_known(options: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=f"how many batches ours gives is not known before its end: {why}"):
        run_length("ours", PIPE.batch(10).plan, IterOptions(**options), None)


def test_one_of_unknown_length_is_iterated_over_all_the_same() -> None:
    with PIPE.filter(lambda e: e["i"] < 50).batch(10).iter_batches(debug=True) as batches:
        with pytest.raises(TypeError, match="its data would have to be read"):
            len(batches)
        assert batches and len(list(batches)) == 5
    with PIPE.batch(10).iter_batches(debug=True, headspace=7) as batches:
        assert len(batches) == 7 == len(list(batches))


def test_of_a_state_what_is_left_counts() -> None:
    saved = SavedState(ResumePoint(0, ()), 4, 0, "python", ())
    assert run_length("ours", PIPE.batch(10).plan, IterOptions(epochs=2), saved) == 16
