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
from pecan_ray.engines.python.call_stacks import call_stages
from pecan_ray.engines.python.chain import Chain
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
        self.opened, self.reached = threading.Event(), threading.Event()

    def pass_through(self, value: Any = None) -> Any:
        self.reached.set()
        assert self.opened.wait(60)
        return value


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
        assert gate.reached.wait(60)
        return set(stages_now(engine.stages()) - before)
    finally:
        gate.opened.set()
        run.join()
        engine.close()


def numbers() -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4)))


def test_a_thread_is_in_an_operator_in_the_source_or_blocked_by_batches_that_nobody_takes() -> None:
    gates = [Gate() for _ in range(3)]

    class HeldSource(pecan.sources.Items):
        def read(self, split: Split, start: int = 0) -> Iterator[Any]:
            gates[1].pass_through()
            yield from super().read(split, start)

    held = numbers().map(gates[0].pass_through, on="i", name="held").batch(2)
    assert stages_at(gates[0], held) == {ThreadStage("operator", "held")}
    source = pecan.PecanPipeline(HeldSource([{"i": 1}, {"i": 2}])).map(dict, name="same").batch(2)
    assert stages_at(gates[1], source) == {ThreadStage("reading")}
    whole = numbers().map(int, on="i", name="whole").batch(2)
    assert stages_at(gates[2], whole, HeldSlots(gates[2])) == {ThreadStage("blocked")}


def test_time_without_work_is_nobodys_and_looks_become_rarer() -> None:
    now, cpu = [0.0], [0.0]
    tally = StageTally(lambda: now[0], lambda: cpu[0])
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


def test_a_thread_that_waits_for_a_function_in_a_process_says_so() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([1]), name="p").map(abs, on="x", name="f", processes=True)
    options, processes = EngineOptions(), Processes({"f": abs}, 1)
    (op,) = (op for op in pipe.plan.ops if isinstance(op, ElementOp))
    chain = Chain([op], options, UndeliveredPositions(), lambda _: processes.function("f"))
    (step,) = chain._steps
    recognize = call_stages(options)[Chain._call.__code__]
    assert recognize({"self": chain, "step": step}) == ThreadStage("operator", "f", in_process=True)
    processes.close()
