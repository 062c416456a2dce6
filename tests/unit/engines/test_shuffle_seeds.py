"""Shuffles with a seed: equal seeds have equal orders, and an order that is fixed is the same in each pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.plan.moving_choices import why_choices_move

N = 300
Change = Callable[[pecan.PecanPipeline], pecan.PecanPipeline]


def numbers(key: str = "i", split_rows: int = 37, **options: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(**{key: np.arange(N)}, split_rows=split_rows), **options)


def rows(pipe: pecan.PecanPipeline, epoch: int = 0, seed: int = 0, key: str = "i") -> list[int]:
    batches = run_inprocess(pipe.plan, engine=pipe.engine, epoch=epoch, seed=seed)
    return [int(i) for batch in batches for i in np.atleast_1d(batch[key])]


def check_pairs(engine: Any, change: Change, split_rows: int) -> None:
    """Both sides of a zip have the same order, another one in each epoch."""
    one, other = numbers("i", 37, engine=engine), numbers("j", split_rows, engine=engine)
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
    pipe = numbers().shuffle(20, seed=seed, reshuffle=False)
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
        (numbers().shuffle(9).take(3), "take behind shuffle "),
        (numbers().shuffle(9, seed=1).batch(2).map(lambda row: row).skip(3), "skip behind shuffle "),
        (numbers().shuffle(9).concat(numbers()).take(3), "take behind shuffle "),
        (numbers().take(3).zip(numbers("j").shuffle(9).skip(3)).batch(2), "skip behind shuffle "),
        (numbers().shuffle(9, reshuffle=False).take(3), ""),
        (numbers().shuffle(9).batch(3), ""),
        (numbers().take(3).shuffle(9), ""),
        (numbers().shuffle(9).repeat().batch(2).take(3), ""),
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
