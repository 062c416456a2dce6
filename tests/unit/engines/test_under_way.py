"""What the python engine does, and has been doing for long: which operator or source, and at which element."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Engine, UnderWay
from pecan_ray.engines.items import Item
from pecan_ray.engines.python import PythonEngine
from pecan_ray.engines.python.slow_elements import SlowElementLog
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.stages import OFTEN_FOR_S, OFTEN_S, SELDOM_S, StageAccumulator, ThreadStage, stages_now
from pecan_ray.engines.under_way import LONG_S, CallTimer, ThreadActivity, count_from, long_retry
from pecan_ray.observe.report_staff import slow_elements_line
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import AtWork, Lease, Origin, Split
from pecan_ray.plan.stage_seconds import SlowElements, StageSeconds
from pecan_ray.sources import Arrays
from pecan_ray.storage.retry import Backoff, retry
from tests.unit.engines.engine_leases import Blocking, InColumns, Numbered, numbers, running


def in_files(still: Blocking | None = None, source: type[Numbered] = Numbered) -> PecanPipeline:
    """Two files with ten numbers each, which may stand still while they are read."""
    make = None if still is None else lambda number: {"i": still(np.int64(number))}
    return PecanPipeline(source(10, 10, make=make, path="data/{}.bin"))


@contextlib.contextmanager
def at_work(pipe: PecanPipeline, rows: int, *blocking: Blocking, **options: Any) -> Iterator[Engine]:
    """Let an engine work until the first one stands still; at the end let all go on, and count what comes."""
    with running(pipe, **options) as (engine, batches), ThreadPoolExecutor(1) as pool:
        made = pool.submit(lambda: sum(one.rows for one in batches))
        try:
            assert not blocking or blocking[0].reached.wait(60)
            yield engine
        finally:
            for one in blocking:
                one.may_go_on.set()
        assert made.result(60) == rows
        assert engine.under_way(180.0) is None


def pondering(still: Blocking) -> PecanPipeline:
    return in_files().map(lambda i: i, on="i", name="passes").map(still, on="i", name="ponders")


OP = "ponders has been working on element 7 of data/1.bin for {seconds}", AtWork("ponders", Origin(0, 0, 0, 1, 7))
READING = " has been reading element 7 of data/1.bin for {seconds}"
CASES: dict[str, tuple[int, Callable[[Blocking], PecanPipeline], tuple[str, AtWork]]] = {
    "fused": (20, lambda still: pondering(still).batch(4), OP),
    "one by one": (20, lambda still: pondering(still).shuffle(1).batch(4), OP),
    "a function on batches": (
        20,
        lambda still: PecanPipeline(Arrays(i=np.arange(20), split_rows=20)).batch(4).map(still, on="i", name="ponders"),
        (
            "ponders has been working on the batch that begins with element 16 of split 0 for {seconds}",
            AtWork("ponders"),  # which of them is not known
        ),
    ),
    "a source": (
        20,
        lambda still: in_files(still).map(lambda i: i, on="i").batch(4),
        (f"Numbered{READING}", AtWork("read Numbered", OP[1].origin, reads=True)),
    ),
    "a source of columns": (
        20,
        lambda still: in_files(still, InColumns).batch(4),
        (f"InColumns{READING}", AtWork("read InColumns", OP[1].origin, reads=True)),
    ),
    "spread": (40, lambda still: pondering(still).flat_map(lambda i: [i, i], on="i").batch(4), OP),
    "no batch": (20, pondering, OP),
}
"""How many rows come out, what stands still, and the words for it."""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_an_operator_that_stands_still_is_named_with_its_element(case: str, threads: int) -> None:
    rows, build, (text, at) = CASES[case]
    blocking = Blocking(17)
    with at_work(build(blocking), rows, blocking, threads=threads) as engine:
        assert engine.under_way(100.0) is None, "it is seen for the first time"
        assert engine.under_way(100.0 + LONG_S - 0.1) is None
        told = UnderWay(text, 100.0, at)
        assert engine.under_way(100.0 + LONG_S) == told
        assert engine.under_way(170.0) == told, "the same words as before"


def test_a_function_in_another_process_is_named_with_the_elements_that_went_there(tmp_path: Path) -> None:
    reached, may_go_on = tmp_path / "reached", tmp_path / "may_go_on"
    os.mkfifo(reached)
    os.mkfifo(may_go_on)

    def ponders(i: Any) -> Any:
        if i == 17:
            reached.write_text("here")
            may_go_on.read_text()
        return i

    with at_work(in_files().map(ponders, on="i", processes=True).batch(4), 20) as engine:
        assert reached.read_text() == "here"
        assert engine.under_way(0.0) is None
        told = engine.under_way(6.0)
        may_go_on.write_text("on")
    assert told is not None and told.text.startswith("ponders has been working on ") and "of data/" in told.text


def test_of_two_that_stand_still_for_as_long_either_may_wait_and_what_the_storage_held_up_counts_from_its_end() -> None:
    for apart_s, known in ((0.0, False), (LONG_S - 1.0, False), (LONG_S, True)):
        timer, source_refs = CallTimer(), [Origin(0, 0, 0, 0, number) for number in range(2)]
        seen: dict[Hashable, ThreadActivity] = {
            number: ThreadActivity(number, "", AtWork("ponders", origin)) for number, origin in enumerate(source_refs)
        }
        timer.longest(0.0, {key: one for key, one in seen.items() if key == 0 or not apart_s})
        timer.longest(apart_s, seen)
        told = timer.longest(60.0, seen)
        assert told is not None and told.at == AtWork("ponders", source_refs[0] if known else None)
    reads = UnderWay("reads", 10.0)
    assert count_from(reads, 0.0, 20.0) == reads
    assert count_from(reads, 100.0, 100.0 + LONG_S) == UnderWay("reads", 100.0)
    assert count_from(reads, 100.0, 99.0 + LONG_S) is count_from(None, 0.0, 50.0) is None


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


class HeldSlots(HeapSlots):
    def __init__(self, gate: Blocking) -> None:
        self._gate = gate

    def acquire(self, nbytes: int) -> Any:
        self._gate()
        return super().acquire(nbytes)


STAGES: dict[str, tuple[Callable[[Blocking], PecanPipeline], ThreadStage]] = {
    "operator": (lambda gate: numbers(4).map(gate, on="i", name="held").batch(2), ThreadStage("operator", "held")),
    "source": (lambda gate: in_files(gate).map(dict, name="same").batch(2), ThreadStage("reading")),
    "memory": (lambda gate: numbers(4).map(int, on="i", name="whole").batch(2), ThreadStage("blocked")),
}


@pytest.mark.parametrize("at", STAGES)
def test_a_thread_is_in_an_operator_in_the_source_or_blocked_by_batches_that_nobody_takes(at: str) -> None:
    gate = Blocking()
    build, stage = STAGES[at]
    slots = HeldSlots(gate) if at == "memory" else HeapSlots()
    with running(build(gate), slots=slots, threads=1) as (engine, batches), ThreadPoolExecutor(1) as pool:
        before = stages_now(engine.stages())  # of threads that an earlier test has left waiting for memory
        made = pool.submit(list, batches)
        try:
            assert gate.reached.wait(60)
            assert set(stages_now(engine.stages()) - before) == {stage}
        finally:
            gate.may_go_on.set()
            made.result(60)


def test_time_without_work_is_nobodys_and_looks_become_rarer() -> None:
    now, cpu = [0.0], [0.0]
    tally = StageAccumulator(lambda: now[0], lambda: cpu[0])
    reading, f = ThreadStage("reading"), ThreadStage("operator", "f")
    assert tally.every_s == OFTEN_S
    now[0] += 5
    tally.look({reading: 1}, threads=2)
    assert tally.seconds == StageSeconds()
    tally.work(True)
    now[0], cpu[0] = now[0] + 2, 1.0
    tally.look({reading: 1, f: 2, ThreadStage("batching"): 1}, threads=4)
    tally.work(False)
    now[0] += 7
    tally.work(True)
    now[0] += 1
    tally.look({ThreadStage("blocked"): 3, f: 1}, threads=4)
    assert tally.seconds == StageSeconds(3, 12, 1, 2, 2, 1, (("f", 5.0),))
    now[0] += OFTEN_FOR_S
    tally.look({}, threads=1)
    assert tally.every_s == SELDOM_S


def test_elements_that_take_many_times_as_long_as_most_are_named_where_rows_wait_for_them() -> None:
    items = [Item({}, [], Lease(0, Split(2, "a.bin")), number) for number in range(9)]
    log, other = SlowElementLog(), SlowElementLog()
    for seconds in (0.008, 0.01, 0.9, 0.012, 0.15, 0.7):
        log.note(seconds, items[3:4], "decode")  # 0.15 s are less than 20 times as long
    other.note(5.0, items[:1], "decode")  # the first one shows nothing, however long it takes
    for seconds in (0.003, 0.05, 2.0):
        other = SlowElementLog() if seconds == 0.003 else other
        other.note(seconds, items[:3], "decode, crop")
    found = log.found + other.found
    assert found == SlowElements(3, 3.6, 2.0, "element 0 of a.bin or one of the 2 behind it in decode, crop")
    line = slow_elements_line(found, 3.0, 12.0)
    assert "slow elements: 3 took more than 20 times" in line and "3.0 s (25% of the time)" in line
    assert (
        found.worst in line and slow_elements_line(found, 0.5, 12.0) == slow_elements_line(SlowElements(), 9, 9) == ""
    )


def test_an_engine_times_elements_where_it_keeps_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    note, chunks, found = SlowElementLog.note, itertools.count(), list[str]()
    # As if each chunk had taken a hundred times as long as the one before.
    monkeypatch.setattr(SlowElementLog, "note", lambda log, _, chunk, ops: note(log, 100.0 ** next(chunks), chunk, ops))
    for order in ("strict", "relaxed"):
        for pipe in (numbers(10).map(abs, on="i"), in_files().map(dict)):
            with running(pipe.batch(4), threads=1, order=order) as (engine, batches):
                assert sum(one.rows for one in batches) and isinstance(engine, PythonEngine)
                found.append(engine.slow.worst)
    assert found[2:] == ["", ""] and "split 0 in abs" in found[0] and "data/1.bin in dict" in found[1]
