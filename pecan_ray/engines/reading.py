"""Reading leases: the elements of a split that lie in the lease's spans, and what is told about its end."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, NoReturn, TypeVar

from pecan_ray.engines.contract import Leases
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item
from pecan_ray.engines.left_out import LeaseReadErrors, elements_of_error, leave_out, nbytes_of
from pecan_ray.engines.own_results import NOTHING, own_element
from pecan_ray.engines.positions import Part, SkippedPositions
from pecan_ray.engines.stages import Recognized, ThreadStage
from pecan_ray.engines.under_way import Recognize, ThreadActivity
from pecan_ray.errors import PecanError, SourceError, StorageOutageError, describe_error, is_interrupt
from pecan_ray.options import OnError
from pecan_ray.plan.splits import (
    END,
    OUTPUT_BITS,
    Array,
    AtWork,
    ColumnarSource,
    Columns,
    Element,
    IndependentElements,
    IndependentRows,
    Lease,
    LeaseKey,
    Source,
    Split,
    as_written,
    of_lease,
    origin_of,
)
from pecan_ray.storage.local_errors import passes
from pecan_ray.storage.retry import retry

T = TypeVar("T")
C = TypeVar("C", bound="Columns | SourceError")


@dataclass(frozen=True)
class Run:
    """Consecutive elements of a split that a lease asks for, as columns."""

    lease: Lease
    first: int
    """Number of the first one in the split."""
    rows: int
    columns: Columns
    missing: tuple[tuple[int, int], ...]
    """Positions to deliver, among which may be some of other elements."""

    def parts(self, start: int, stop: int) -> list[Part]:
        """Return the positions to deliver with rows `start` to `stop`."""
        begin, end = (self.first + start) << OUTPUT_BITS, (self.first + stop) << OUTPUT_BITS
        return [(self.lease.key, max(a, begin), min(b, end)) for a, b in self.missing if a < end and b > begin]

    def row_parts(self, start: int, stop: int) -> list[Part]:
        """Return the last positions to deliver with each of some rows, of a lease of one interval."""
        key, bound = self.lease.key, self.lease.spans[-1][1]
        numbers = range(self.first + start, self.first + stop)
        return [(key, row << OUTPUT_BITS, min((row + 1) << OUTPUT_BITS, bound)) for row in numbers]

    @property
    def whole(self) -> bool:
        """Return whether all of each element is to be delivered, with all its outputs."""
        begin, end = self.first << OUTPUT_BITS, (self.first + self.rows) << OUTPUT_BITS
        return any(a <= begin and end <= b for a, b in self.missing)

    def chunks(self, rows: int) -> Iterator[Run]:
        """Yield the elements in runs of so many, and of fewer at the end."""
        for start in range(0, self.rows, rows):
            stop = min(start + rows, self.rows)
            columns = {name: self.column(name, start, stop) for name in self.columns}
            yield replace(self, first=self.first + start, rows=stop - start, columns=columns)

    def item(self, row: int) -> Item:
        """Return a row as an element, without its positions."""
        value = {name: column[row] for name, column in self.columns.items()}
        return Item(value, [], self.lease, self.first + row)

    def column(self, name: str, start: int, stop: int) -> Array:
        """Return rows of a column."""
        return self.columns[name][start:stop]

    def items(self, name: str, start: int, stop: int) -> list[Item]:
        """Return rows as elements with one column."""
        column = self.columns[name]
        return [Item({name: column[row]}, [], self.lease, self.first + row) for row in range(start, stop)]


def read_lease(
    source: Source, lease: Lease, leases: Leases, skipped_positions: SkippedPositions, on_error: OnError
) -> Iterator[tuple[int, Element, list[Part]]]:
    """Yield (number in the split, value, positions to deliver) for each element that a lease asks for.

    A split read to its end is reported to `leases`.  Data that cannot be read raises `SourceError`; under
    ``on_error="skip"`` and ``"quarantine"`` it goes to `skipped_positions`, and ends the split unless elements are
    independent there.  A storage that does not answer raises always: nothing is known of the data behind it.
    """
    if on_error != "raise" and isinstance(source, IndependentElements):
        yield from _read_past_errors(source, lease, leases, skipped_positions)
        return
    number, key = lease.spans[0][0] >> OUTPUT_BITS, lease.key
    missing = deque(lease.spans)
    try:
        for value in values_of(source, lease, number):
            begin, end = number << OUTPUT_BITS, (number + 1) << OUTPUT_BITS
            start, stop = missing[0]
            # The usual case spares a call of `_until` for each element.
            whole = start <= begin and end <= stop
            parts = [(key, begin, end)] if whole else _parts(missing, key, begin, end)
            if parts:
                yield number, value, parts
            while missing and missing[0][1] <= end:
                missing.popleft()
            number += 1
            # Nobody reads on behind the lease only to learn how long the split is.
            if not missing:
                return
    except SourceError as error:
        if _is_fatal(error, on_error):
            raise
        leave_out(source, lease, number, missing, error, leases, skipped_positions)
        return
    end_split(lease, number, leases, skipped_positions)


def read_lease_columns(
    source: ColumnarSource, lease: Lease, leases: Leases, skipped_positions: SkippedPositions, on_error: OnError
) -> Iterator[Run]:
    """Yield the elements that a lease asks for in runs, as `read_lease` does one by one."""
    if on_error != "raise" and isinstance(source, IndependentRows):
        yield from _read_columns_past_errors(source, lease, leases, skipped_positions)
        return
    number = lease.spans[0][0] >> OUTPUT_BITS
    missing = deque(lease.spans)
    try:
        for columns, rows in _columns(source, source.read_columns, lease, number):
            end = (number + rows) << OUTPUT_BITS
            yield from _runs(lease, number, rows, columns, tuple(_until(missing, end)))
            while missing and missing[0][1] <= end:
                missing.popleft()
            number += rows
            if not missing:
                return
    except SourceError as error:
        if _is_fatal(error, on_error):
            raise
        leave_out(source, lease, number, missing, error, leases, skipped_positions)
        return
    end_split(lease, number, leases, skipped_positions)


def _read_past_errors(
    source: IndependentElements, lease: Lease, leases: Leases, skipped_positions: SkippedPositions
) -> Iterator[tuple[int, Element, list[Part]]]:
    """Yield as `read_lease` does what can be read, and leave single elements out."""
    number, missing = lease.spans[0][0] >> OUTPUT_BITS, deque(lease.spans)
    unreadable = LeaseReadErrors(source, lease, leases, skipped_positions)
    try:
        for value in values_or_errors(source, lease, number):
            count = elements_of_error(value) if isinstance(value, SourceError) else 1
            parts = _taken(missing, lease.key, number, count)
            if isinstance(value, SourceError):
                if not unreadable.add(number, value, parts):
                    return
            else:
                unreadable.element_read()
                if parts:
                    yield number, value, parts
            # An error may stand for many elements at once (a broken row group), and those behind it keep
            # their numbers.
            number += count
            if not missing:
                break
    except SourceError as error:
        _left_behind(source, lease, number, missing, error, unreadable)
        return
    if unreadable.ended() and missing:
        end_split(lease, number, leases, skipped_positions)


def _read_columns_past_errors(
    source: IndependentRows, lease: Lease, leases: Leases, skipped_positions: SkippedPositions
) -> Iterator[Run]:
    """Yield as `read_lease_columns` does what can be read, and leave single rows out."""
    number, missing = lease.spans[0][0] >> OUTPUT_BITS, deque(lease.spans)
    unreadable = LeaseReadErrors(source, lease, leases, skipped_positions)
    try:
        for columns, rows in _columns(source, source.read_columns_past_errors, lease, number):
            if isinstance(columns, SourceError):
                if not unreadable.add(number, columns, _taken(missing, lease.key, number, rows)):
                    return
            else:
                unreadable.element_read()
                spans = tuple(_until(missing, (number + rows) << OUTPUT_BITS))
                yield from _runs(lease, number, rows, columns, spans)
                _taken(missing, lease.key, number, rows)
            number += rows
            if not missing:
                break
    except SourceError as error:
        _left_behind(source, lease, number, missing, error, unreadable)
        return
    if unreadable.ended() and missing:
        end_split(lease, number, leases, skipped_positions)


def _taken(missing: deque[tuple[int, int]], key: LeaseKey, number: int, count: int) -> list[Part]:
    """Take positions of elements off those that are missing, and return them."""
    begin, end = number << OUTPUT_BITS, (number + count) << OUTPUT_BITS
    parts = [(key, max(a, begin), min(b, end)) for a, b in _until(missing, end) if b > begin]
    while missing and missing[0][1] <= end:
        missing.popleft()
    return parts


def _left_behind(
    source: Source,
    lease: Lease,
    number: int,
    missing: Iterable[tuple[int, int]],
    error: SourceError,
    unreadable: LeaseReadErrors,
) -> None:
    """End a split at an error behind which nothing can be read; raise what ends the job."""
    if _ends_job(error):
        raise error
    unreadable.element_read()
    leave_out(source, lease, number, missing, error, unreadable.leases, unreadable.skipped_positions)


def end_split(lease: Lease, number: int, leases: Leases, skipped_positions: SkippedPositions) -> None:
    """Tell the length of a split that was read to its end."""
    # Where a lease asks for some elements only, of a split whose length was not known, it may end before them.
    if lease.spans[-1][1] == END or number > lease.spans[0][0] >> OUTPUT_BITS:
        skipped_positions.note_length(lease.branch, number, nbytes_of(lease.split))
    leases.ended(lease, number)


def _is_fatal(error: SourceError, on_error: OnError) -> bool:
    return on_error == "raise" or _ends_job(error)


def _ends_job(error: SourceError) -> bool:
    return isinstance(error, StorageOutageError) or bool(error.fields.get("ends_job"))


def _parts(missing: deque[tuple[int, int]], key: LeaseKey, begin: int, end: int) -> list[Part]:
    """Return the missing positions of one element."""
    return [(key, max(a, begin), min(b, end)) for a, b in _until(missing, end)]


def _until(spans: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    return itertools.takewhile(lambda span: span[0] < end, spans)


def _runs(lease: Lease, first: int, rows: int, columns: Columns, spans: tuple[tuple[int, int], ...]) -> Iterator[Run]:
    """Yield those of some elements that spans touch; neighbours come together."""
    places: list[tuple[int, int]] = []
    for begin, end in spans:
        start = max((begin >> OUTPUT_BITS) - first, 0)
        # A span may end within an element, of which some outputs were delivered: the whole element has to be
        # read.
        stop = min(((end - 1) >> OUTPUT_BITS) + 1 - first, rows)
        # Two spans may touch one element, which must come once.
        if places and start <= places[-1][1]:
            places[-1] = (places[-1][0], stop)
        else:
            places.append((start, stop))
    for start, stop in places:
        cut = {name: column[start:stop] for name, column in columns.items()}
        yield Run(lease, first + start, stop - start, cut, spans)


def values_of(source: Source, lease: Lease, start: int) -> Iterator[Element]:
    """Read a split; whatever a source raises becomes a `SourceError` that says where.

    An error that passes, as of a mount that is cut off, is waited out: the split is read on from where it was.
    """
    return _values(source, of_lease(source, lease).read, lease, start, past_errors=False)


def values_or_errors(source: Source, lease: Lease, start: int) -> Iterator[Element | SourceError]:
    """Read a split as `values_of` does, and where the source can, past errors: they come in their elements' place."""
    read_here = of_lease(source, lease)
    if isinstance(read_here, IndependentElements):
        return _values(source, read_here.read_past_errors, lease, start, past_errors=True)
    return values_of(source, lease, start)


def _values(
    source: Source, read: Callable[[Split, int], Iterator[Any]], lease: Lease, start: int, *, past_errors: bool
) -> Iterator[Any]:
    # `reading_of` finds `source`, `lease` and `number` in this frame by their names: they cannot be renamed alone.
    number, generation, started = start, forks.generation, True
    # Decision 108: only sources of users may yield one dict again and again.
    ours = type(as_written(source)).__module__.startswith("pecan_ray.sources.")
    while True:
        try:
            for value in _begin(read, lease, number, started):
                if forks.generation != generation:
                    _end_child(source, lease, number)
                # Sources of users may yield one dict again and again, or an array.
                yield value if ours or type(value) is not dict else own_element(value, NOTHING, None, [])
                if past_errors and isinstance(value, SourceError):
                    number += elements_of_error(value)
                else:
                    number += 1
                # Read again behind the `yield`: a fork of whoever used the value is not the source's.
                generation = forks.generation
            return
        except PecanError:
            raise
        except BaseException as error:
            if _from_outside(error):
                raise
            if not passes(error):
                raise _read_failure(source, lease, number, error) from error
            started = False


def _columns(
    source: ColumnarSource, read: Callable[[Split, int], Iterator[C]], lease: Lease, start: int
) -> Iterator[tuple[C, int]]:
    """Read the columns of a split, and their lengths, as `values_of` reads elements."""
    # `reading_of` finds `source`, `lease` and `number` in this frame by their names, as in `_values`.
    number, generation, started = start, forks.generation, True
    while True:
        try:
            for columns in _begin(read, lease, number, started):
                if forks.generation != generation:
                    _end_child(source, lease, number)
                rows = _rows_of(columns)
                if rows:
                    yield columns, rows
                number += rows
                generation = forks.generation
            return
        except PecanError:
            raise
        except BaseException as error:
            if _from_outside(error):
                raise
            if not passes(error):
                raise _read_failure(source, lease, number, error) from error
            started = False


def _begin(read: Callable[[Split, int], Iterator[T]], lease: Lease, number: int, at_once: bool) -> Iterator[T]:
    """Begin to read a split at an element; behind a failure its first value is tried for until it comes."""
    if at_once:
        return read(lease.split, number)

    def attempt() -> Iterator[T]:
        values = read(lease.split, number)
        # A generator opens its file with the first value, so this has to be drawn inside of the attempt.
        return itertools.chain(list(itertools.islice(values, 1)), values)

    return retry(attempt, passes=passes, path=lease.split.where(number))


def _rows_of(columns: Columns | SourceError) -> int:
    if isinstance(columns, SourceError):
        return elements_of_error(columns)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"read_columns gave columns of unequal lengths: {lengths}")
    return next(iter(lengths.values()), 0)


def _end_child(source: Source, lease: Lease, number: int) -> NoReturn:
    where, file = lease.split.where(number), lease.split.file_of(number)
    element = lease.split.number_of(number)
    forks.end_child(f"read {type(as_written(source)).__name__}", where, file=file, element=element)


def reading_of(sources: Sequence[Source]) -> dict[CodeType, Recognize]:
    """Return the functions by which a stack shows that one of some sources is being read, and at which element."""
    # By identity: another engine in this process may be reading an equal source.
    mine = set(map(id, sources))

    def inspect_locals(local: Mapping[str, Any]) -> ThreadActivity | None:
        source, lease, number = local.get("source"), local.get("lease"), local.get("number")
        if id(as_written(source)) not in mine or lease is None or number is None:
            return None
        text = f"{type(as_written(source)).__name__} has been reading {lease.split.where(number)} for {{seconds}}"
        at = AtWork(f"read {type(as_written(source)).__name__}", origin_of(lease, number), reads=True)
        return ThreadActivity(("read", lease.epoch, lease.key, number), text, at)

    return {_values.__code__: inspect_locals, _columns.__code__: inspect_locals}


def reading_stages(sources: Sequence[Source]) -> dict[CodeType, Recognized]:
    """Return the functions by which a stack shows that one of some sources is being read."""
    mine = set(map(id, sources))

    def inspect_locals(local: Mapping[str, Any]) -> ThreadStage | None:
        return ThreadStage("reading") if id(as_written(local.get("source"))) in mine else None

    return {_values.__code__: inspect_locals, _columns.__code__: inspect_locals}


def _from_outside(error: BaseException) -> bool:
    """Tell whether whoever takes the elements has ended the reading, or Ctrl-C: then the source has raised nothing."""
    thrown_in = error.__traceback__ is None or error.__traceback__.tb_next is None
    return is_interrupt(error) or (thrown_in and not isinstance(error, Exception))


def _read_failure(source: Source, lease: Lease, number: int, error: BaseException) -> SourceError:
    return SourceError(
        f"{type(as_written(source)).__name__} cannot read {lease.split.where(number)}: {describe_error(error)}",
        file=lease.split.file_of(number),
        element=lease.split.number_of(number),
        **({} if isinstance(error, Exception) else {"ends_job": True}),
    )
