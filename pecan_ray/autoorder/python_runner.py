"""Trying out operators of the python engine: the engine's own chain, one operator and one element at a time."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray import storage
from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.op_runner import (
    OP_FAILURES,
    GlobalRandomState,
    ObservedRun,
    OpRunner,
    SampleClock,
    SampleLimits,
    Scans,
    Stage,
)
from pecan_ray.autoorder.op_samples import reading_seconds
from pecan_ray.autoorder.rewrites import rewrite_ops
from pecan_ray.autoorder.spread import entering
from pecan_ray.engines.call_note import noting
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.python.complete_calls import complete_call
from pecan_ray.engines.python.stream import ItemStream
from pecan_ray.engines.recording import Recording
from pecan_ray.engines.timers import ThreadTimer
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import OpSequence
from pecan_ray.plan.operators import Autocache, ElementOp
from pecan_ray.plan.splits import Element
from pecan_ray.sources.copies import copy_value

TRIES = 4
"""On so many elements an operator is run without each column that it does not seem to read: one may read it of some
elements alone."""


class PythonRunner(OpRunner):
    """A stretch of a plan in the python engine."""

    def __init__(
        self, stretch: OpSequence, engine: EngineName, *, seed: int, limits: SampleLimits, clock: SampleClock
    ) -> None:
        self._engine = engine
        self._ops = {op.name: op for op in stretch.ops}
        self._options = EngineOptions(seed=seed, order="strict")
        scans = Scans(ThreadTimer)
        plan, sources, leases = entering(stretch, limits, clock, scans)
        # Without a pool: one operator at a time in this thread, or its time could not be measured.
        reading = replace(self._options, on_error="skip" if limits.skip_bad else "raise")
        stream = ItemStream(plan, sources, reading, leases, SkippedPositions(), pool=None, call=complete_call)
        super().__init__((item for item in stream.items() if item is not None), scans)
        self._starts_at_source = all(isinstance(op, Autocache) for op in plan.ops)
        """Its elements are what the source gives."""
        # Bytes of a bucket are counted in the whole process, so only what comes from now on is the sample's.
        self._remote_bytes = storage.remote_bytes()
        self._nbytes = 0
        """Of the elements that have entered."""
        self._attempts = Counter[str]()

    def _entered(self, token: Item) -> None:
        self._nbytes += element_bytes(token.value)

    @property
    def reading_s(self) -> float | None:
        """Return the mean, as `reading_seconds` takes it."""
        fetched = storage.remote_bytes() - self._remote_bytes
        # What was read and not drawn has come from there too.
        read = self._nbytes * (1 + self.scans.passed / max(1, len(self._reading)))
        return reading_seconds(self._reading, fetched, int(read) if self._starts_at_source else fetched)

    def stages(self, order: Sequence[str], *, fused: bool = False, decoders: Collection[str] = ()) -> list[Stage]:
        """Return the operators as chains."""
        ops = rewrite_ops([self._ops[name] for name in order], self._engine, decoders)
        return [self._stage(run) for run in ([ops] if fused else [[op] for op in ops])]

    def _stage(self, ops: Sequence[ElementOp]) -> Stage:
        chain = Chain(ops, self._options, SkippedPositions(), complete_call)
        return Stage(names := tuple(op.name for op in ops), noting(", ".join(names), chain.run))

    def fresh(self, token: Item) -> Item:
        """Return an item with copies of its arrays."""
        return _with(token, _make_copy(token.value))

    def columns(self, token: Item) -> Element:
        """Return the element."""
        value: Element = token.value
        return value

    def replaced(self, token: Item, columns: Mapping[str, Any]) -> Item:
        """Return an item with other values in some columns."""
        return _with(token, {**token.value, **columns})

    def replaced_columns(self, before: Element, outputs: Sequence[Element]) -> set[str]:
        """Return the columns in whose place outputs have other values, as far as that can be told without copies."""
        return {name for name in before for output in outputs if output.get(name, before[name]) is not before[name]}

    def observe_run(self, stage: Stage, token: Item, in_time: Callable[[], bool]) -> ObservedRun:
        """Run an operator on a recording of the element, and in time once without each column that it has not read.

        Columns for which there is no time count as read.
        """
        op = self._ops[stage.names[0]]
        before: Element = token.value
        recording = Recording(_make_copy(before))
        given = dict(recording)
        randomness = GlobalRandomState()
        outputs = stage.run(_with(token, recording))
        draws = randomness.moved()
        for output in outputs:
            # A recording that is passed on would go on noting what later operators read.
            output.value = dict(output.value)
        # In place, too: it was given copies, which differ from the element if it has written into them.
        writes = {name for name in before if not equal(before[name], given[name])}
        writes |= self.replaced_columns(given, [output.value for output in outputs])
        if op.on is not None:
            return ObservedRun(outputs, frozenset({op.on}), frozenset(writes), draws=draws)
        reads = set(recording.seen)
        self._attempts[op.name] += 1
        # `{**element}` notes nothing, so a column that seems unread is taken away to see whether it is missed.
        for name in sorted(before.keys() - reads) if self._attempts[op.name] <= TRIES else ():
            if not in_time() or _needs_column(name, stage, token, outputs, given, randomness):
                reads.add(name)
        return ObservedRun(outputs, frozenset(reads), frozenset(writes), draws=draws)


def _with(item: Item, value: Any) -> Item:
    return replace(item, value=value, parts=list(item.parts))


def _make_copy(element: Element) -> Element:
    """Return an element whose values may be written into without changing the given one."""
    return {name: _copy(value) for name, value in element.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return copy.deepcopy(value) if isinstance(value, (list, dict, set, bytearray)) else copy_value(value)


def _needs_column(
    name: str, stage: Stage, token: Item, outputs: list[Item], given: Element, randomness: GlobalRandomState
) -> bool:
    """Tell whether an operator does anything else when a column is missing, apart from not passing it on."""
    # The same random numbers as in the run with the column, so that only this makes a difference.
    randomness.restore()
    left = {other: value for other, value in _make_copy(token.value).items() if other != name}
    try:
        found = stage.run(_with(token, left))
    except OP_FAILURES:
        return True
    expected = [
        {column: value for column, value in output.value.items() if not (column == name and value is given.get(name))}
        for output in outputs
    ]
    return not equal(expected, [output.value for output in found])
