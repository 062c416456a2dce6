"""Trying out operators of the tensorflow engine: each compiled on single elements, outside of tf.data."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pecan_ray.autoorder.op_runner import ObservedRun, OpRunner, SampleClock, SampleLimits, Scans, Stage
from pecan_ray.autoorder.spread import entering
from pecan_ray.engines.call_note import noting
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.tensorflow.single import (
    ColumnSpecs,
    GraphElements,
    Single,
    TracedOps,
    columns_of,
    compile_groups,
)
from pecan_ray.engines.timers import ProcessTimer
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import OpSequence
from pecan_ray.plan.operators import ElementOp, Map
from pecan_ray.plan.splits import Element

# Odd, so that the median is one of them.
OVERHEAD_RUNS = 21


class TensorFlowRunner(OpRunner):
    """A stretch of a plan in the tensorflow engine."""

    def __init__(
        self, stretch: OpSequence, engine: EngineName, *, seed: int, limits: SampleLimits, clock: SampleClock
    ) -> None:
        self._ops = {op.name: op for op in stretch.ops}
        scans = Scans(ProcessTimer)
        plan, sources, leases = entering(stretch, limits, clock, scans)
        # Strict, so that each look is given the same elements.
        self._single_elements = GraphElements(plan, sources, leases, EngineOptions(seed=seed, order="strict"))
        super().__init__(self._single_elements.read(), scans)
        # Stages are asked for with each element and each pair, and each trace is slow.
        self._graph_cache: dict[tuple[Any, ...], TracedOps] = {}
        self._overhead_s: float | None = None

    def _entered(self, token: Single) -> None:
        if self._overhead_s is None:
            self._overhead_s = self._overhead(token)

    def _overhead(self, single: Single) -> float:
        """Return the seconds of a call from Python that does nothing; within tf.data there is none."""
        nothing = TracedOps([Map(name="nothing", fn=dict)], self._single_elements.spec or {})
        stopwatch, seconds = ProcessTimer(), []
        for _ in range(OVERHEAD_RUNS):
            stopwatch.start()
            nothing(single, self._single_elements.place)
            seconds.append(stopwatch.stop())
        return statistics.median(seconds)

    def stages(self, order: Sequence[str], *, fused: bool = False, decoders: Collection[str] = ()) -> list[Stage]:
        """Return the operators, compiled for what arrives at their places; no rule rewrites graphs."""
        ops = [self._ops[name] for name in order]
        spec = self._single_elements.spec
        found: list[Stage] = []
        for group in compile_groups(ops) if fused else [[op] for op in ops]:
            if spec is None:
                break
            traced = self._compile(group, spec)
            run = functools.partial(traced, place=self._single_elements.place)
            found.append(Stage(names := tuple(op.name for op in group), noting(", ".join(names), run), traced))
            spec = traced.spec
        return found

    def _compile(self, ops: list[ElementOp], spec: ColumnSpecs) -> TracedOps:
        # With the specs, since what arrives at an operator depends on the order.
        key = (*((op.name, type(op.fn)) for op in ops), *sorted((name, str(column)) for name, column in spec.items()))
        if key not in self._graph_cache:
            self._graph_cache[key] = TracedOps(ops, spec)
        return self._graph_cache[key]

    def fresh(self, token: Single) -> Single:
        """Return the element: tensors are never written into."""
        return token

    def columns(self, token: Single) -> Element:
        """Return the columns as NumPy arrays."""
        return columns_of(token)

    def replaced(self, token: Single, columns: Mapping[str, Any]) -> Single:
        """Return an element with other values in some columns."""
        given, row = token
        return {**given, **{name: tf.convert_to_tensor(value) for name, value in columns.items()}}, row

    def observe_run(self, stage: Stage, token: Single, in_time: Callable[[], bool]) -> ObservedRun:
        """Run an operator once more; what it reads and writes is known since it was traced."""
        traced: TracedOps = stage.traced
        return ObservedRun(
            stage.run(token), traced.reads, traced.writes, draws=traced.draws, comparable=not traced.draws
        )

    def timer(self) -> ProcessTimer:
        """Return what times the operators."""
        # Decision 125: CPU time of all threads, because the wall clock shows the load of other programs.
        return ProcessTimer(self._overhead_s or 0.0)
