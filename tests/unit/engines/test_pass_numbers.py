"""Passes: their numbers, and shuffles with a seed. In each way to iterate: tests/parity."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import pass_numbers
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import OpError, PlanError
from pecan_ray.pass_numbers import PassCounts, warn_if_epochs_restart
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.pass_dependent_choices import why_choices_move
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import numbers

ROWS, BATCH, PASSES = 12, 4, 3
Draws = list[list[float]]
"""Of each pass, the random number of each row, in the order in which they came."""


def draw(i: Any, rng: np.random.Generator) -> Any:
    return np.float32(rng.random())


def noisy() -> PecanPipeline:
    return PecanPipeline(Arrays(x=np.arange(ROWS)), name="noisy").map(draw, on="x").shuffle(ROWS).batch(BATCH)


def of_passes(pipe: PecanPipeline, *numbers: int) -> Draws:
    return [floats(run_inprocess(pipe.plan, epoch=number)) for number in numbers]


def floats(batches: Any) -> list[float]:
    return [float(x) for batch in batches for x in batch["x"]]


def test_a_pass_that_is_said_is_that_one_and_the_next_one_has_not_been_before() -> None:
    pipe = noisy()
    said = [None, None, 0, None, 7, None]
    found = [floats(pipe.iter_batches(first_epoch=first, debug=True)) for first in said]
    assert found == of_passes(pipe, 0, 1, 0, 2, 7, 8)
    assert floats(pipe.to_torch(first_epoch=3, debug=True)) == of_passes(pipe, 3)[0]
    with pytest.raises(PlanError, match="first_epoch needs a whole number"):
        pipe.iter_batches(first_epoch=-1)


def test_pipelines_with_other_operators_count_apart_and_one_that_is_derived_again_goes_on() -> None:
    base = PecanPipeline(Arrays(x=np.arange(ROWS))).map(draw, on="x")
    first = of_passes(base.batch(3), 0)
    assert [floats(base.batch(size).iter_batches(debug=True)) for size in (3, 4)] == first * 2
    again = [base.map(lambda x: x, on="x", name="same").batch(4) for _ in range(PASSES)]
    assert [floats(one.iter_batches(debug=True)) for one in again] == of_passes(again[0], *range(PASSES))


def test_a_look_at_single_batches_or_at_speed_and_a_refused_call_are_no_pass_but_one_that_fails_is() -> None:
    pipe = noisy()
    pipe.peek()
    assert next(pipe.iter_batches(headspace=2))["x"].tolist() == of_passes(pipe, 0)[0][:BATCH]
    for refused in ({"share": True, "world_size": 2, "rank": 0}, {"debug": True, "state": {}}):
        with pytest.raises(PlanError):
            pipe.iter_batches(**refused)
    assert floats(pipe.iter_batches(debug=True)) == of_passes(pipe, 0)[0]

    def at_three(i: Any, rng: np.random.Generator) -> Any:
        if i == 3:
            raise ValueError
        return rng.random()

    failing = PecanPipeline(Arrays(x=np.arange(4))).map(at_three, on="x")
    for number in range(2):
        batches = failing.iter_batches(debug=True)
        assert next(batches) == next(run_inprocess(failing.plan, epoch=number))
        with pytest.raises((ValueError, OpError)):
            list(batches)


PARTS, PLACE = (("operator map", "0123"),), (0, 1)


def test_ranks_agree_also_in_one_process_and_where_one_has_looked_alone() -> None:
    counts = PassCounts()
    assert counts.begin(PARTS, PLACE).first_epoch == 0
    for number in range(2):
        assert [counts.begin(PARTS, (rank, 2)).first_epoch for rank in range(2)] == [number] * 2


def test_a_state_sets_the_count_to_where_it_was_taken_and_a_run_that_could_not_begin_leaves_its_number() -> None:
    counts = PassCounts()
    counts.begin(PARTS, PLACE, 9)
    assert counts.resume(PARTS, PLACE, 3, first_epoch=2, ended=False).first_epoch == 2
    assert counts.begin(PARTS, PLACE).first_epoch == 4
    assert counts.resume(PARTS, PLACE, 5, first_epoch=4, ended=True).first_epoch == 4
    resumed = counts.resume(PARTS, PLACE, 5, first_epoch=0, ended=False)
    resumed.reach(7)
    with pytest.raises(KeyboardInterrupt), counts.begin(PARTS, PLACE):
        raise KeyboardInterrupt
    assert counts.begin(PARTS, PLACE).first_epoch == 8


def test_a_pipeline_that_is_made_again_for_each_epoch_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_numbers, "_newest", {})
    monkeypatch.setattr(pass_numbers, "_reminded", set())
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        for epoch in range(4):
            warn_if_epochs_restart("rows", PARTS, PassCounts(), begins_anew=epoch != 1)
            assert len(caplog.messages) == (epoch > 1)
        kept = PassCounts()
        warn_if_epochs_restart("two", PARTS, kept, begins_anew=True)
        warn_if_epochs_restart("two", PARTS, PassCounts(), begins_anew=True)
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("rows: this pipeline was made again")


N = 300
Change = Callable[[pecan.PecanPipeline], pecan.PecanPipeline]


def rows(pipe: pecan.PecanPipeline, epoch: int = 0, seed: int = 0, key: str = "i") -> list[int]:
    batches = run_inprocess(pipe.plan, engine=pipe.engine, epoch=epoch, seed=seed)
    return [int(i) for batch in batches for i in np.atleast_1d(batch[key])]


def check_pairs(engine: Any, change: Change, split_rows: int) -> None:
    """Both sides of a zip have the same order, another one in each epoch."""
    one, other = numbers(N, 37), numbers(N, split_rows, "j")
    pipe = change(one).zip(change(other.map(lambda row: row, name="copy"))).batch(50)
    orders = []
    for epoch in range(2):
        batches = list(run_inprocess(pipe.plan, engine=engine, epoch=epoch))
        orders.append([int(i) for batch in batches for i in batch["i"]])
        assert orders[-1] == [int(j) for batch in batches for j in batch["j"]]
        assert len(orders[-1]) >= 100
    assert orders[0] != orders[1]


CHANGES: dict[str, Change] = {
    "the whole set": lambda p: p.shuffle(N, seed=1),
    "a small buffer": lambda p: p.shuffle(20, seed=1),
    "maps behind": lambda p: p.shuffle(20, seed=1).map(lambda row: row).map(lambda row: row),
    "two in a row": lambda p: p.shuffle(20, seed=1).map(lambda row: row).shuffle(9, seed=2),
    "taken": lambda p: p.shuffle(20, seed=1).take(100),
    "concatenated": lambda p: p.concat(p).shuffle(50, seed=3),
}


@pytest.mark.parametrize("split_rows", [1, N])
@pytest.mark.parametrize("change", CHANGES)
def test_pairs_stay_pairs_in_however_many_splits_each_side_has(change: str, split_rows: int) -> None:
    check_pairs("python", CHANGES[change], split_rows)


@pytest.mark.parametrize("seed", [None, 4])
def test_a_fixed_order_is_that_of_all_passes_and_can_be_divided(seed: int | None) -> None:
    pipe = numbers(N).shuffle(20, seed=seed, reshuffle=False)
    first = rows(pipe.batch(8))
    assert sorted(first) == list(range(N)) != first
    assert rows(pipe, seed=1) != first or seed is not None, "the pipeline's seed serves where there is no other"
    held_out = rows(pipe.take(30))
    for epoch in (1, 7):
        assert rows(pipe.batch(8), epoch) == first
        assert rows(pipe.take(30), epoch) == held_out
        assert sorted([*held_out, *rows(pipe.skip(30), epoch)]) == list(range(N))


@pytest.mark.parametrize(
    ("pipe", "found"),
    [
        (numbers(N).shuffle(9).take(3), "take behind shuffle "),
        (numbers(N).shuffle(9, seed=1).batch(2).map(lambda row: row).skip(3), "skip behind shuffle "),
        (numbers(N).shuffle(9).concat(numbers(N)).take(3), "take behind shuffle "),
        (numbers(N).take(3).zip(numbers(N, column="j").shuffle(9).skip(3)).batch(2), "skip behind shuffle "),
        (numbers(N).shuffle(9, reshuffle=False).take(3), ""),
        (numbers(N).shuffle(9).batch(3), ""),
        (numbers(N).take(3).shuffle(9), ""),
        (numbers(N).shuffle(9).repeat().batch(2).take(3), ""),
    ],
)
def test_what_is_chosen_anew_in_each_pass_is_found(pipe: pecan.PecanPipeline, found: str) -> None:
    assert why_choices_move(pipe.plan).startswith(found) and bool(why_choices_move(pipe.plan)) == bool(found)


def test_peek_lists_no_more_than_it_reads() -> None:
    listed = []

    class Watched(pecan.sources.Arrays):
        def splits(self) -> Any:
            for split in super().splits():
                listed.append(split)
                yield split

    pecan.PecanPipeline(Watched(i=np.arange(N), split_rows=10)).shuffle(5).peek()
    assert len(listed) < 5
