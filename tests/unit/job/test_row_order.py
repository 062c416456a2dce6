"""Which order of rows is in force, and that it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pecan_ray.job.row_order import row_order
from pecan_ray.options import AutoWorkers, IterOptions, Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import plan_shape
from pecan_ray.sources import Arrays, TextLines

ROWS = PecanPipeline(Arrays(x=np.arange(10)), name="rows")
PLAIN, SHUFFLED, FIRSTS = ROWS.batch(4), ROWS.shuffle(5).batch(4), ROWS.shuffle(5).take(3)
FILTERED, LINES = ROWS.filter(bool, on="x"), PecanPipeline(TextLines("x.txt"), name="lines")
WHOLE, PADDED = FILTERED.batch(4).map(dict), FILTERED.padded_batch(4)
ONE, REMOTE = Workers(local=1), Workers(local=0, remote=1)


@pytest.mark.parametrize(
    ("pipe", "options", "kept", "why"),
    [
        (PLAIN, {"workers": REMOTE}, True, "whatever the workers"),
        (PLAIN, {"workers": AutoWorkers()}, True, "whatever the workers"),
        (FILTERED.batch(4).repeat(2), {"workers": AutoWorkers()}, True, "whatever the workers"),
        (FILTERED, {"workers": REMOTE}, True, "whatever the workers"),
        (WHOLE, {"workers": ONE}, True, "no operator shuffles, and one worker makes them"),
        (LINES, {"workers": REMOTE}, True, "no operator shuffles, and one worker makes them"),
        (PLAIN, {"workers": ONE, "sharding": "static"}, True, "no operator shuffles, and one worker makes them"),
        (PLAIN, {"workers": ONE, "order": "relaxed"}, False, 'as order="relaxed" says'),
        (WHOLE, {"workers": Workers(local=2)}, False, "bool leaves elements out, and dict works on whole batches"),
        (PADDED, {"workers": Workers(local=2)}, False, "padded_batch makes batches of rows that are known to one"),
        (ROWS.flat_map(list), {"workers": AutoWorkers()}, False, "behind list elements are not known"),
        (LINES, {"workers": AutoWorkers()}, False, "may make them and TextLines does not tell how many elements"),
        (PLAIN, {"workers": AutoWorkers(), "on_error": "skip"}, False, "on_error='skip' leaves bad elements out"),
        (PLAIN, {"workers": AutoWorkers(), "visitation": "at_most_once"}, False, "'at_most_once' promises less"),
        (PLAIN, {"workers": ONE, "world_size": 2}, False, "several ranks share them"),
        (PLAIN, {"workers": Workers(local=2), "order": "strict"}, True, 'as order="strict" asks for'),
        (SHUFFLED, {"workers": ONE}, False, "the pipeline shuffles, mixes or makes buckets"),
        (PLAIN.mix(PLAIN, weights=[1, 1]), {"workers": ONE}, False, "the pipeline shuffles, mixes or makes buckets"),
        (FIRSTS, {"workers": AutoWorkers()}, True, "one worker runs it"),
    ],
)
def test_the_order_in_force_and_its_reason(pipe: PecanPipeline, options: dict[str, Any], kept: bool, why: str) -> None:
    found = row_order(IterOptions(**options), plan_shape(pipe.plan))
    assert found.kept is kept
    assert why in found.why


def test_scaling_up_is_told() -> None:
    found = row_order(IterOptions(workers=ONE), plan_shape(LINES.plan), workers=2)
    assert "as workers finish them, since scale() has asked for several" in found.why


def test_an_order_that_the_job_has_given_up_is_told() -> None:
    found = row_order(IterOptions(), plan_shape(PLAIN.plan), given_up="a split was longer")
    assert found.kept and "as workers finish them from now on: a split was longer" in found.why


def test_debug_mode_says_its_order() -> None:
    assert PLAIN.iter_batches(debug=True).explain().endswith("order: batches come in one sequence.")
