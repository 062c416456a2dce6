"""Where a worker's time goes, found by looking at stacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.positions import UndeliveredPositions
from pecan_ray.engines.python.chain import Chain, call_stages
from pecan_ray.engines.python.engine import PythonEngine
from pecan_ray.engines.python.processes import Processes
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.stages import OFTEN_FOR_S, OFTEN_S, SELDOM_S, StageTally, ThreadStage, stages_now
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import Split
from pecan_ray.plan.stage_seconds import StageSeconds


class Gate:
    """Holds the threads that pass, until it is opened."""

    def __init__(self) -> None:
        self._open, self.reached = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


class HeldSlots(HeapSlots):
    """Memory that comes when a gate is open."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def acquire(self, nbytes: int) -> Any:
        self._gate.pass_through()
        return super().acquire(nbytes)


def stages_at(gate: Gate, pipe: pecan.PecanPipeline, slots: HeapSlots | None = None) -> set[ThreadStage]:
    """Run a pipeline, and return what its threads do when the gate is reached."""
    sources = tuple(pipe.plan.sources())
    engine = PythonEngine(pipe.plan, sources, EngineOptions(threads=1), slots or HeapSlots())
    before = stages_now(engine.stages())  # of threads that an earlier test has left waiting for memory
    run = threading.Thread(target=lambda: list(engine.batches(AllLeases(sources, 0, 1))))
    run.start()
    try:
        assert gate.reached.wait(30)
        return set(stages_now(engine.stages()) - before)
    finally:
        gate.open()
        run.join()
        engine.close()


def test_a_thread_in_a_function_is_in_that_operator() -> None:
    gate = Gate()

    def held(i: int) -> int:
        gate.pass_through()
        return i

    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4))).map(held, on="i", name="held").batch(2)
    assert stages_at(gate, pipe) == {ThreadStage("operator", "held")}


def test_a_thread_in_the_source_reads() -> None:
    gate = Gate()

    class HeldSource(pecan.sources.Items):
        def read(self, split: Split, start: int = 0) -> Iterator[Any]:
            gate.pass_through()
            yield from super().read(split, start)

    pipe = pecan.PecanPipeline(HeldSource([{"i": 1}, {"i": 2}])).map(dict, name="same").batch(2)
    assert stages_at(gate, pipe) == {ThreadStage("reading")}


def test_who_waits_for_memory_is_blocked_by_batches_that_nobody_takes() -> None:
    gate = Gate()
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4))).map(int, on="i", name="whole").batch(2)
    assert stages_at(gate, pipe, HeldSlots(gate)) == {ThreadStage("blocked")}


class Looks:
    """A tally with clocks that are set by hand."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0
        self.tally = StageTally(lambda: self.now, lambda: self.cpu)

    def pass_by(self, seconds: float, cpu_s: float = 0.0) -> None:
        self.now += seconds
        self.cpu += cpu_s


def test_time_without_work_is_nobodys() -> None:
    looks = Looks()
    looks.pass_by(5)
    looks.tally.look({ThreadStage("reading"): 1}, threads=2)
    assert looks.tally.seconds == StageSeconds()
    looks.tally.work(True)
    looks.pass_by(2, cpu_s=1)
    looks.tally.look(
        {ThreadStage("reading"): 1, ThreadStage("operator", "f"): 2, ThreadStage("batching"): 1}, threads=4
    )
    looks.tally.work(False)
    looks.pass_by(7)
    looks.tally.work(True)
    looks.pass_by(1)
    looks.tally.look({ThreadStage("blocked"): 3, ThreadStage("operator", "f"): 1}, threads=4)
    assert looks.tally.seconds == StageSeconds(3, 12, 1, 2, 2, 1, (("f", 5.0),))


def test_looks_become_rarer() -> None:
    looks = Looks()
    assert looks.tally.every_s == OFTEN_S
    looks.tally.work(True)
    looks.pass_by(OFTEN_FOR_S)
    looks.tally.look({}, threads=1)
    assert looks.tally.every_s == SELDOM_S


def test_a_thread_that_waits_for_a_function_in_a_process_says_so() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([1]), name="p").map(abs, on="x", name="f", processes=True)
    options, processes = EngineOptions(), Processes({"f": abs}, 1)
    (op,) = (op for op in pipe.plan.ops if isinstance(op, ElementOp))
    chain = Chain([op], options, UndeliveredPositions(), lambda _: processes.function("f"))
    (step,) = chain._steps
    recognize = call_stages(options)[Chain._call.__code__]
    assert recognize({"self": chain, "step": step}) == ThreadStage("operator", "f", in_process=True)
    processes.close()
