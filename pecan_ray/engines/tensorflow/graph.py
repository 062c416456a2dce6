"""From a plan to a tf.data graph whose elements are (columns, row); see `meta` for the row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

import pecan_ray.engines.tensorflow.checks as checks
import pecan_ray.engines.tensorflow.meta as meta
import pecan_ray.engines.tensorflow.mixing as mixing
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.fill_value import fill_value
from pecan_ray.engines.global_generators import global_generators
from pecan_ray.engines.lease_replay import passes_before
from pecan_ray.engines.tensorflow.broadcast_constants import GraphFunction
from pecan_ray.engines.tensorflow.columns import Tensor, TensorColumns
from pecan_ray.engines.tensorflow.epochs import with_epoch_number
from pecan_ray.engines.tensorflow.feed import GraphFeed, unbatch_rows
from pecan_ray.engines.tensorflow.graph_facts import GraphFacts
from pecan_ray.engines.tensorflow.iterating import pool_size
from pecan_ray.engines.tensorflow.observed_calls import ObservedCalls
from pecan_ray.engines.tensorflow.op_calls import apply_flat_map, apply_map, filter_result, length_of
from pecan_ray.engines.tensorflow.outputs import new_outputs, rows_of_outputs
from pecan_ray.engines.tensorflow.own_seed import without_global_seed
from pecan_ray.engines.tensorflow.repeat_passes import AssignedPasses, EndlessRepeat
from pecan_ray.engines.tensorflow.sums import OpPassage, Sums, columns_bytes
from pecan_ray.errors import OutputTypeError, PecanError, PlanError, describe_error
from pecan_ray.plan.empty_pass import EmptyPasses, endless_behind, operators_before
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.operators import (
    Autocache,
    Batch,
    BatchingOp,
    Filter,
    FlatMap,
    Join,
    Map,
    Op,
    PaddedBatch,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    Unbatch,
)
from pecan_ray.plan.shape import name_of_last
from pecan_ray.sampling.random_keys import graph_seed, mix_key, shuffle_key
from pecan_ray.sources.tf_seeds import DatasetPass, SeedFold, fold_seeds

Data = Any
"""A tf.data.Dataset."""


class Graph:
    """Builds the graphs of one plan; functions are traced once, so that a later stretch begins at once."""

    def __init__(
        self,
        plan: Plan,
        options: EngineOptions,
        dropped: Callable[[Any], None],
        numbers: Iterator[int],
        sums: Sums | None = None,
    ) -> None:
        """`numbers`: of the stretches of this worker, each of which draws random numbers of its own."""
        self._plan, self._options, self._dropped, self._sums, self._numbers = plan, options, dropped, sums, numbers
        self.calls = ObservedCalls()
        self._should_watch = False
        """Whether what fails now is found by its calls, and not by its positions."""
        self._facts = GraphFacts.of(plan)
        self._deterministic = options.order == "strict"
        self._traced: dict[tuple[Any, ...], GraphFunction] = {}
        self._producers: dict[str, str] = {}
        """By column, the operator that has made it last, which a message names."""
        self._epoch, self._seeds = 0, SeedFold(DatasetPass())
        self._passes: AssignedPasses | None = None
        self.failed: PlanError | None = None
        """Why the graph has ended early."""

    def dataset(self, feeds: Sequence[GraphFeed], epoch: int) -> Data | None:
        """Return the graph of one stretch, or None if it has no elements."""
        self._epoch, self._passes = epoch, AssignedPasses(feeds) if self._facts.drained else None
        # Operations that hold a state of their own begin anew with each graph: their seeds are other ones in each
        # stretch of each worker.
        number, worker = next(self._numbers), global_generators.number
        self._seeds = SeedFold(DatasetPass(self._options.seed, epoch, number, shard=worker))
        data = self._of_plan(with_epoch_number(self._plan, epoch), iter(feeds))
        if data is None:
            return None
        checks.check_columns(
            name_of_last(self._plan.ops),
            data.element_spec[0],
            self._producers,
            ragged=True,
            where="it leaves the graph",
        )
        options = tf.data.Options()
        # AUTOTUNE's budget stays the CPUs.
        options.threading.private_threadpool_size = pool_size(self._options.threads, len(feeds))
        # Elements run beside each other; an operation that took several threads would take them from other
        # elements.
        options.threading.max_intra_op_parallelism = 1
        options.autotune.cpu_budget = self._options.threads
        options.deterministic = self._deterministic
        # Decision 19: threads that map write into the batch, if a map comes right before it.
        options.experimental_optimization.map_and_batch_fusion = True
        return data.prefetch(tf.data.AUTOTUNE).with_options(options)

    def _of_plan(self, plan: Plan, feeds: Iterator[GraphFeed]) -> Data | None:
        if self._facts.serial:
            plan = replace(plan, ops=endless_behind(plan.ops))
        data = self._of_head(plan, feeds)
        todo = list(plan.ops)
        self._should_watch = self._facts.serial or _batches(plan.head)
        while todo and data is not None:
            maps = [op for op in itertools.takewhile(lambda op: isinstance(op, Map), todo) if isinstance(op, Map)]
            if maps:
                data = self._mapped(data, maps)
                todo = todo[len(maps) :]
                continue
            self._should_watch = self._should_watch or isinstance(todo[0], BatchingOp)
            op = todo.pop(0)
            try:
                data = self._stage(op, data, plan)
            except PecanError:
                raise
            except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
                raise OutputTypeError(
                    f"{op.name}: tf.data cannot do it with {data.element_spec[0]}: {describe_error(error)}", op=op.name
                ) from error
        return data

    def _of_head(self, plan: Plan, feeds: Iterator[GraphFeed]) -> Data | None:
        if isinstance(plan.head, Join):
            return self._joined(plan.head, [self._of_plan(branch, feeds) for branch in plan.head.inputs])
        feed = next(feeds)
        return None if feed.signature is None else feed.dataset()

    def _joined(self, join: Join, branches: list[Data | None]) -> Data | None:
        # A source without elements has no signature, and no dataset.
        there = [data for data in branches if data is not None]
        if not there or (join.kind == "zip" and len(there) < len(branches)):
            return None
        try:
            if join.kind == "zip":
                return tf.data.Dataset.zip(*there).map(tf.autograph.experimental.do_not_convert(_merged))
            if join.kind == "mix":
                shares = mixing.shares(join, self._epoch, [data is not None for data in branches])
                first = join.stop == "first"
                seed, again = graph_seed(mix_key(self._options.seed, self._epoch)), self._facts.has_repeat
                with without_global_seed():
                    return tf.data.Dataset.sample_from_datasets(
                        there, shares, seed, stop_on_empty_dataset=first, rerandomize_each_iteration=again
                    )
            return there[0] if len(there) == 1 else _concatenated(there)
        except TypeError as error:
            raise PlanError(f"{join.kind}: the pipelines yield different columns or dtypes: {error}") from error

    def _stage(self, op: Op, data: Data, plan: Plan) -> Data:
        if isinstance(op, Filter):
            return self._filtered(data, op)
        if isinstance(op, FlatMap):
            return self._spread(data, op)
        if isinstance(op, Batch):
            return self._batched(data, op)
        if isinstance(op, (PaddedBatch, BucketByLength)):
            return self._padded(data, op)
        if isinstance(op, Unbatch):
            return self._unbatch(data, op, plan)
        if isinstance(op, Shuffle):
            return self._shuffled(data, op)
        if isinstance(op, Take):
            return data.take(op.count)
        if isinstance(op, Skip):
            return data.skip(op.count)
        if isinstance(op, Repeat):
            return self._repeat(data, op, plan)
        if isinstance(op, Prefetch):
            return data.prefetch(op.count)
        if isinstance(op, Autocache):
            return data  # what the source gives is kept before the graph
        raise PlanError(f"{op.name}: the tensorflow engine does not know the operator {type(op).__name__}.")

    def _batched(self, data: Data, op: Batch) -> Data:
        # In parallel it takes half as long again for lines of text, and 7 % longer for photographs.
        return data.batch(op.size, drop_remainder=op.drop_remainder and op is not self._facts.last)

    def _unbatch(self, data: Data, op: Unbatch, plan: Plan) -> Data:
        if data.element_spec[1].shape.rank == 1:
            return self._rows_of_elements(data, op, plan)
        return unbatch_rows(self._in_rows(data, op, plan))

    def _shuffled(self, data: Data, op: Shuffle) -> Data:
        seed = graph_seed(shuffle_key(op, self._options.seed, self._epoch))
        again = self._facts.has_repeat and op.reshuffle
        with without_global_seed():
            return data.shuffle(op.buffer, seed=seed, reshuffle_each_iteration=again)

    def _repeat(self, data: Data, op: Repeat, plan: Plan) -> Data:
        """Repeat what is before: each iteration of a dataset reads its sources, and draws, anew."""
        if self._passes is not None:
            before, mine = passes_before(plan, op), op.count
            return self._passes.dataset(data, None if before is None or mine is None else before * mine)
        if not self._facts.serial:
            return data  # the job deals out the splits again, and nothing is kept back
        if op.count is not None:
            return data.repeat(op.count)
        return EndlessRepeat(EmptyPasses.of(op, operators_before(plan, op)), self._fail).dataset(data)

    def _fail(self, error: PlanError) -> None:
        self.failed = error

    # --- element operators ---------------------------------------------------------------------------------

    def _parallel(self, data: Data, ops: Sequence[Op | checks.RowCheck], run: Callable[..., Any]) -> Data:
        # Names are unique in a plan; the spec is part of the key, because it may differ from stretch to
        # stretch.
        key = (*((type(op), op.name) for op in ops), *tf.nest.flatten(data.element_spec, expand_composites=True))
        if key not in self._traced:
            asks = isinstance(ops[0], checks.RowCheck)  # costs little, and no element alone shows what it finds
            if asks or (self._should_watch and self._options.on_error != "raise"):
                run = self.calls.observe(run, ops)
            before = self._seeds.requests
            with fold_seeds(self._seeds):
                traced = _traced(run, data.element_spec, "/".join(op.name for op in ops))
            # What it has taken of this epoch, seeds or its number, are constants of the trace.
            if self._seeds.requests == before and self._facts.told_epoch.isdisjoint(op.name for op in ops):
                self._traced[key] = traced
        else:
            traced = self._traced[key]
        data = data.map(traced, num_parallel_calls=tf.data.AUTOTUNE, deterministic=self._deterministic)
        # An error would end the stream. What failed is found later, because it does not come out.
        return data if self._options.on_error == "raise" else data.ignore_errors(log_warning=False)

    def _mapped(self, data: Data, ops: list[Map]) -> Data:
        """Run consecutive maps as one function: one hand-over between threads for all of them."""

        def run(columns: TensorColumns, row: Tensor) -> tuple[TensorColumns, Tensor]:
            passages: list[OpPassage] = []
            for op in ops:
                given, columns = columns, apply_map(op, columns, row)
                self._producers.update({name: op.name for name in columns if columns[name] is not given.get(name)})
                passages.append((op.name, given, 1, functools.partial(columns_bytes, columns)))
            return checks.settled(ops[-1].name, columns, self._producers), self._row_number(row, passages)

        return self._parallel(data, ops, run)

    def _row_number(self, row: Tensor, passages: list[OpPassage]) -> Tensor:
        """Return the row of an element, or of a batch, which is not counted."""
        if self._sums is None or row.shape.rank != 1:
            return row
        with tf.control_dependencies([self._sums.add(row, passages)]):
            return tf.identity(row)

    def _filtered(self, data: Data, op: Filter) -> Data:
        """Decide in parallel, then drop; what is dropped is noted."""

        def run(columns: TensorColumns, row: Tensor) -> tuple[TensorColumns, Tensor, Tensor]:
            keep = filter_result(op, columns, row)
            kept = tf.cast(keep, tf.int64)
            row = self._row_number(row, [(op.name, columns, kept, lambda: kept * columns_bytes(columns))])
            # Noted inside of the graph: nothing else tells that an element which does not come out was meant
            # to stay there.
            return columns, row, tf.cond(keep, lambda: True, lambda: self._note_dropped(row))

        # `Dataset.filter` calls its function for one element at a time, so it only looks at the answer here.
        data = self._parallel(data, [op], run).filter(lambda columns, row, keep: keep)
        return data.map(lambda columns, row, keep: (columns, row))

    def _note_dropped(self, row: Tensor) -> Tensor:
        def note(rows: Any) -> Any:
            self._dropped(rows)
            return np.False_

        return tf.reshape(tf.numpy_function(note, [row], tf.bool), [])

    def _spread(self, data: Data, op: FlatMap) -> Data:
        """Give each output of an element a row of its own; those that were delivered before are dropped."""
        if data.element_spec[1].shape.rank != 1:
            raise PlanError(
                f"{op.name}: the tensorflow engine has no flat_map of whole batches; put unbatch before it."
            )

        def run(columns: TensorColumns, row: Tensor) -> tuple[TensorColumns, Tensor]:
            outputs = apply_flat_map(op, columns, row)
            count = tf.cast(checks.count_of(next(iter(outputs.values()))), tf.int64)
            row = self._row_number(row, [(op.name, columns, count, lambda: columns_bytes(outputs))])
            return outputs, self._rows_for(row, count)

        return new_outputs(unbatch_rows(self._parallel(data, [op], run)))

    def _rows_of_elements(self, data: Data, op: Unbatch, plan: Plan) -> Data:
        """Give each row of an element that is no batch of ours, but holds rows, a row of its own."""
        made_by = name_of_last(plan.ops[: plan.ops.index(op)])
        checks.check_columns(
            made_by, data.element_spec[0], self._producers, ragged=True, where=f"{op.name} takes its rows"
        )

        def run(columns: TensorColumns, row: Tensor) -> tuple[TensorColumns, Tensor]:
            columns = checks.same_rows(made_by, columns)
            return columns, self._rows_for(row, tf.cast(checks.count_of(next(iter(columns.values()))), tf.int64))

        return new_outputs(unbatch_rows(self._parallel(data, [checks.RowCheck(made_by)], run)))

    def _rows_for(self, row: Tensor, count: Tensor) -> Tensor:
        """Return a row for each output of an element; that it has none is noted."""
        rows = rows_of_outputs(row, count)
        return tf.cond(count > 0, lambda: rows, lambda: self._without(row, rows))

    def _without(self, row: Tensor, rows: Tensor) -> Tensor:
        with tf.control_dependencies([self._note_dropped(row)]):
            return tf.identity(rows)

    # --- batches of unequal elements -----------------------------------------------------------------------

    def _padded(self, data: Data, op: PaddedBatch | BucketByLength) -> Data:
        columns, row = data.element_spec
        checks.check_columns(op.name, columns, self._producers, ragged=False, where="it is padded")
        checks.check_ranks(op.name, columns)
        if isinstance(op, BucketByLength) and not callable(op.length):
            checks.check_has_length(op.name, columns, op.length)
        shapes = {name: _padded_shape(op, name, spec) for name, spec in columns.items()}
        padding = {name: _padding(op, name, spec) for name, spec in columns.items()}
        drop, zero = op.drop_remainder and op is not self._facts.last, tf.constant(0, tf.int64)
        if isinstance(op, PaddedBatch):
            return data.padded_batch(op.size, (shapes, row.shape), (padding, zero), drop_remainder=drop)

        def measured(columns: TensorColumns, row: Tensor) -> tuple[TensorColumns, Tensor, Tensor]:
            place = tf.reduce_sum(tf.cast(length_of(op, columns) >= tf.constant(op.boundaries), tf.int32))
            size = tf.gather(tf.constant(op.sizes, tf.int64), place)
            return columns, tf.concat([row[: meta.SIZE], size[tf.newaxis]], 0), place

        data = self._parallel(data, [op], measured) if callable(op.length) else data.map(measured)
        data = data.bucket_by_sequence_length(
            lambda columns, row, place: place,
            # Buckets were found above, with their sizes in the row; tf.data sorts by their numbers alone.
            bucket_boundaries=list(range(1, len(op.sizes))),
            bucket_batch_sizes=list(op.sizes),
            padded_shapes=(shapes, row.shape, []),
            padding_values=(padding, zero, 0),
            drop_remainder=drop,
        )
        return data.map(lambda columns, row, place: (columns, row))

    def _in_rows(self, data: Data, op: Unbatch, plan: Plan) -> Data:
        """Let batches through that have a row for each of their elements."""
        made_by = name_of_last(plan.ops[: plan.ops.index(op)])
        checks.check_columns(
            made_by, data.element_spec[0], self._producers, ragged=True, where=f"{op.name} takes its rows"
        )
        check = checks.RowCheck(made_by)
        return self._parallel(data, [check], lambda columns, row: (check.checked(columns, row), row))


def _traced(run: Callable[..., Any], spec: Any, name: str) -> GraphFunction:
    """Return the graph of operators; what they return may not fit into one."""
    try:
        return GraphFunction(run, *spec)
    except PecanError:
        raise
    except (TypeError, ValueError) as error:
        raise OutputTypeError(
            f"{name}: what it returns cannot be used in a TensorFlow graph: {describe_error(error)}", op=name
        ) from error


def _batches(head: Any) -> bool:
    """Tell whether something is batched before a join."""
    plans = head.inputs if isinstance(head, Join) else ()
    return any(_batches(plan.head) or any(isinstance(op, BatchingOp) for op in plan.ops) for plan in plans)


def _merged(*branches: tuple[TensorColumns, Tensor]) -> tuple[TensorColumns, Tensor]:
    columns: TensorColumns = {}
    for branch, _ in branches:
        clash = sorted(columns.keys() & branch.keys())
        if clash:
            raise PlanError(f"zip: both sides have the column {clash[0]!r}. Rename it on one side by a map before zip.")
        columns.update(branch)
    return columns, branches[0][1]


def _concatenated(branches: list[Data]) -> Data:
    data = branches[0]
    for branch in branches[1:]:
        data = data.concatenate(branch)
    return data


def _padded_shape(op: PaddedBatch | BucketByLength, name: str, spec: Any) -> Any:
    fixed = (op.shapes or {}).get(name) if isinstance(op, PaddedBatch) else None
    return tf.TensorShape(fixed) if fixed is not None else tf.TensorShape([None] * spec.shape.rank)


def _padding(op: PaddedBatch | BucketByLength, name: str, spec: Any) -> Tensor:
    value = op.padding.get(name, 0) if isinstance(op.padding, dict) else op.padding
    if spec.dtype == tf.string:
        return tf.constant(value if isinstance(value, (str, bytes)) else "")
    return tf.constant(fill_value(value, np.dtype(spec.dtype.as_numpy_dtype), name, op.name))
