"""`split`: disjoint parts of a pipeline that are the same in each pass, with any engine and any workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import Subset
from pecan_ray.plan.shape import plan_shape
from pecan_ray.sampling.subsets import BLOCK, is_member

N = 1000


def numbers(split_rows: int = 50, rows: int = N, **options: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(rows), split_rows=split_rows), **options)


def values(pipe: pecan.PecanPipeline, epoch: int = 0) -> list[int]:
    return [int(i) for one in run_in_process(pipe.plan, epoch=epoch) for i in np.atleast_1d(one["i"])]


def test_parts_are_disjoint_have_all_elements_and_their_shares() -> None:
    for shares, off in (([0.5, 0.2, 0.3], 0), ([1 / 3, 1 / 3, 1 / 3], 5), ([0.01, 0.99], 8)):
        parts = [values(part) for part in pecan.split(numbers(), shares, seed=42)]
        assert sorted(i for part in parts for i in part) == list(range(N))
        assert all(abs(len(part) - N * share) <= off for part, share in zip(parts, shares, strict=True))


def test_of_each_ten_consecutive_elements_of_a_split_one_is_in_a_part_of_a_tenth_for_ever() -> None:
    """Another one would put elements that a model has been trained on among those that it is validated on."""
    held_out = set(values(pecan.split(numbers(), [0.9, 0.1], seed=1)[1]))
    counts = [len(held_out & set(range(first, first + BLOCK))) for first in range(0, N, BLOCK)]
    assert counts == [1] * (N // BLOCK)
    assert len({i % BLOCK for i in held_out}) == BLOCK, "which one it is, is random"
    op = Subset(name="subset", low=0.9, high=1.0, seed=42)
    assert [number for number in range(100) if is_member(op, 0, number)] == [7, 12, 22, 36, 42, 52, 63, 73, 88, 94]
    of_another = [number for number in range(1000, 1100) if is_member(op, 7, number)]
    assert of_another == [1008, 1012, 1021, 1033, 1044, 1055, 1064, 1079, 1089, 1098]


def test_parts_are_the_same_in_each_pass_and_others_with_another_seed() -> None:
    train, held_out = pecan.split(numbers(), [0.6, 0.4], seed=3)
    assert values(held_out) == values(held_out, epoch=5)
    shuffled = values(train.shuffle(100).batch(8), epoch=1)
    assert shuffled != sorted(shuffled) and not set(shuffled) & set(values(held_out))
    assert set(values(pecan.split(numbers(), [0.6, 0.4], seed=4)[1])) != set(values(held_out))
    assert values(pecan.split(numbers(seed=3), [0.6, 0.4])[1]) == values(held_out), "the pipeline's seed, without one"
    found = [train, *pecan.split(held_out, [0.5, 0.5], seed=3)]
    assert sorted(i for part in found for i in values(part)) == list(range(N)), "split again, with the same seed"
    assert [len(values(part)) for part in found] == [len(part) for part in found] and 150 <= len(found[1]) <= 250
    assert len(train.shuffle(10).batch(8)) == len(list(run_in_process(train.batch(8).plan)))
    assert len(held_out.repeat(2)) == 2 * len(values(held_out))


def test_all_that_is_made_of_an_element_goes_to_its_part_with_the_random_numbers_that_it_has_anyway() -> None:
    def three(row: dict[str, Any], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        for _ in range(3):
            yield {"i": row["i"], "x": rng.random()}

    def draws(pipe: pecan.PecanPipeline) -> list[tuple[int, float]]:
        return [(int(row["i"]), float(row["x"])) for row in run_in_process(pipe.plan)]

    whole = numbers(rows=100).flat_map(three)
    parts = [draws(part) for part in pecan.split(whole, [0.5, 0.5], seed=1)]
    assert sorted(parts[0] + parts[1]) == sorted(draws(whole))
    assert not {i for i, _ in parts[0]} & {i for i, _ in parts[1]}


def test_elements_of_other_parts_are_left_out_before_functions_run_and_nothing_moves_across() -> None:
    seen: list[int] = []

    def look(i: Any) -> Any:
        seen.append(int(i))
        return i

    part = pecan.split(numbers(rows=100).map(look, on="i"), [0.9, 0.1], seed=1)[1]
    assert values(part) == seen and len(seen) == 10
    op = part.plan.ops[0]
    assert isinstance(op, Subset) and op.keep_position and not plan_shape(part.plan).serial


def test_what_cannot_be_split_is_refused() -> None:
    refused: list[tuple[pecan.PecanPipeline, Any, str]] = [
        (numbers().shuffle(9), [0.5, 0.5], "behind shuffle"),
        (numbers().take(9), [0.5, 0.5], "behind take"),
        (numbers(), [0.5, 0.4], "add up to 0.9"),
        (numbers(), [1.5, -0.5], "must be positive"),
        (numbers(), 0.5, "shares"),
    ]
    for pipe, shares, said in refused:
        with pytest.raises(PlanError, match=said):
            pecan.split(pipe, shares, seed=1)
    with pytest.raises(PlanError, match="seed"):
        pecan.split(numbers(), [1.0], seed=-1)
