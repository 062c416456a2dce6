"""A plan that begins behind its first outputs: the rest is the same, and what lies before is not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import Leases
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.plan.behind import counts_its_elements, first_missing, plan_behind
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Lease, Split
from tests.unit.engines.engine_leases import ListedLeases, OwnSource, running, whole_leases

LENGTHS = (5, 0, 7, 1, 12, 3, 3, 9)


@dataclass(frozen=True)
class Lengths(OwnSource):
    """Numbers in splits of uneven lengths, that notes which of them are read."""

    column: str = "i"
    known: bool = True
    read_at: list[tuple[int, int]] = field(default_factory=list, compare=False)
    """(split, element) of every element that was read."""

    def splits(self) -> Iterator[Split]:
        for index, length in enumerate(LENGTHS):
            yield Split(index, elements=length if self.known else None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        first = sum(LENGTHS[: split.index])
        for element in range(start, LENGTHS[split.index]):
            self.read_at.append((split.index, element))
            yield {self.column: first + element}


def drawn(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**row, "drawn": int(rng.integers(1 << 30))}


def of(source: Lengths) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(source, name="behind")


PLANS: dict[str, Callable[[Lengths, Lengths], pecan.PecanPipeline]] = {
    "take": lambda a, b: of(a).map(drawn).take(23).batch(4),
    "skip": lambda a, b: of(a).skip(6).map(drawn).batch(4),
    "skip, take and skip": lambda a, b: of(a).skip(3).take(30).skip(4).map(drawn).prefetch(2),
    "batches that are taken": lambda a, b: of(a).map(drawn).batch(3).take(5).map(lambda x: x),
    "zip": lambda a, b: of(a).skip(2).map(drawn).zip(of(b).take(31)).batch(4),
    "a zip of batches": lambda a, b: of(a).batch(2).zip(of(b).batch(2).skip(1)).map(lambda x: x).batch(2),
    "a remainder that is dropped": lambda a, b: of(a).take(22).map(drawn).batch(4, drop_remainder=True),
}


def outputs_of(plan: Plan, leases: Leases) -> list[Any]:
    """What a plan makes of leases, in words that can be compared."""
    with running(plan, leases, seed=7, threads=2, order="strict") as (_, batches):
        produced = [(one.rows, one.columns) for one in batches if one.rows]
    return [(rows, {name: np.asarray(c).tolist() for name, c in columns.items()}) for rows, columns in produced]


def all_leases(plan: Plan) -> ListedLeases:
    return ListedLeases(whole_leases(tuple(plan.sources())))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("plan", PLANS)
def test_the_rest_of_a_plan_is_what_comes_behind_its_first_outputs_wherever_it_begins(plan: str, known: bool) -> None:
    of_all = PLANS[plan](Lengths(), Lengths("j")).plan
    whole = outputs_of(of_all, all_leases(of_all))
    assert len(whole) > 4
    for outputs in range(1, len(whole) + 1):
        sources = Lengths(known=known), Lengths("j", known=known)
        pipe = PLANS[plan](*sources)
        left = plan_behind(pipe.plan, outputs)
        assert left is not None and plan_shape(pipe.plan).counts and plan_shape(left.plan).serial
        behind = LeasesBehind(all_leases(pipe.plan), sources, left.elements)
        assert outputs_of(left.plan, behind) == whole[outputs:]
        if known:
            for source, before in zip(sources, left.elements, strict=False):
                first = [sum(LENGTHS[:split]) + element for split, element in source.read_at]
                assert min(first, default=before) >= before, "an element was read that lies before"
                assert sorted(set(source.read_at)) == sorted(source.read_at), "an element was read twice"


def test_splits_of_unknown_length_are_read_once_to_be_counted_and_told() -> None:
    source = Lengths(known=False)
    leases = ListedLeases(whole_leases((source,)))
    behind = LeasesBehind(leases, (source,), (13,))
    lease = behind.take()
    assert lease is not None and (lease.split.index, lease.spans[0][0] >> 32) == (4, 0)
    assert leases.lengths == {(0, 0, index): LENGTHS[index] for index in range(4)}
    assert len(source.read_at) == 13


def test_a_lease_that_is_not_read_is_taken_as_such() -> None:
    source = Lengths()
    leases, unread = ListedLeases(whole_leases((source,))), list[Lease]()

    def take(branch: int) -> Lease | None:
        lease = leases.take(branch)
        unread.extend([lease] if lease is not None else [])
        return lease

    behind = LeasesBehind(leases, (source,), (14,), take_unread=take)
    first = behind.take()
    assert first is not None and first.split.index == 4 and first.spans[0][0] == 1 << 32
    assert [lease.split.index for lease in unread] == [0, 1, 2, 3, 4]
    assert behind.take() == Lease(0, Split(5, elements=3)) and len(unread) == 5
    assert LeasesBehind(ListedLeases([]), (source,), (14,)).take() is None, "more than there is is passed over"


UNCOUNTED: dict[str, Callable[[pecan.PecanPipeline], pecan.PecanPipeline]] = {
    "filter": lambda pipe: pipe.filter(lambda row: True).take(5),
    "flat_map": lambda pipe: pipe.take(5).flat_map(lambda row: [row]),
    "shuffle": lambda pipe: pipe.take(5).shuffle(3),
    "repeat": lambda pipe: pipe.take(5).repeat(2),
    "unbatch": lambda pipe: pipe.batch(2).take(2).unbatch(),
    "buckets": lambda pipe: pipe.take(9).bucket_by_length([3], sizes=[2, 2], length=lambda row: 1),
    "mix": lambda pipe: pipe.mix(pipe, weights=[1, 1], stop="first"),
    "a filter before a zip": lambda pipe: pipe.zip(of(Lengths("j")).filter(lambda row: True)),
}


@pytest.mark.parametrize("plan", UNCOUNTED)
def test_a_plan_that_does_not_tell_how_many_elements_it_takes_is_run_from_its_beginning(plan: str) -> None:
    pipe = UNCOUNTED[plan](of(Lengths())).batch(2)
    assert plan_behind(pipe.plan, 3) is None and not counts_its_elements(pipe.plan)
    assert not plan_shape(pipe.plan).counts


@pytest.mark.parametrize(
    ("delivered", "missing"), [((0,), 0), ((4,), 4), ((3, 2), 5), ((2, 3), 4), ((2, 2, 2), 6), ((0, 9), 0)]
)
def test_what_no_rank_lacks_ends_before_the_first_output_that_one_lacks(
    delivered: tuple[int, ...], missing: int
) -> None:
    assert first_missing(delivered) == missing
