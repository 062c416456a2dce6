"""Which number the next pass over a pipeline has; in each way to iterate: tests/parity."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import numpy as np
import pytest

from pecan_ray import pass_numbers
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import OpError, PlanError
from pecan_ray.pass_numbers import PassCounts, remind_of_new_count
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

ROWS, BATCH, PASSES = 12, 4, 3
Draws = list[list[float]]
"""Of each pass, the random number of each row, in the order in which they came."""


def draw(i: Any, rng: np.random.Generator) -> Any:
    return np.float32(rng.random())


def noisy() -> PecanPipeline:
    """A pipeline whose values and order tell the pass."""
    return PecanPipeline(Arrays(x=np.arange(ROWS)), name="noisy").map(draw, on="x").shuffle(ROWS).batch(BATCH)


def of_passes(pipe: PecanPipeline, *numbers: int) -> Draws:
    """What the engine makes of passes of these numbers."""
    return [floats(run_inprocess(pipe.plan, epoch=number)) for number in numbers]


def floats(batches: Any) -> list[float]:
    return [float(x) for batch in batches for x in batch["x"]]


def calls(pipe: PecanPipeline) -> Draws:
    return [floats(pipe.iter_batches(debug=True)) for _ in range(PASSES)]


def test_a_pass_that_is_said_is_that_one_and_the_next_one_has_not_been_before() -> None:
    pipe = noisy()
    said = [None, None, 0, None, 7, None]
    found = [floats(pipe.iter_batches(first_epoch=first, debug=True)) for first in said]
    assert found == of_passes(pipe, 0, 1, 0, 2, 7, 8)
    assert floats(pipe.to_torch(first_epoch=3, debug=True)) == of_passes(pipe, 3)[0]
    with pytest.raises(PlanError, match="first_epoch needs a whole number"):
        pipe.iter_batches(first_epoch=-1)


def test_pipelines_with_other_operators_or_another_source_count_apart() -> None:
    pipe = noisy()
    plain = PecanPipeline(Arrays(x=np.arange(ROWS)), name="noisy").map(draw, on="x").batch(BATCH)
    calls(pipe)
    assert floats(plain.iter_batches(debug=True)) == of_passes(plain, 0)[0]
    base = PecanPipeline(Arrays(x=np.arange(ROWS)))
    train, val = base.map(draw, on="x").batch(3), base.map(draw, on="x").batch(4)
    assert [floats(one.iter_batches(debug=True)) for one in (train, val)] == [
        *of_passes(train, 0),
        *of_passes(val, 0),
    ]


def test_a_pipeline_that_is_derived_again_for_each_pass_goes_on() -> None:
    base, found = PecanPipeline(Arrays(x=np.arange(ROWS))).map(draw, on="x"), []
    for _ in range(PASSES):
        again = base.map(lambda x: x, on="x", name="same").batch(BATCH)
        found.append(floats(again.iter_batches(debug=True)))
    assert found == of_passes(again, *range(PASSES))


def test_a_look_at_single_batches_or_at_speed_is_no_pass() -> None:
    pipe = noisy()
    pipe.peek()
    assert next(pipe.iter_batches(headspace=2))["x"].tolist() == of_passes(pipe, 0)[0][:BATCH]
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, 0)[0]


def test_an_unpickled_pipeline_counts_anew() -> None:
    pipe = noisy()
    calls(pipe)
    copy = pickle.loads(pickle.dumps(pipe))
    assert floats(copy.iter_batches(debug=True)) == of_passes(pipe, 0)[0]
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, PASSES)[0]


def test_a_call_that_was_refused_was_no_pass() -> None:
    pipe = noisy()
    with pytest.raises(PlanError):
        pipe.iter_batches(share=True, world_size=2, rank=0)
    with pytest.raises(PlanError):
        pipe.iter_batches(debug=True, state={})
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, 0)[0]


def test_a_pass_that_fails_was_one() -> None:
    def at_three(i: Any, rng: np.random.Generator) -> Any:
        if i == 3:
            raise ValueError
        return rng.random()

    pipe = PecanPipeline(Arrays(x=np.arange(4))).map(at_three, on="x")
    for number in range(2):
        batches = pipe.iter_batches(debug=True)
        assert next(batches) == next(run_inprocess(pipe.plan, epoch=number))
        with pytest.raises((ValueError, OpError)):
            list(batches)


def test_ranks_agree_also_in_one_process_and_where_one_has_looked_alone() -> None:
    counts, parts = PassCounts(), (("operator map", "0123"),)
    assert counts.begin(parts, (0, 1)).first_epoch == 0
    for number in range(2):
        assert [counts.begin(parts, (rank, 2)).first_epoch for rank in range(2)] == [number] * 2


def test_a_run_that_could_not_begin_leaves_its_number_to_the_next_one() -> None:
    counts, parts, place = PassCounts(), (("operator map", "0123"),), (0, 1)
    counts.begin(parts, place, 4)
    with pytest.raises(KeyboardInterrupt), counts.begin(parts, place):
        raise KeyboardInterrupt
    assert counts.begin(parts, place).first_epoch == 5


def test_a_state_sets_the_count_to_where_it_was_taken() -> None:
    counts, parts, place = PassCounts(), (("operator map", "0123"),), (0, 1)
    counts.begin(parts, place, 9)
    assert counts.resume(parts, place, 3, first_epoch=2, ended=False).first_epoch == 2
    assert counts.begin(parts, place).first_epoch == 4
    assert counts.resume(parts, place, 5, first_epoch=4, ended=True).first_epoch == 4
    resumed = counts.resume(parts, place, 5, first_epoch=0, ended=False)
    resumed.reach(7)
    assert counts.begin(parts, place).first_epoch == 8


def test_a_pipeline_that_is_made_again_for_each_epoch_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_numbers, "_newest", {})
    monkeypatch.setattr(pass_numbers, "_reminded", set())
    parts = (("operator map", "0123"),)
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        for epoch in range(4):
            remind_of_new_count("rows", parts, PassCounts(), begins_anew=epoch != 1)
            assert len(caplog.messages) == (epoch > 1)
        kept = PassCounts()
        remind_of_new_count("two", parts, kept, begins_anew=True)
        remind_of_new_count("two", parts, PassCounts(), begins_anew=True)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("rows: this pipeline was made again")
