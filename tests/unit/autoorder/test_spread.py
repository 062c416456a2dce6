"""Where a sample is drawn from, and how long it may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order import TOO_SHORT, order_plan
from pecan_ray.autoorder.order_request import LEAST_RUNS, JobSize, OrderRequest, job_size, num_elements, runs_allowed
from pecan_ray.autoorder.sample import sample_stretch
from pecan_ray.autoorder.spread import Bounded, SpreadLeases, Wanted, evenly, sample_leases
from pecan_ray.options import AutoWorkers, Config, IterOptions, Workers
from pecan_ray.plan.splits import Element, Lease, Split
from pecan_ray.plan.stretches import stretches
from pecan_ray.sources.listing import LISTING_S, MOST_LISTED, FirstSplits, list_splits


class Files:
    """A source of files with some elements each, which counts those that were opened."""

    def __init__(self, sizes: list[int], *, known: bool = False) -> None:
        self.sizes, self.known = sizes, known
        self.opened: list[int] = []

    def splits(self) -> Iterator[Split]:
        """Yield one split per file."""
        for index, size in enumerate(self.sizes):
            yield Split(index, path=f"{index}.bin", elements=size if self.known else None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers of a file."""
        self.opened.append(split.index)
        for number in range(start, self.sizes[split.index]):
            yield {"file": np.int64(split.index), "n": np.int64(number)}

    def num_elements(self) -> int | None:
        """Return the number of elements, where it is known."""
        return sum(self.sizes) if self.known else None

    def identity(self) -> str:
        """Return a constant: nothing is on disk."""
        return "files"


def same(element: Element) -> Element:
    return element


def sampled(pipe: pecan.PecanPipeline, elements: int = 64, *, spread: bool = True) -> list[tuple[int, int]]:
    """The elements of a sample: (file, number)."""
    (stretch,) = stretches(pipe.plan)
    found = sample_stretch(stretch, "python", 0, SampleLimits(elements, spread=spread))
    return [(int(item.value["file"]), int(item.value["n"])) for item in found.held]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 100])
def test_every_split_comes_once_and_any_beginning_is_spread(count: int) -> None:
    order = list(evenly(count))
    assert sorted(order) == list(range(count))
    for taken in range(4, count + 1):
        gaps = np.diff([*sorted(order[:taken]), count])
        assert gaps.max() <= 4 * count / taken


def test_a_sample_comes_from_the_whole_data() -> None:
    source = Files([1000] * 100)
    found = sampled(pecan.PecanPipeline(source).map(same))
    files = sorted({file for file, _ in found})
    assert len(found) == 64 and len(files) == 32 and files[0] == 0 and files[-1] >= 90
    assert len(source.opened) == 32, "opening costs"
    assert sampled(pecan.PecanPipeline(Files([1000] * 100)).map(same)) == found


def test_files_with_few_elements_give_what_they_have() -> None:
    assert len(sampled(pecan.PecanPipeline(Files([1] * 100)).map(same))) == 64
    assert sorted(sampled(pecan.PecanPipeline(Files([3, 0, 2])).map(same))) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert len(sampled(pecan.PecanPipeline(Files([2, 100], known=True)).map(same))) == 64


def test_a_pipeline_that_needs_its_beginning_is_sampled_there() -> None:
    found = sampled(pecan.PecanPipeline(Files([1000] * 100)).take(40).map(same))
    assert found == [(0, number) for number in range(40)]
    assert sampled(pecan.PecanPipeline(Files([1000] * 9)).map(same), spread=False) == [(0, n) for n in range(64)]


def test_of_sources_that_follow_each_other_each_is_sampled() -> None:
    pipe = pecan.PecanPipeline(Files([100] * 8)).concat(pecan.PecanPipeline(Files([7])))
    found = sampled(pipe.map(same))
    assert len(found) == 39 and found[-7:] == [(0, number) for number in range(7)]


def test_a_listing_ends_in_time() -> None:
    ticks = itertools.count()
    slow = list_splits(Files([1] * 100), clock=lambda: next(ticks) * LISTING_S / 10)
    assert len(slow.splits) == 11 and not slow.complete and slow.elements is None
    many = list_splits(Files([1] * (MOST_LISTED + 1), known=True), clock=lambda: 0.0)
    assert len(many.splits) == MOST_LISTED and many.elements is None
    assert list_splits(Files([3, 4], known=True)).elements == 7


def test_rounds_end() -> None:
    leases = SpreadLeases([FirstSplits((), True), FirstSplits((Split(0),), True)], [Wanted(10)] * 2)
    assert leases.take(0) is None
    assert isinstance(leases.take(1), Lease) and leases.take(1) is None


# --- how long ------------------------------------------------------------------------------------------------


def numbers(count: int) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(x=np.zeros(count)))


@pytest.mark.parametrize(
    ("pipe", "count"),
    [
        (numbers(10).batch(4), 10),
        (numbers(10).repeat(3).batch(4), 30),
        (numbers(10).repeat().batch(4), math.inf),
        (numbers(100).batch(4).take(5), 20),
        (numbers(10).concat(numbers(5)), 15),
        (pecan.PecanPipeline(Files([3, 4])), None),
    ],
)
def test_the_number_of_elements_where_it_is_known(pipe: pecan.PecanPipeline, count: float | None) -> None:
    assert num_elements(pipe.plan) == count


def test_a_look_may_take_two_percent_of_a_job() -> None:
    plan = numbers(10_000).plan
    assert runs_allowed(plan, JobSize(passes=5, cpus=4)) == pytest.approx(0.02 * 50_000 / 4)
    assert runs_allowed(plan, JobSize(math.inf, 4)) == runs_allowed(plan, None) == math.inf
    assert runs_allowed(pecan.PecanPipeline(Files([3])).plan, JobSize(1, 1)) == math.inf


def test_the_size_of_a_job() -> None:
    config = Config(threads_per_worker=2)
    assert job_size(IterOptions(workers=Workers(0, 3)), config) == JobSize(1.0, 6, workers=3, goes_on=True)
    assert job_size(IterOptions(epochs=None, workers=AutoWorkers()), config).passes == math.inf
    assert job_size(IterOptions(epochs=7), config, debug=True) == JobSize(7.0, 1)


def slow(element: Element) -> Element:
    return {"x": element["x"] + sum(range(20_000))}


def test_a_job_that_is_shorter_than_a_look_is_not_looked_at() -> None:
    pipe = numbers(1000).map(slow).map(same)
    found = order_plan(OrderRequest(pipe.plan, job=JobSize(1.0, 2)))
    assert found.notes == (TOO_SHORT,) and not found.final and not found.stretches
    assert found.summary() == TOO_SHORT
    assert order_plan(OrderRequest(pipe.plan, job=JobSize(100.0, 2))).stretches


def test_a_look_ends_with_its_share_of_the_job() -> None:
    pipe = numbers(100_000).map(slow).map(same)
    job = JobSize(0.02 * LEAST_RUNS, 0.02 * 100_000 / 50.0)
    found = order_plan(OrderRequest(pipe.plan, job=job, seconds=60.0))
    (stretch,) = found.stretches
    assert stretch.sample.elements <= LEAST_RUNS / 4 and not found.final


def test_no_split_is_opened_once_the_time_is_up() -> None:
    rows = pecan.sources.Arrays(x=np.zeros(64), split_rows=8)
    clock = iter([0.0, 0.0, 0.0])
    source = Bounded(rows, 64, 5.0, lambda: next(clock, 9.0))
    splits = FirstSplits(tuple(Split(n) for n in range(8)), complete=True)
    leases = SpreadLeases([splits], [Wanted(64)], lambda: source.over)
    assert [leases.take() is not None for _ in range(4)] == [True, True, True, False]
    late = Bounded(rows, 64, 5.0, lambda: 9.0)
    assert sample_leases(pecan.PecanPipeline(rows).map(same).plan, [late], 64, spread=True).take() is None


def test_who_sets_the_sample_has_it(cache_folder: object) -> None:
    def told(**options: Any) -> tuple[str, ...]:
        config = Config(order_folder="", **options)
        pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.zeros(100)), config=config).map(slow).map(same).batch(4)
        with pipe.iter_batches(debug=True) as batches:
            return tuple(event.text for event in batches.report().events)

    assert told() == (TOO_SHORT,)
    assert "sampled 16 elements" in told(sample_elements=16, sample_seconds=600.0)[0]
