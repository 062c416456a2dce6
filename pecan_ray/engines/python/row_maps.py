"""Maps that run on many rows at a time: all of them between a source and `batch`, as AutoOrder has found them to be so.

What they are given is watched (`pecan_ray.engines.python.rows`), so that a function that does anything else than
arithmetic on single numbers is found out at once, and its elements go through one by one, as they would have.  So do
elements on which a function fails: the one that is to blame is found, and named.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.counting import Counts, column_bytes
from pecan_ray.engines.element_errors import end_child
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.chain import ChainProtocol
from pecan_ray.engines.python.rows import NUMBERS, HeldColumn, NotInRowsError, RowsColumn, RowsWatch, array_of
from pecan_ray.engines.reading import Run
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.errors import describe_error, is_interrupt
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import Array

logger = logging.getLogger("pecan_ray")

ROWS_BYTES = 1 << 18
"""Bytes that go through at a time: they stay in a processor's cache from one function to the next."""
MOST_ROWS = 4096
"""Most rows that go through at a time: a call of NumPy then costs less than a nanosecond a row."""
PATIENCE = 3
"""After so many failures, with no success between them, elements go through one by one for good: each failure costs a
second run of its rows, and a single bad element is no reason."""


class RowMaps:
    """Runs maps on many rows."""

    def __init__(self, ops: Sequence[ElementOp], options: EngineOptions, *, exactly: bool = False) -> None:
        self.ops, self._options, self._exactly = tuple(ops), options, exactly

    def run(self, columns: Mapping[str, Any], rows: int, first: Item, counts: Counts | None = None) -> dict[str, Any]:
        """Return the columns behind the maps; those that hold no numbers pass through.

        Raises `NotInRowsError` where the elements have to be run one by one.  `first` is the first one.
        """
        watch = RowsWatch(rows, self._exactly)
        value = {name: _watched(name, column, watch) for name, column in columns.items()}
        # By identity, because a function may pass such a column on under another name.
        originals = {id(one): columns[name] for name, one in value.items() if type(one) is HeldColumn}
        # With members, so that a look at the stack tells of several elements, and not of the first one (`working`).
        batch = replace(first, members=[])
        found = dict(columns)
        held_bytes = 0 if counts is None else sum(map(column_bytes, originals.values()))
        for op in self.ops:
            size = 0 if counts is None else held_bytes + rows * _nbytes(value)
            value = self._behind(op, value, batch)
            found = {
                name: originals[id(one)] if id(one) in originals else array_of(one, watch)
                for name, one in value.items()
            }
            # Asked behind each function: one may catch the exception and go on with something else.
            if watch.rejected:
                raise NotInRowsError(f"{op.name}: {watch.rejected}")
            if counts is not None:
                counts.add_rows(op.name, rows, size, held_bytes + rows * _nbytes(value))
        return found

    def _behind(self, op: ElementOp, value: dict[str, Any], batch: Item) -> dict[str, Any]:
        """Return the columns behind one map."""
        if op.on is None:
            made = self._call(op, value, batch)
            if type(made) is not dict:
                raise NotInRowsError(f"{op.name}: it returns a {type(made).__name__}")
            return made
        if op.on not in value:
            raise NotInRowsError(f"{op.name}: there is no column {op.on!r}")
        return {**value, op.on: self._call(op, value[op.on], batch)}

    def _call(self, op: ElementOp, value: Any, item: Item) -> Any:
        # `call_stacks` finds `op` and `item` in this frame by their names.
        generation = forks.generation
        try:
            made = op.fn(value)
        except BaseException as error:
            if forks.generation != generation:
                end_child(op.name, item, error)
            if is_interrupt(error):
                raise
            if isinstance(error, NotInRowsError):
                raise NotInRowsError(f"{op.name}: {error}") from error
            raise NotInRowsError(f"{op.name}: {describe_error(error)}") from error
        if forks.generation != generation:
            end_child(op.name, item)
        return made


def _watched(name: str, column: Any, watch: RowsWatch) -> RowsColumn | HeldColumn:
    """Return a column as functions are given it; raises `NotInRowsError` for one of unlike values."""
    return RowsColumn(column, watch) if is_numbers(column) else HeldColumn(name, kind_of(name, column), watch)


def _nbytes(value: Mapping[str, Any]) -> int:
    return sum(one.nbytes for one in value.values() if type(one) is RowsColumn)


def kind_of(name: str, column: Sequence[Any]) -> type:
    """Return the class of all elements of a column that holds no numbers; raises `NotInRowsError` where there is none.

    None, True and False are told by what they are, and not by their class.
    """
    kinds = set(map(type, column))
    if len(kinds) != 1 or kinds & {bool, type(None)}:
        raise NotInRowsError(f"column {name!r} holds values of {sorted(kind.__name__ for kind in kinds)}")
    return kinds.pop()


def is_numbers(column: Any) -> bool:
    """Tell whether a column holds numbers of NumPy, as arithmetic takes them."""
    return type(column) is np.ndarray and column.ndim > 0 and column.dtype.kind in NUMBERS and column.dtype.isnative


def stacked(values: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return elements as columns, of which those without numbers are lists; None where elements are unlike."""
    first = values[0]
    if any(value.keys() != first.keys() for value in values):
        return None
    columns: dict[str, Any] = {}
    for name in first:
        if (column := _stacked_column([value[name] for value in values])) is None:
            return None
        columns[name] = column
    return columns


def _stacked_column(column: list[Any]) -> Any:
    one = column[0]
    if type(one) is np.ndarray:
        if any(type(v) is not np.ndarray or v.dtype != one.dtype or v.shape != one.shape for v in column):
            return None
        flat = one.size > 0 and one.ndim > 0  # a third of the time of np.stack
        return np.concatenate(column).reshape(-1, *one.shape) if flat else np.stack(column)
    if isinstance(one, np.generic):
        return np.array(column) if len(set(map(type, column))) == 1 else None
    return column


def rows_at_a_time(columns: Mapping[str, Any], rows: int) -> int:
    """Return how many rows go through at a time."""
    size = sum(int(column.nbytes) for column in columns.values() if is_numbers(column))
    return max(1, min(MOST_ROWS, ROWS_BYTES * rows // max(size, 1)))


class RowsChain:
    """Runs the maps between a source and `batch` on many rows at a time; `alone` are these maps for single elements."""

    def __init__(self, maps: RowMaps, alone: ChainProtocol, counts: Callable[[Item], Counts | None]) -> None:
        self._maps, self._alone, self._counts = maps, alone, counts
        self._lock = threading.Lock()
        """Guards how often it has failed."""
        self._failures = 0
        self._logged = False

    def through(self, runs: Iterator[Run | None]) -> Iterator[Run | list[Item] | None]:
        """Yield runs behind the maps, or the elements of one that had to go through one by one."""
        for run in runs:
            if run is None:
                yield None
                continue
            step = rows_at_a_time(run.columns, run.rows)
            for start in range(0, run.rows, step):
                yield self._part(run, start, min(start + step, run.rows))

    def _part(self, run: Run, start: int, stop: int) -> Run | list[Item]:
        columns = {name: column[start:stop] for name, column in run.columns.items()}
        part = replace(run, first=run.first + start, rows=stop - start, columns=columns)
        if self._failures < PATIENCE:
            made = self._run(columns, part.rows, Item(None, [], run.lease, part.first))
            if made is not None:
                return replace(part, columns=made)
        return self._alone.run_all(RowBlock.of_run(part).own_items())

    def _run(self, columns: Mapping[str, Any], rows: int, first: Item) -> dict[str, Array] | None:
        """Return what becomes of rows; None where they have to go through one by one."""
        counts = self._counts(first)
        try:
            made = self._maps.run(columns, rows, first, counts)
        except NotInRowsError as error:
            self._note(first, str(error))
            return None
        # Only failures in a row count: single bad elements must not end the fast way for good.
        if self._failures:
            with self._lock:
                self._failures = 0
        return made

    def _note(self, first: Item, why: str) -> None:
        with self._lock:
            self._failures += 1
            message, self._logged = self._logged, True
        if not message:
            names = ", ".join(op.name for op in self._maps.ops)
            logger.info("%s run element by element from %s on: %s (this is said once)", names, first.where(), why)
