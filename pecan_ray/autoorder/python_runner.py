"""Trying out operators of the python engine: the engine's own chain, one operator and one element at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray import storage
from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.op_accumulator import reading_seconds
from pecan_ray.autoorder.op_runner import (
    OP_FAILURES,
    GlobalRandomState,
    ObservedRun,
    SampleClock,
    SampleLimits,
    Stage,
)
from pecan_ray.autoorder.rewrites import rewrite_ops
from pecan_ray.autoorder.spread import entering
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.foreign import copy_value
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

TRIES = 4
"""On so many elements an operator is run without each column that it does not seem to read."""


class ChainStage:
    """Operators as a chain of the engine."""

    def __init__(self, ops: Sequence[ElementOp], options: EngineOptions) -> None:
        self.ops = tuple(ops)
        self._chain = Chain(ops, options, SkippedPositions(), complete_call)

    @property
    def names(self) -> tuple[str, ...]:
        """Its operators."""
        return tuple(op.name for op in self.ops)

    def __call__(self, token: Item) -> list[Item]:
        """Return what becomes of an element."""
        return self._chain.run(token)


class PythonRunner:
    """A stretch of a plan in the python engine."""

    traced = False

    def __init__(
        self, stretch: OpSequence, engine: EngineName, *, seed: int, limits: SampleLimits, clock: SampleClock
    ) -> None:
        self._engine = engine
        self._ops = {op.name: op for op in stretch.ops}
        self._options = EngineOptions(seed=seed, order="strict")
        plan, sources, leases = entering(stretch, limits, clock)
        # Without a pool: one operator at a time in this thread, or its time could not be measured.
        stream = ItemStream(plan, sources, self._options, leases, SkippedPositions(), pool=None, call=complete_call)
        self._items = _items(stream)
        self._reading: list[float] = []
        self._starts_at_source = all(isinstance(op, Autocache) for op in plan.ops)
        """Its elements are what the source gives."""
        # Bytes of a bucket are counted in the whole process, so only what comes from now on is the sample's.
        self._remote_bytes = storage.remote_bytes()
        self._nbytes = 0
        """Of the elements that have entered."""
        self._known: dict[str, set[str]] = {}
        self._attempts: dict[str, int] = {}

    def inputs(self) -> Iterator[Item]:
        """Yield the elements that enter the stretch."""
        stopwatch = ThreadTimer()
        while True:
            stopwatch.start()
            item = next(self._items, None)
            self._reading.append(stopwatch.stop())
            if item is None:
                return
            self._nbytes += element_bytes(item.value)
            yield item

    @property
    def reading_s(self) -> float | None:
        """Return the mean, as `reading_seconds` takes it."""
        fetched = storage.remote_bytes() - self._remote_bytes
        return reading_seconds(self._reading, fetched, self._nbytes if self._starts_at_source else fetched)

    def stages(self, order: Sequence[str], *, fused: bool = False, decoders: Collection[str] = ()) -> list[Stage]:
        """Return the operators as chains."""
        ops = rewrite_ops([self._ops[name] for name in order], self._engine, decoders)
        return [ChainStage(run, self._options) for run in ([ops] if fused else [[op] for op in ops])]

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

    def observe_run(self, stage: Stage, token: Item, in_time: Callable[[], bool]) -> ObservedRun:
        """Run an operator on a recording of the element, and in time once without each column that it has not read.

        Columns for which there is no time count as read.
        """
        assert isinstance(stage, ChainStage)
        (op,) = stage.ops
        before: Element = token.value
        recording = Recording(_make_copy(before))
        given = dict(recording)
        randomness = GlobalRandomState()
        outputs = stage(_with(token, recording))
        draws = randomness.moved()
        for output in outputs:
            # A recording that is passed on would go on noting what later operators read.
            output.value = dict(output.value)
        writes = _written_columns(before, given, outputs)
        reads = {op.on} if op.on is not None else set(recording.seen)
        known = self._known.setdefault(op.name, set())
        known |= reads
        self._attempts[op.name] = self._attempts.get(op.name, 0) + 1
        # `{**element}` notes nothing, so a column that seems unread is taken away to see whether it is
        # missed.
        if op.on is None and self._attempts[op.name] <= TRIES:
            hidden = sorted(before.keys() - known)
            known |= {n for n in hidden if not in_time() or _needs_column(n, stage, token, outputs, given, randomness)}
        return ObservedRun(outputs, frozenset(known), frozenset(writes), draws=draws)

    def timer(self) -> ThreadTimer:
        """Return what times the operators."""
        return ThreadTimer()

    def close(self) -> None:
        """End reading."""
        self._items.close()


def _items(stream: ItemStream) -> Generator[Item, None, None]:
    yield from (item for item in stream.items() if item is not None)


def _with(item: Item, value: Any) -> Item:
    return replace(item, value=value, parts=list(item.parts))


def _written_columns(before: Element, given: Mapping[str, Any], outputs: Sequence[Item]) -> set[str]:
    """Return the columns that an operator has written: in place, or as others in its outputs."""
    # Also in place: the operator was given copies, which differ from the element if it has written into them.
    writes = {name for name in before if not equal(before[name], given[name])}
    for output in outputs:
        writes |= {name for name in before if name in output.value and output.value[name] is not given[name]}
    return writes


def _make_copy(element: Element) -> Element:
    """Return an element whose values may be written into without changing the given one."""
    return {name: _copy(value) for name, value in element.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return copy.deepcopy(value) if isinstance(value, (list, dict, set, bytearray)) else copy_value(value)


def _needs_column(
    name: str, stage: ChainStage, token: Item, outputs: list[Item], given: Element, randomness: GlobalRandomState
) -> bool:
    """Tell whether an operator does anything else when a column is missing, apart from not passing it on."""
    # The same random numbers as in the run with the column, so that only this makes a difference.
    randomness.restore()
    left = {other: value for other, value in _make_copy(token.value).items() if other != name}
    try:
        found = stage(_with(token, left))
    except OP_FAILURES:
        return True
    expected = [
        {column: value for column, value in output.value.items() if not (column == name and value is given.get(name))}
        for output in outputs
    ]
    return not equal(expected, [output.value for output in found])
