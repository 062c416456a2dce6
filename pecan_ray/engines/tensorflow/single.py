"""Single elements through compiled operators, one after the other: for profiling, outside of any tf.data graph."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.contract import EngineOptions, Leases
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.recording import Recording
from pecan_ray.engines.tensorflow.broadcast_constants import GraphFunction
from pecan_ray.engines.tensorflow.columns import Tensor, TensorColumns, as_column
from pecan_ray.engines.tensorflow.failure_locator import failing_element, graph_failure
from pecan_ray.engines.tensorflow.feed import GraphFeed
from pecan_ray.engines.tensorflow.graph import Graph
from pecan_ray.engines.tensorflow.iterating import Elements
from pecan_ray.engines.tensorflow.op_calls import apply_flat_map, apply_map, call
from pecan_ray.engines.tensorflow.outputs import rows_of_outputs
from pecan_ray.errors import ElementError, OpError, describe_error, is_interrupt
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap, Map, Plan
from pecan_ray.plan.splits import Element, Source

ColumnSpecs = dict[str, Any]
"""Column name -> tf.TensorSpec."""
Single = tuple[TensorColumns, Tensor]
"""The columns of an element, and its row."""

ElementPlace = tuple[str, str, int]
"""Where an element lies in words, its file, and its number in its split."""

# Those that are given a seed are called "Stateless...".
DRAWING = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "SampleDistortedBoundingBox")
"""How the names of graph operations begin that draw random numbers without being given a seed."""


class GraphElements:
    """The elements behind a plan, as the graph of the engine yields them."""

    def __init__(self, plan: Plan, sources: Sequence[Source], leases: Leases, options: EngineOptions) -> None:
        self._plan, self._options = plan, options
        self._feeds = [
            GraphFeed(branch, source, leases, SkippedPositions(), options, None)
            for branch, source in enumerate(sources)
        ]
        # As in a worker, which leaves accelerators alone.
        with tf.device("/CPU:0"):
            for feed in self._feeds:
                feed.open()
            data = Graph(plan, options, _forget, itertools.count()).dataset(self._feeds, epoch=0)
        self._data = data
        self.spec: ColumnSpecs | None = None if data is None else dict(data.element_spec[0])
        """Dtypes and static shapes of the columns; None if there is no element."""

    def read(self) -> Generator[Single, None, None]:
        """Yield the elements; raises what went wrong with op, file and element."""
        with contextlib.closing(Elements(self._data)) as elements:
            try:
                yield from elements
            except tf.errors.OpError as error:
                self._raise_source_error()
                found = failing_element(self._plan, self._feeds, self._options.seed)
                raise (found or graph_failure(error, self._feeds)) from error
        self._raise_source_error()

    def _raise_source_error(self) -> None:
        for feed in self._feeds:
            if feed.error is not None:
                raise feed.error

    def place(self, row: Tensor) -> ElementPlace:
        """Return where an element lies."""
        numbers = meta.as_rows(row)
        key = (int(numbers[meta.BRANCH]), int(numbers[meta.REPETITION]), int(numbers[meta.SPLIT]))
        number = int(numbers[meta.ELEMENT])
        split = self._feeds[key[0]].lease_of(key).split
        return split.where(number), split.file_of(number), split.number_of(number)


@dataclass
class Traced:
    """What tracing an operator has shown."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)


class TracedOps:
    """One operator, or several maps, compiled for elements of one spec; called eagerly with one element."""

    def __init__(self, ops: Sequence[ElementOp], spec: ColumnSpecs) -> None:
        self.ops = tuple(ops)
        self._traced = Traced()
        (first, *_) = ops
        run = {Filter: self._kept, FlatMap: self._spread}.get(type(first), self._mapped)
        row = tf.TensorSpec((meta.WIDTH,), tf.int64)
        with tf.device("/CPU:0"):
            self._function = GraphFunction(run, spec, row)
        self.spec = self._spec_behind(spec)
        """Dtypes and static shapes of what comes out."""

    @property
    def reads(self) -> frozenset[str]:
        """Columns that the operator looks at, where there is one operator."""
        return frozenset(self._traced.reads)

    @property
    def writes(self) -> frozenset[str]:
        """Columns that it is given and returns as another tensor."""
        return frozenset(self._traced.writes)

    @functools.cached_property
    def draws(self) -> bool:
        """Return whether its graph draws random numbers that `rng` does not seed."""
        graph = self._function.traced.graph.as_graph_def()
        # Bodies of `tf.cond` and loops are functions of the library.
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        return any(node.op.startswith(DRAWING) for node in nodes)

    def __call__(self, single: Single, place: Callable[[Tensor], ElementPlace]) -> list[Single]:
        """Return what becomes of an element; raises `OpError` with the place that its row stands for."""
        columns, row = single
        try:
            with tf.device("/CPU:0"):
                found = self._function(columns, row)
        except BaseException as error:  # a graph may raise TensorFlow's errors, and a py_function anything
            if is_interrupt(error):
                raise
            raise _failed(self.ops, error, place(row)) from error
        if isinstance(self.ops[0], Filter):
            return [single] if bool(found) else []
        if isinstance(self.ops[0], FlatMap):
            outputs, rows = found
            return [
                ({name: column[number] for name, column in outputs.items()}, rows[number])
                for number in range(int(rows.shape[0]))
            ]
        return [(found, row)]

    def _mapped(self, columns: TensorColumns, row: Tensor) -> TensorColumns:
        given = dict(columns)
        recording = Recording(columns)
        columns = recording
        for op in self.ops:
            assert isinstance(op, Map)
            columns = apply_map(op, columns, row)
        columns = {name: _as_tensor(value) for name, value in columns.items()}
        self._note(recording, given, columns)
        return columns

    def _kept(self, columns: TensorColumns, row: Tensor) -> Tensor:
        recording = Recording(columns)
        given = dict(recording)
        # The answer may be an array of one value.
        keep = tf.reshape(tf.cast(call(self.ops[0], recording, row), tf.bool), [])
        # The answer under a name that no column has, so that what flows into it counts as read.
        self._note(recording, given, {**given, "": keep})
        return keep

    def _spread(self, columns: TensorColumns, row: Tensor) -> tuple[TensorColumns, Tensor]:
        recording = Recording(columns)
        given = dict(recording)
        (op,) = self.ops
        assert isinstance(op, FlatMap)
        outputs = {name: _as_tensor(value) for name, value in apply_flat_map(op, recording, row).items()}
        self._note(recording, given, outputs)
        count = tf.shape(next(iter(outputs.values())), tf.int64)[0]
        return outputs, rows_of_outputs(row, count)

    def _note(self, recording: Recording, given: TensorColumns, outputs: TensorColumns) -> None:
        """Note which columns were asked for, or flow into what the operator has made."""
        (op, *_) = self.ops
        made = [value for name, value in outputs.items() if value is not given.get(name)]
        self._traced.writes |= {name for name in given if name in outputs and outputs[name] is not given[name]}
        # It is given this column and no other.
        if op.on is not None:
            self._traced.reads = {op.on}
            self._traced.writes &= {op.on}
            return
        # Both ways: a copy of the dict (`{**element}`) notes nothing, but its tensors flow into what is made.
        self._traced.reads |= recording.seen | {name for name, value in given.items() if _feeds_into(value, made)}

    def _spec_behind(self, spec: ColumnSpecs) -> ColumnSpecs:
        if isinstance(self.ops[0], Filter):
            return spec
        outputs = self._function.traced.structured_outputs
        if isinstance(self.ops[0], FlatMap):
            return {name: _row_spec(column) for name, column in outputs[0].items()}
        return {name: tf.type_spec_from_value(column) for name, column in outputs.items()}


def compile_groups(ops: Sequence[ElementOp]) -> list[list[ElementOp]]:
    """Return the operators in the groups that the engine compiles together: consecutive maps."""
    groups: list[list[ElementOp]] = []
    for op in ops:
        if groups and isinstance(op, Map) and isinstance(groups[-1][-1], Map):
            groups[-1].append(op)
        else:
            groups.append([op])
    return groups


def columns_of(single: Single) -> Element:
    """Return the columns of an element as NumPy arrays and bytes."""
    return {name: as_column(value) for name, value in single[0].items()}


def _forget(rows: Any) -> None:
    """Take no note of what a filter drops."""


def _as_tensor(value: Any) -> Any:
    return value if isinstance(value, tf.RaggedTensor) else tf.convert_to_tensor(value)


def _row_spec(column: Any) -> Any:
    spec = tf.type_spec_from_value(column)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(spec.shape[1:], spec.dtype, spec.ragged_rank - 1, spec.row_splits_dtype)
    return tf.TensorSpec(spec.shape[1:], spec.dtype)


def _feeds_into(source: Any, made: Iterable[Any]) -> bool:
    """Tell whether a tensor of a graph is among the inputs of others, directly or not."""
    wanted = {id(tensor) for tensor in tf.nest.flatten(source, expand_composites=True)}
    todo = [tensor.op for value in made for tensor in tf.nest.flatten(value, expand_composites=True)]
    seen: set[int] = set()
    while todo:
        operation = todo.pop()
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        if any(id(tensor) in wanted for tensor in operation.inputs):
            return True
        # Control inputs as well: an assertion on a column is a look at it.
        todo += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return False


def _failed(ops: Sequence[ElementOp], error: BaseException, place: ElementPlace) -> ElementError:
    where, file, number = place
    name = " + ".join(op.name for op in ops)
    text = f"{name} failed on {where}: {describe_error(error)}"
    return OpError(text, op=name, file=file, element=number, column=ops[0].on)
