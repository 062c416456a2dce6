"""Trying out operators of the tensorflow engine: each compiled on single elements, outside of tf.data."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pecan_ray.autoorder.op_runner import (
    Examined,
    SampleClock,
    SampleLimits,
    Stage,
)
from pecan_ray.autoorder.op_tally import trimmed_mean
from pecan_ray.autoorder.push_down import with_decoders
from pecan_ray.autoorder.spread import entering
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.stopwatch import ProcessStopwatch
from pecan_ray.engines.tensorflow.single import (
    ColumnSpecs,
    Compiled,
    Single,
    Singles,
    columns_of,
    compile_groups,
)
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import ElementOp, Map
from pecan_ray.plan.splits import Element
from pecan_ray.plan.stretches import Stretch

OVERHEAD_RUNS = 21


class CompiledStage:
    """Compiled operators, and the elements' places for their errors."""

    def __init__(self, compiled: Compiled, singles: Singles) -> None:
        self.compiled, self._singles = compiled, singles

    @property
    def names(self) -> tuple[str, ...]:
        """Its operators."""
        return tuple(op.name for op in self.compiled.ops)

    def __call__(self, token: Single) -> list[Single]:
        """Return what becomes of an element."""
        return self.compiled(token, self._singles.place)


class TensorFlowRunner:
    """A stretch of a plan in the tensorflow engine."""

    traced = True

    def __init__(
        self, stretch: Stretch, engine: EngineName, *, seed: int, limits: SampleLimits, clock: SampleClock
    ) -> None:
        self._engine = engine
        self._ops = {op.name: op for op in stretch.ops}
        plan, sources, leases = entering(stretch, limits, clock)
        self._singles = Singles(plan, sources, leases, EngineOptions(seed=seed, order="strict"))
        self._read = self._singles.read()
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        self._overhead_s: float | None = None
        self._reading: list[float] = []

    def inputs(self) -> Iterator[Single]:
        """Yield the elements that enter the stretch."""
        stopwatch = ProcessStopwatch()
        while True:
            stopwatch.start()
            single = next(self._read, None)
            self._reading.append(stopwatch.stop())
            if single is None:
                return
            if self._overhead_s is None:
                self._overhead_s = self._overhead(single)
            yield single

    @property
    def reading_s(self) -> float | None:
        """Return the mean, without the longest times."""
        return trimmed_mean(self._reading) if self._reading else None

    def _overhead(self, single: Single) -> float:
        """Return the seconds of a call from Python that does nothing; within tf.data there is none."""
        nothing = Compiled([Map(name="nothing", fn=dict)], self._singles.spec or {})
        stopwatch, seconds = ProcessStopwatch(), []
        for _ in range(OVERHEAD_RUNS):
            stopwatch.start()
            nothing(single, self._singles.place)
            seconds.append(stopwatch.stop())
        return statistics.median(seconds)

    def stages(self, order: Sequence[str], *, fused: bool = False, decoders: Collection[str] = ()) -> list[Stage]:
        """Return the operators, compiled for what arrives at their places."""
        ops = with_decoders([self._ops[name] for name in order], self._engine, decoders)
        spec = self._singles.spec
        found: list[Stage] = []
        for group in compile_groups(ops) if fused else [[op] for op in ops]:
            if spec is None:
                break
            compiled = self._compile(group, spec)
            found.append(CompiledStage(compiled, self._singles))
            spec = compiled.spec
        return found

    def _compile(self, ops: list[ElementOp], spec: ColumnSpecs) -> Compiled:
        key = (*((op.name, type(op.fn)) for op in ops), *sorted((name, str(column)) for name, column in spec.items()))
        if key not in self._compiled:
            self._compiled[key] = Compiled(ops, spec)
        return self._compiled[key]

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

    def examine(self, stage: Stage, token: Single, in_time: Callable[[], bool]) -> Examined:
        """Run an operator once more; what it reads and writes is known since it was traced."""
        assert isinstance(stage, CompiledStage)
        compiled = stage.compiled
        draws = compiled.draws
        return Examined(stage(token), compiled.reads, compiled.writes, draws=draws, comparable=not draws)

    def timer(self) -> ProcessStopwatch:
        """Return what times the operators."""
        # Decision 125: CPU time of all threads, because the wall clock shows the load of other programs.
        return ProcessStopwatch(self._overhead_s or 0.0)

    def close(self) -> None:
        """End reading."""
        self._read.close()
