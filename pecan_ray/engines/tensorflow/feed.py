"""From leases to tensors: the elements of one source, in chunks, with the rows that say where they come from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from pecan_ray.engines.caching import CachedReading, SplitCache
from pecan_ray.engines.contract import BadElement, EngineOptions, Leases
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.lease_replay import LeaseReplay
from pecan_ray.engines.positions import Part, SkippedPositions
from pecan_ray.engines.reading import Run, end_split, read_lease, read_lease_columns
from pecan_ray.engines.serializable import why_columns_not_serializable
from pecan_ray.engines.side_by_side import ONE_AFTER_THE_OTHER, Streams, TakeBeside, in_turn, next_of, take_concurrent
from pecan_ray.engines.tensorflow.chunks import (
    Chunk,
    Read,
    Signature,
    chunk_bounds,
    columns_of,
    convert,
    elements_of,
    signature_of,
)
from pecan_ray.engines.tensorflow.elements import computed_at_once, of_tensors
from pecan_ray.engines.tensorflow.meta import WIDTH, rows_of, rows_of_run
from pecan_ray.engines.tensorflow.shard_batches import is_rest_of_shard, read_in_runs
from pecan_ray.errors import OutputTypeError, PecanError, SourceError
from pecan_ray.plan.operators import Autocache
from pecan_ray.plan.splits import END, OUTPUT_BITS, ColumnarSource, Lease, LeaseKey, Source, of_lease, origin_of
from pecan_ray.sampling.spans import Spans
from pecan_ray.sources.memory import Arrays
from pecan_ray.sources.tf_data import TfDataSource


@dataclass(frozen=True)
class KeptPoint:
    """Where a worker keeps the elements that go into its graph."""

    cache: SplitCache
    point: Autocache
    read: Callable[[Lease, Leases, SkippedPositions], ItemIterator] | None
    """Reads the elements of a lease at the point; None: the point stands behind the source."""


class Outstanding:
    """The positions that went into the graph and have not come out."""

    def __init__(self) -> None:
        self._spans: dict[LeaseKey, Spans] = {}
        self._lock = threading.Lock()
        """Guards `_spans` and `last`: the graph takes from a thread of its own."""
        self.last: Part | None = None
        """The positions that went in last."""

    def add(self, parts: list[Part]) -> None:
        """Note positions that went in."""
        with self._lock:
            self.last = parts[-1] if parts else self.last
            for key, start, stop in parts:
                self._spans.setdefault(key, Spans()).add(start, stop)

    def remove(self, parts: list[Part]) -> None:
        """Note positions that came out, or that a filter dropped."""
        with self._lock:
            for key, start, stop in parts:
                self._spans.setdefault(key, Spans()).remove(start, stop)

    def forget_runs(self) -> None:
        """Forget what a run over the source before the last one has left: a next one begins."""
        with self._lock:
            last = max((pass_index for _, pass_index, _ in self._spans), default=0)
            self._spans = {key: spans for key, spans in self._spans.items() if key[1] == last}

    def parts(self) -> list[Part]:
        """Return what is still inside."""
        with self._lock:
            return [(key, start, stop) for key, spans in self._spans.items() for start, stop in spans]


class GraphFeed:
    """Reads one source's leases for one stretch.

    `keyed` tells whether an operator needs the elements' random keys, which cost as much as all else of a short line.
    `runs`: the leases of a plan that runs as a whole, for as many runs as the graph makes; its positions count as dealt
    with when all of them are.  `elements_at_a_time`: the most elements of a user's dataset in one chunk.
    """

    def __init__(
        self,
        branch: int,
        source: Source,
        leases: Leases,
        skipped_positions: SkippedPositions,
        options: EngineOptions,
        signature: Signature | None,
        *,
        keyed: bool = True,
        runs: LeaseReplay | None = None,
        streams: Streams = ONE_AFTER_THE_OTHER,
        elements_at_a_time: int = 1,
        kept: KeptPoint | None = None,
    ) -> None:
        self.branch, self._source, self._leases, self._runs = branch, source, runs or leases, runs
        self._skipped_positions, self.options = skipped_positions, options
        self._seed, self._splits_at_a_time = options.seed if keyed else None, streams
        self._columnar = source if isinstance(source, ColumnarSource) else None
        self._elements_at_a_time = elements_at_a_time
        self._computed = None if kept is None else kept.read
        """Reads the elements that are kept behind functions; None: the point stands behind the source."""
        self._cached = None
        """How the source is read where what goes into the graph is kept."""
        if kept is not None:
            self._cached = CachedReading(kept.cache, kept.point, self._leases, skipped_positions, self._items_at_point)
        self.signature = signature
        self.epoch = 0
        self._taken: dict[int, Lease] = {}
        """The lease that was read last of each split, by the split's number."""
        self.outstanding = Outstanding()
        self.error: PecanError | None = None
        self.is_waiting = False
        """It waits for a lease."""
        self.stopped = False
        """Nobody wants what the graph makes: it is given nothing more, and so ends also where it yields nothing."""
        self._read = self._read_all()
        self._has_started = False
        """The graph has begun to read."""
        self._first: Read | Run | None = None
        """The elements that were read and that the graph was not given yet."""
        self.current_pass: int | None = None
        """The graph is given nothing of later passes; None: it is given all passes as one."""

    def open(self) -> Signature | None:
        """Read the first element; return the columns' dtypes and ranks, or None if there never was an element."""
        if self._first is None:
            self._first = self._next()
        while self.signature is None and self._first is not None:
            first = next(_one_by_one(self._first))
            try:
                self.signature = signature_of(first, isinstance(self._source, Arrays) and self._computed is None)
            except OutputTypeError as error:
                self._apply_on_error(first, error)
                self._first = _without_first(self._first) or self._next()
        return self.signature

    def _next(self) -> Read | Run | None:
        read = next(self._read, None)
        if self.error is not None:
            raise self.error
        return read

    def _apply_on_error(self, read: Read, error: OutputTypeError) -> None:
        """Follow `on_error` for an element that cannot go into the graph."""
        if self.options.on_error == "raise":
            raise error
        kept = read.value if self.options.on_error == "quarantine" else None
        # What cannot be written is told without the element.
        if kept is not None and why_columns_not_serializable(kept):
            kept = None
        where, origin = read.lease.split.where(read.number), origin_of(read.lease, read.number)
        bad = BadElement("source", where, error.message.splitlines()[0], kept, origin)
        # Where the plan runs as a whole its position counts as dealt with when all do.
        self._skipped_positions.add([] if self._runs is not None else read.parts, bad)

    def dataset(self) -> Any:
        """Return the elements as a tf.data.Dataset of (columns, row)."""
        assert self.signature is not None
        chunked = {
            name: tf.TensorSpec((None, *spec.shape.as_list()), spec.dtype) for name, spec in self.signature.items()
        }
        signature = (chunked, tf.TensorSpec((None, WIDTH), tf.int64))
        # Two chunks ahead: one is taken apart while Python makes the next one.
        return unbatch_rows(tf.data.Dataset.from_generator(self._chunks, output_signature=signature).prefetch(2))

    def next_pass(self) -> int | None:
        """Return the pass of the next element; None if there is none."""
        if self._first is None:
            self._first = next(self._read, None)
        return None if self._first is None else self._first.lease.pass_index

    def lease_of(self, key: LeaseKey) -> Lease:
        """Return a lease of a split in one of its passes."""
        _, pass_index, split = key
        return replace(self._taken[split], pass_index=pass_index)

    def reload(self, key: LeaseKey, number: int) -> Read:
        """Return one element anew, from its split."""
        lease = self.lease_of(key)
        return Read(lease, number, next(iter(of_lease(self._source, lease).read(lease.split, number))), [])

    def last_given(self) -> str:
        """Say in words which element was given to the graph last; empty if none was."""
        if self.outstanding.last is None:
            return ""
        key, _, stop = self.outstanding.last
        return self.lease_of(key).split.where((stop - 1) >> OUTPUT_BITS)

    def _read_all(self) -> Iterator[Read | Run]:
        """Yield what the leases of the next run over the source give."""
        if self._runs is None:
            take = take_concurrent(self._leases, self.branch, self._splits_at_a_time)
        else:
            take = next_of(self._runs.run(self.branch))
        try:
            yield from in_turn(partial(self._take, take), self._splits_at_a_time, self._read_lease, _elements)
        except SourceError as error:
            # Kept and raised by the engine: what is raised inside a graph comes out as text.
            self.error = error

    def _take(self, take: TakeBeside, reading: int) -> Lease | None:
        self.is_waiting = True
        try:
            lease = None if self.stopped else take(reading)
        finally:
            self.is_waiting = False
        if lease is not None:
            self._skipped_positions.begin_pass(lease.pass_index)
        return lease

    def _read_lease(self, lease: Lease) -> Iterator[Read | Run]:
        self._taken[lease.split.index] = lease
        self.epoch = lease.epoch
        if self._cached is not None:
            yield from self._read_cached(self._cached, lease)
            return
        given = (lease, self._leases, self._skipped_positions, self.options.on_error)
        if self._columnar is not None:
            for run in read_lease_columns(self._columnar, *given):
                yield from run.chunks(self._splits_at_a_time.turn) if self._splits_at_a_time.count > 1 else (run,)
            return
        if isinstance(self._source, TfDataSource) and self._elements_at_a_time > 1 and is_rest_of_shard(lease):
            rest = yield from self._read_in_runs(self._source, lease)
            if rest is None:
                return
            given = (rest, *given[1:])
        for number, value, parts in read_lease(self._source, *given):
            yield Read(lease, number, value, parts)

    def _read_cached(self, cached: CachedReading, lease: Lease) -> Iterator[Read]:
        """Yield the elements of a lease as they were kept, or as the source gives them, which are recorded."""
        # Values go into chunks by a copy.  What is due without a batch is reported beside the graph.
        for item in cached.items_at_once(lease):
            if item is None:
                continue
            if not item.kept:
                cached.record(item, [item])
            yield Read(lease, item.element, item.value, item.parts)

    def _items_at_point(self, lease: Lease, leases: Leases) -> ItemIterator:
        if self._computed is not None:
            items = of_tensors(self._computed(lease, leases, self._skipped_positions))
            yield from computed_at_once(items) if self._splits_at_a_time.count > 1 else items
            return
        given = (lease, leases, self._skipped_positions, self.options.on_error)
        for number, value, parts in read_lease(self._source, *given):
            yield Item(value, parts, lease, number, width=1 << OUTPUT_BITS)

    def _read_in_runs(self, source: TfDataSource, lease: Lease) -> Generator[Run, None, Lease | None]:
        """Yield the elements of a shard; return a lease of those to be read one by one, if there are any."""
        number = lease.spans[0][0] >> OUTPUT_BITS
        try:
            for run in read_in_runs(source, self.options.threads, lease, self._elements_at_a_time):
                yield run
                number = run.first + run.rows
        except PecanError:
            raise
        except Exception:  # read one by one, what fails is named
            self._elements_at_a_time = 1
            return replace(lease, spans=((number << OUTPUT_BITS, END),))
        end_split(lease, number, self._leases, self._skipped_positions)
        return None

    def _chunks(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield chunks for the graph; ends at an error, which is kept, and raised where the plan runs as a whole."""
        assert self.signature is not None
        chunk = Chunk(self.signature)
        try:
            for read in self._everything():
                if isinstance(read, Run) and (columns := columns_of(read, self.signature)) is not None:
                    # What came one by one goes first: elements keep their order.
                    if chunk.rows:
                        yield self._flush_chunk(chunk)
                    yield from self._cut(read, columns)
                    continue
                for element in _one_by_one(read):
                    try:
                        values = convert(element, self.signature)
                    except OutputTypeError as error:
                        self._apply_on_error(element, error)
                        continue
                    if chunk.rows and not chunk.takes(values):
                        yield self._flush_chunk(chunk)
                    chunk.add(values, rows_of(element.lease, element.number, element.parts, self._seed), element.parts)
        except PecanError as error:
            self.error = error
        if chunk.rows:
            yield self._flush_chunk(chunk)
        self._raise_in_whole_plan()

    def _raise_in_whole_plan(self) -> None:
        if self._runs is not None and self.error is not None:
            # The graph keeps its place: `take` may end before it, and nothing is taken from behind it.
            raise self.error

    def _cut(self, run: Run, columns: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        for start, stop in chunk_bounds(columns, run.rows):
            # Before the `yield`: the graph may give elements out before this generator is asked again.
            self.outstanding.add(run.parts(start, stop))
            rows = rows_of_run(run.lease, run.first + start, run.first + stop, self._seed)
            yield {name: column[start:stop] for name, column in columns.items()}, rows

    def _flush_chunk(self, chunk: Chunk) -> tuple[dict[str, Any], Any]:
        """Hand a chunk over, whose positions are then inside of the graph."""
        # Before the chunk is handed over, as in `_cut`.
        self.outstanding.add(chunk.parts)
        return chunk.flush()

    def _everything(self) -> Iterator[Read | Run]:
        """Yield all that this iteration of the graph is given."""
        if self._has_started and self._runs is not None:  # `repeat` has begun it anew
            self.outstanding.forget_runs()
            yield from self._read_all()
            return
        self._has_started = True
        while self.next_pass() is not None:
            read, self._first = self._first, None
            assert read is not None
            # The next pass begins with it.
            if self.current_pass is not None and read.lease.pass_index > self.current_pass:
                self._first = read
                return
            yield read


def _elements(read: Read | Run) -> int:
    return 1 if isinstance(read, Read) else read.rows


def _without_first(read: Read | Run) -> Run | None:
    """Return the elements behind the first one of a run; None where there are none."""
    if isinstance(read, Read) or read.rows == 1:
        return None
    columns = {name: column[1:] for name, column in read.columns.items()}
    return replace(read, first=read.first + 1, rows=read.rows - 1, columns=columns)


def _one_by_one(read: Read | Run) -> Iterator[Read]:
    return elements_of(read) if isinstance(read, Run) else iter((read,))


def _never_empty(spec: Any) -> bool:
    """Tell whether each row of a tensor is sure to hold something."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return False
    return all(length is not None and length > 0 for length in spec.shape[1:])


def unbatch_rows(data: Any) -> Any:
    """Return the rows of a dataset's elements; `Dataset.unbatch` is faster, and ends the process at empty rows."""
    if all(_never_empty(spec) for spec in tf.nest.flatten(data.element_spec)):
        return data.unbatch()
    return data.flat_map(lambda *columns: tf.data.Dataset.from_tensor_slices(columns))
