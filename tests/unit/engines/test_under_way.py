"""What the python engine has been doing for long: which operator or source, and at which element."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import EngineOptions, UnderWay
from pecan_ray.engines.python import PythonEngine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.under_way import LONG_S, CallTimer, Sighting, counted_from, long_retry
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import AtWork, Element, Origin, Split
from pecan_ray.sources import Arrays
from pecan_ray.storage.retry import Backoff, retry
from tests.unit.engines.engine_leases import ListedLeases, whole_leases

Build = Callable[[PecanPipeline], PecanPipeline]


class Blocking:
    """Stands still at one number until it is let go."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, number: Any) -> Any:
        if np.any(np.asarray(number) == self.at):
            self.reached.set()
            assert self.may_go_on.wait(60)
        return number


class Numbers:
    """A source of two files with ten numbers each, which may stand still while it reads."""

    def __init__(self, blocking: Blocking | None = None) -> None:
        self._blocking = blocking

    def splits(self) -> Iterator[Split]:
        """Yield one split per file."""
        for index in range(2):
            yield Split(index, path=f"data/{index}.bin")

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers of a file."""
        for number in range(10 * split.index + start, 10 * split.index + 10):
            yield {"i": np.int64(number if self._blocking is None else self._blocking(number))}

    def num_elements(self) -> int:
        """Return the number of elements."""
        return 20

    def identity(self) -> str:
        """Return a constant: nothing is on disk."""
        return "numbers"


class Running:
    """An engine that works in a thread."""

    def __init__(self, pipe: PecanPipeline, **options: Any) -> None:
        sources = tuple(pipe.plan.sources())
        self.engine = PythonEngine(pipe.plan, sources, EngineOptions(**options), HeapSlots())
        self.rows = 0
        self._leases = ListedLeases(whole_leases(sources))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for produced in self.engine.batches(self._leases):
            self.rows += produced.rows

    def end(self) -> int:
        """Wait for the end of the data; return how many rows came."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.engine.close()
        return self.rows


@contextlib.contextmanager
def let_go(blocking: Blocking) -> Iterator[None]:
    """Let what stands still go on at the end, whatever happens."""
    try:
        yield
    finally:
        blocking.may_go_on.set()


PLANS: dict[str, tuple[Build, int]] = {
    "fused": (lambda p: p.batch(4), 20),
    "one by one": (lambda p: p.shuffle(1).batch(4), 20),
    "spread": (lambda p: p.flat_map(lambda i: [i, i], on="i").batch(4), 40),
    "no batch": (lambda p: p, 20),
}
"""What follows the operator that stands still, and how many rows come out."""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("plan", PLANS)
def test_an_operator_that_stands_still_is_named_with_its_element(plan: str, threads: int) -> None:
    build, rows = PLANS[plan]
    blocking = Blocking(17)
    pipe = PecanPipeline(Numbers()).map(lambda i: i, on="i", name="passes").map(blocking, on="i", name="ponders")
    with let_go(blocking):
        running = Running(build(pipe), threads=threads)
        assert blocking.reached.wait(60)
        assert running.engine.under_way(100.0) is None, "it is seen for the first time"
        assert running.engine.under_way(100.0 + LONG_S - 0.1) is None
        at = AtWork("ponders", Origin(0, 0, 0, 1, 7))
        told = UnderWay("ponders has been working on element 7 of data/1.bin for {seconds}", 100.0, at)
        assert running.engine.under_way(100.0 + LONG_S) == told
        assert running.engine.under_way(170.0) == told, "the same words as before"
    assert running.end() == rows
    assert running.engine.under_way(180.0) is None


def test_an_operator_on_batches_is_named_with_the_batch() -> None:
    blocking = Blocking(17)
    pipe = PecanPipeline(Arrays(i=np.arange(20), split_rows=20)).batch(4).map(blocking, on="i", name="ponders")
    with let_go(blocking):
        running = Running(pipe)
        assert blocking.reached.wait(60)
        assert running.engine.under_way(0.0) is None
        told = running.engine.under_way(6.0)
    where = "the batch that begins with element 16 of split 0"
    at = AtWork("ponders")
    assert told == UnderWay(f"ponders has been working on {where} for {{seconds}}", 0.0, at), (
        "which of them is not known"
    )
    assert running.end() == 20


def test_a_source_that_stands_still_is_named_with_the_element_that_it_reads() -> None:
    blocking = Blocking(13)
    with let_go(blocking):
        running = Running(PecanPipeline(Numbers(blocking)).map(lambda i: i, on="i").batch(4))
        assert blocking.reached.wait(60)
        assert running.engine.under_way(0.0) is None
        told = running.engine.under_way(6.0)
    at = AtWork("read Numbers", Origin(0, 0, 0, 1, 3), reads=True)
    assert told == UnderWay("Numbers has been reading element 3 of data/1.bin for {seconds}", 0.0, at)
    assert running.end() == 20


class Columns(Numbers):
    """The same numbers by columns."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the numbers of a file, two at a time."""
        for element in self.read(split, start):
            yield {"i": element["i"][None]}


def test_a_source_of_columns_is_named_too() -> None:
    blocking = Blocking(13)
    with let_go(blocking):
        running = Running(PecanPipeline(Columns(blocking)).batch(4))
        assert blocking.reached.wait(60)
        assert running.engine.under_way(0.0) is None
        told = running.engine.under_way(6.0)
    at = AtWork("read Columns", Origin(0, 0, 0, 1, 3), reads=True)
    assert told == UnderWay("Columns has been reading element 3 of data/1.bin for {seconds}", 0.0, at)
    assert running.end() == 20


def test_a_function_in_another_process_is_named_with_the_elements_that_went_there(tmp_path: Path) -> None:
    reached, may_go_on = tmp_path / "reached", tmp_path / "may_go_on"
    os.mkfifo(reached)
    os.mkfifo(may_go_on)

    def ponders(i: Any) -> Any:
        if i == 17:
            reached.write_text("here")
            may_go_on.read_text()
        return i

    running = Running(PecanPipeline(Numbers()).map(ponders, on="i", processes=True).batch(4))
    assert reached.read_text() == "here"
    assert running.engine.under_way(0.0) is None
    told = running.engine.under_way(6.0)
    may_go_on.write_text("on")
    assert told is not None and told.text.startswith("ponders has been working on ") and "of data/" in told.text
    assert running.end() == 20


def test_what_is_not_the_same_at_two_looks_has_not_been_under_way_for_long() -> None:
    first, second = Blocking(3), Blocking(4)
    with let_go(first), let_go(second):
        running = Running(PecanPipeline(Numbers()).map(lambda i: second(first(i)), on="i").batch(4))
        assert first.reached.wait(60)
        assert running.engine.under_way(0.0) is None
        first.may_go_on.set()
        assert second.reached.wait(60)
        assert running.engine.under_way(6.0) is None
        assert running.engine.under_way(10.9) is None
        told = running.engine.under_way(11.0)
    assert told is not None and "element 4 of data/0.bin" in told.text and told.since == 6.0
    assert running.end() == 20


def test_an_engine_tells_nothing_of_another_one_and_nothing_when_nobody_takes_its_batches() -> None:
    blocking = Blocking(3)
    with let_go(blocking):
        running = Running(PecanPipeline(Numbers()).map(blocking, on="i").batch(4))
        assert blocking.reached.wait(60)
        source = Numbers()
        pipe = PecanPipeline(source).map(lambda i: i, on="i").batch(2)
        with contextlib.closing(PythonEngine(pipe.plan, [source], EngineOptions(), HeapSlots())) as other:
            batches = other.batches(ListedLeases(whole_leases([source])))
            next(batches)
            assert [other.under_way(float(second)) for second in range(20)] == [None] * 20
            batches.close()
    assert running.end() == 20


@pytest.mark.parametrize(("apart_s", "known"), [(0.0, False), (LONG_S - 1.0, False), (LONG_S, True)])
def test_of_two_that_have_stood_still_for_as_long_either_may_wait_for_the_other(apart_s: float, known: bool) -> None:
    timer, origins = CallTimer(), [Origin(0, 0, 0, 0, number) for number in range(2)]
    seen: dict[Hashable, Sighting] = {
        number: Sighting(number, "", AtWork("ponders", origin)) for number, origin in enumerate(origins)
    }
    timer.longest(0.0, {key: one for key, one in seen.items() if key == 0 or not apart_s})
    timer.longest(apart_s, seen)
    told = timer.longest(60.0, seen)
    assert told is not None and told.at == AtWork("ponders", origins[0] if known else None)


def test_what_began_before_the_storage_failed_is_counted_from_when_it_did_not_any_more() -> None:
    reads = UnderWay("reads", 10.0)
    assert counted_from(reads, 0.0, 20.0) == reads
    assert counted_from(reads, 100.0, 100.0 + LONG_S) == UnderWay("reads", 100.0)
    assert counted_from(reads, 100.0, 99.0 + LONG_S) is counted_from(None, 0.0, 50.0) is None


def test_a_file_that_the_storage_does_not_give_is_named_with_the_error() -> None:
    told: list[UnderWay | None] = []
    began = time.monotonic()

    def fails() -> None:
        raise TimeoutError("the bucket is slow")

    def look(pause_s: float) -> None:
        told.extend([long_retry(began), long_retry(time.monotonic() + LONG_S)])

    patience = iter([True, True, False])
    with pytest.raises(TimeoutError):
        retry(fails, passes=lambda error: next(patience), path="s3://data/a", backoff=Backoff(), sleep=look)
    assert [one is None for one in told] == [True, False] * 2
    assert len({one for one in told if one}) == 1, "it began with the first failure"
    (one,) = {one.text for one in told if one}
    assert one == "s3://data/a has been tried again for {seconds}: TimeoutError: the bucket is slow"
    assert long_retry(time.monotonic() + LONG_S) is None
