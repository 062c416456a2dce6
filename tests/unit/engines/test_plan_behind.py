"""Plans that begin behind their first outputs, and plans that make rounds of batches for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import PecanPipeline, sources
from pecan_ray.engines.contract import Leases, Produced
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.errors import PlanError
from pecan_ray.job.saved_state import no_state_of
from pecan_ray.options import IterOptions
from pecan_ray.plan.behind import counts_its_elements, plan_behind
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Lease, Split
from tests.unit.engines.engine_leases import ListedLeases, OwnSource, numbers, run_engine, running, whole_leases

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
    "shuffle": lambda pipe: pipe.take(5).shuffle(3),
    "repeat": lambda pipe: pipe.take(5).repeat(2),
    "mix": lambda pipe: pipe.mix(pipe, weights=[1, 1], stop="first"),
    "a filter before a zip": lambda pipe: pipe.zip(of(Lengths("j")).filter(lambda row: True)),
}


@pytest.mark.parametrize("plan", UNCOUNTED)
def test_a_plan_that_does_not_tell_how_many_elements_it_takes_is_run_from_its_beginning(plan: str) -> None:
    pipe = UNCOUNTED[plan](of(Lengths())).batch(2)
    assert plan_behind(pipe.plan, 3) is None and not counts_its_elements(pipe.plan)
    assert not plan_shape(pipe.plan).counts


SIZES = [4, 2, 1]


def of_lengths(*lengths: int, **options: Any) -> PecanPipeline:
    rows = [{"i": number, "x": np.ones(length)} for number, length in enumerate(lengths)]
    pipe = PecanPipeline(sources.Items(rows), name="rounds")
    return pipe.bucket_by_length([10, 20], sizes=SIZES, length="x", **options)


def rows(produced: Produced) -> list[int]:
    return sorted(int(number) for number in produced.columns["i"])


def test_a_round_is_a_batch_for_each_rank_of_one_bucket() -> None:
    lengths = [1 + 7 * number % 29 for number in range(200)]
    produced = run_engine(of_lengths(*lengths), ranks=3)
    full = [one for one in produced if not one.partial]
    assert [one.rank for one in full] == [0, 1, 2] * (len(full) // 3) and len(full) > 30
    for first in range(0, len(full), 3):
        numbers = [number for one in full[first : first + 3] for number in rows(one)]
        buckets = {np.searchsorted([10, 20], lengths[number], "right") for number in numbers}
        assert len(buckets) == 1 and len(numbers) == 3 * SIZES[buckets.pop()]
    mapped = of_lengths(*[5] * 8).map(lambda batch: {**batch, "n": np.full(4, batch["x"].shape[1])})
    assert [(one.rank, one.columns["n"][0]) for one in run_engine(mapped, ranks=2)] == [(0, 5), (1, 5)]


def test_what_fills_no_round_comes_last_as_smaller_batches_for_all_ranks_or_is_dropped() -> None:
    produced = run_engine(of_lengths(5, 6, 7, 12, 25), ranks=2)
    wanted = [(0, True, [0, 2]), (1, True, [1]), (0, True, [3]), (1, True, [4])]
    assert [(one.rank, one.partial, rows(one)) for one in produced] == wanted
    assert produced[2].columns["x"].shape == (1, 12) and produced[3].columns["x"].shape == (1, 25)
    (rest,) = run_engine(of_lengths(5, 25), ranks=3)
    assert (rest.rank, rest.partial, rest.rows) == (None, True, 2), "fewer than the ranks are in no round"
    dropped = run_engine(of_lengths(*[5] * 11, 12, drop_remainder=True), ranks=2)
    assert [(one.rank, one.rows) for one in dropped] == [(0, 4), (1, 4), (None, 3), (None, 1)]


def bucketed(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.bucket_by_length([5], sizes=[2, 2], length=lambda row: int(row["i"]))


@pytest.mark.parametrize(
    ("pipe", "options", "said"),
    [
        (lambda: numbers(10).batch(2), {}, r"ends with batch: let it end with bucket_by_length"),
        (lambda: numbers(10), {}, r"makes no batches: let it end with bucket_by_length"),
        (lambda: bucketed(numbers(10).take(5)), {}, r"run by one worker as a whole \(take"),
        (lambda: bucketed(numbers(10)).filter(lambda batch: True, name="some"), {}, r"some: behind bucket_by_length"),
        (lambda: bucketed(numbers(10)).map(dict, name="moved"), {"on_error": "skip"}, r"moved: with on_error='skip'"),
        (lambda: bucketed(numbers(10, engine="tensorflow")), {}, 'use engine="python"'),
        (lambda: bucketed(numbers(10)), {"order": "strict"}, r"does not go with order='strict'"),
        (lambda: bucketed(numbers(10)), {"sharding": "off"}, r"does not go with sharding='off'"),
        (lambda: bucketed(numbers(10)), {"visitation": "zero_or_more"}, r"does not go with visitation='zero_or_more'"),
        (lambda: bucketed(numbers(10)), {"share": True, "world_size": 1, "max_lag": 3}, r"does not go with share=True"),
        (lambda: bucketed(numbers(10)), {"coordinated": 1}, r"coordinated must be True or False"),
    ],
)
def test_what_has_no_rounds_is_refused_when_the_job_is_begun(
    pipe: Callable[[], PecanPipeline], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        pipe().iter_batches(**{"rank": 0, "world_size": 2, "coordinated": True, **options})


def test_a_coordinated_job_has_a_state_unless_data_may_be_lost() -> None:
    options = IterOptions(rank=1, world_size=2, coordinated=True)
    assert no_state_of(options) == ""
    assert "lets data be lost" in no_state_of(replace(options, visitation="at_most_once"))
