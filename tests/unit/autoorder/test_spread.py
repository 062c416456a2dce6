"""Where a sample is drawn from, and how long it may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder import spread
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order import TOO_SHORT, order_plan
from pecan_ray.autoorder.order_request import JobSize, OrderRequest, num_elements, runs_allowed
from pecan_ray.autoorder.sample import sample_op_sequence
from pecan_ray.options import Config
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.listing import LISTING_S, MOST_LISTED, list_splits
from tests.unit.autoorder.sampled_rows import keep
from tests.unit.engines.engine_leases import OwnSource


class Files(OwnSource):
    """A source of files with some elements each, which counts those that were opened."""

    def __init__(self, sizes: list[int], *, known: bool = False) -> None:
        self.sizes, self.known = sizes, known
        self.opened: list[int] = []

    def splits(self) -> Iterator[Split]:
        for index, size in enumerate(self.sizes):
            yield Split(index, path=f"{index}.bin", elements=size if self.known else None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        self.opened.append(split.index)
        for number in range(start, self.sizes[split.index]):
            yield {"file": np.int64(split.index), "n": np.int64(number)}

    def num_elements(self) -> int | None:
        return sum(self.sizes) if self.known else None


def sampled(pipe: pecan.PecanPipeline, elements: int = 64, *, anywhere: bool = True) -> list[tuple[int, int]]:
    """The elements of a sample: (file, number)."""
    (stretch,) = op_sequences(pipe.plan)
    found = sample_op_sequence(stretch, "python", 0, SampleLimits(elements, spread=anywhere))
    return [(int(item.value["file"]), int(item.value["n"])) for item in found.held]


def test_a_sample_comes_from_the_whole_data_unless_a_pipeline_needs_its_beginning() -> None:
    source = Files([1000] * 100)
    found = sampled(pecan.PecanPipeline(source).map(keep))
    files = sorted({file for file, _ in found})
    assert len(found) == 64 and len(files) == 32 and files[0] == 0 and files[-1] >= 90
    assert len(source.opened) == 32, "opening costs"
    assert sorted(sampled(pecan.PecanPipeline(Files([3, 0, 2])).map(keep))) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert len(sampled(pecan.PecanPipeline(Files([2, 100], known=True)).map(keep))) == 64
    from_the_beginning = [(0, number) for number in range(40)]
    assert sampled(pecan.PecanPipeline(Files([1000] * 100)).take(40).map(keep)) == from_the_beginning
    assert sampled(pecan.PecanPipeline(Files([1000] * 9)).map(keep), 40, anywhere=False) == from_the_beginning


def in_tenths(found: list[tuple[int, int]], size: int) -> list[int]:
    """How many elements lie in each tenth of a file."""
    tenths = [number * 10 // size for _, number in found]
    return [tenths.count(tenth) for tenth in range(10)]


@pytest.fixture
def reading_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(spread, "SCAN_S", math.inf)


@pytest.mark.usefixtures("reading_to_the_end")
@pytest.mark.parametrize("known", [True, False])
def test_a_sample_of_one_file_comes_from_all_of_it_and_is_the_same_in_each_look(known: bool) -> None:
    source = Files([20_000], known=known)
    found = sampled(pecan.PecanPipeline(source).map(keep), 300)
    assert len(set(found)) == 300 and min(in_tenths(found, 20_000)) >= 15
    assert min(in_tenths(found[:100], 20_000)) >= 2, "wherever it ends"
    assert source.opened == [0], "it is read once"
    assert sampled(pecan.PecanPipeline(Files([20_000], known=known)).map(keep), 300) == found


def test_a_sample_of_rows_that_have_numbers_is_spread_and_reads_nothing_else() -> None:
    rows = pecan.sources.Arrays(file=np.zeros(16_000, np.int64), n=np.arange(16_000))
    found = sampled(pecan.PecanPipeline(rows).map(keep), 300)
    assert len(set(found)) == 300 and min(in_tenths(found, 16_000)) >= 10
    runs = [number for _, number in found if (0, number + 1) in found]
    assert len(runs) < 30, "they are no runs of neighbours"


@pytest.mark.usefixtures("reading_to_the_end")
def test_a_later_look_draws_others() -> None:
    (stretch,) = op_sequences(pecan.PecanPipeline(Files([400])).map(keep).plan)

    def numbers(limits: SampleLimits) -> set[int]:
        return {int(item.value["n"]) for item in sample_op_sequence(stretch, "python", 0, limits).held}

    first, later = numbers(SampleLimits(300)), numbers(SampleLimits(16, later=True))
    assert len(first) == 300 and len(later) == 16 and not first & later


@pytest.mark.usefixtures("reading_to_the_end")
def test_what_was_not_read_for_want_of_time_or_for_an_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pecan.PecanPipeline(Broken([1000])).map(keep)
    (stretch,) = op_sequences(pipe.plan)
    found = sample_op_sequence(stretch, "python", 0, SampleLimits(40))
    assert max(int(item.value["n"]) for item in found.held) > 500 and len(found.held) == 40
    (note,) = found.notes
    assert note.startswith("the sample is of the first 900 elements of 0.bin: behind them is what cannot be read")
    monkeypatch.setattr(spread, "SCAN_S", 0.0)
    (stretch,) = op_sequences(pecan.PecanPipeline(Files([1000, 1000])).map(keep).plan)
    found = sample_op_sequence(stretch, "python", 0, SampleLimits(40))
    assert {int(item.value["n"]) for item in found.held} == set(range(20))
    (note,) = found.notes
    assert note.startswith("the sample is of the first 20 elements of 0.bin, and of the first ones of 1 more splits: ")


class Broken(Files):
    """A source that cannot be read behind element 900."""

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for element in super().read(split, start):
            if element["n"] == 900:
                raise ValueError("the disk is broken")
            yield element


def test_a_listing_ends_in_time() -> None:
    ticks = itertools.count()
    slow = list_splits(Files([1] * 100), clock=lambda: next(ticks) * LISTING_S / 10)
    assert len(slow.splits) == 11 and not slow.complete and slow.elements is None
    many = list_splits(Files([1] * (MOST_LISTED + 1), known=True), clock=lambda: 0.0)
    assert len(many.splits) == MOST_LISTED and many.elements is None
    assert list_splits(Files([3, 4], known=True)).elements == 7


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


def test_a_look_may_take_two_percent_of_a_job_and_a_shorter_job_is_not_looked_at() -> None:
    plan = numbers(10_000).plan
    assert runs_allowed(plan, JobSize(passes=5, cpus=4)) == pytest.approx(0.02 * 50_000 / 4)
    assert runs_allowed(plan, JobSize(math.inf, 4)) == runs_allowed(plan, None) == math.inf
    assert runs_allowed(pecan.PecanPipeline(Files([3])).plan, JobSize(1, 1)) == math.inf
    pipe = numbers(1000).map(slow).map(keep)
    found = order_plan(OrderRequest(pipe.plan, job=JobSize(1.0, 2)))
    assert found.notes == (found.summary(),) == (TOO_SHORT,) and not found.final and not found.sequences
    assert order_plan(OrderRequest(pipe.plan, job=JobSize(100.0, 2))).sequences


def slow(element: Element) -> Element:
    return {"x": element["x"] + sum(range(20_000))}


def test_who_sets_the_sample_has_it(cache_folder: object) -> None:
    def told(**options: Any) -> tuple[str, ...]:
        config = Config(order_folder="", **options)
        pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.zeros(100)), config=config).map(slow).map(keep).batch(4)
        with pipe.iter_batches(debug=True) as batches:
            return tuple(event.text for event in batches.report().events)

    assert told() == (TOO_SHORT,)
    assert "sampled 16 elements" in told(sample_elements=16, sample_seconds=600.0)[0]
