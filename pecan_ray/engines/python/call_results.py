"""What a process of functions sends back: the answers of a message as columns, or each pickled by itself.

Pickling a small array and reading it back takes longer than copying it into a column, ten times or more.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pecan_ray.engines.python.tensor_pickling import pickled

IMMUTABLE = frozenset((bool, int, float, complex, str, bytes, type(None)))
NUMBERS = "biufc"
"""Kinds of dtypes that a column of numbers has."""
MOST_BYTES = 64 << 20
"""No column is larger than this: it takes its memory with the first answer."""
MOST_DIMENSIONS = 32
"""Of NumPy's arrays in older versions; a column has one more than its rows."""

AnswerColumn: TypeAlias = np.ndarray[Any, Any] | list[Any]


class CallResponse(NamedTuple):
    """What became of a call."""

    returned: bool
    result: Any

    def value(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        if self.returned:
            return self.result
        raise self.result


class ResponseColumns(NamedTuple):
    """Answers of one form, all of which are results."""

    names: tuple[str, ...] | None
    """Of the columns of a result, in its order; None where it is a value and no dict."""
    columns: tuple[AnswerColumn, ...]
    """One row for each answer."""

    def responses(self) -> list[CallResponse]:
        """Return the answers, each with arrays of its own: one that is kept for long keeps no other one."""
        rows = zip(*map(_values, self.columns), strict=True)
        if self.names is None:
            return [CallResponse(True, value) for (value,) in rows]
        return [CallResponse(True, dict(zip(self.names, row, strict=True))) for row in rows]


def _values(column: AnswerColumn) -> Iterable[Any]:
    if isinstance(column, list) or column.ndim == 1:
        return column
    return [row.copy() for row in column]


class ResponseWriter:
    """Takes the answers of a message one after the other, each before the next call: functions reuse their arrays."""

    def __init__(self, count: int) -> None:
        """`count`: how many answers there will be."""
        self._count, self._written = count, 0
        self._names: tuple[str, ...] | None = None
        self._columns: list[AnswerColumn] = []
        self._pickled: list[bytes] | None = None
        """Each by itself, from the first one on that is not like the others."""

    def add(self, result: Any) -> None:
        """Add what a function returned; raises what pickle raises for it, and has added nothing then."""
        if self._pickled is None and self._write(result):
            self._written += 1
            return
        # Before `_one_by_one`: if this raises, nothing has changed and the caller sends the error.
        answer = pickled((True, result))
        self._one_by_one().append(answer)

    def add_error(self, error: BaseException) -> None:
        """Add an exception that survives pickling."""
        self._one_by_one().append(pickled((False, error)))

    def message(self) -> bytes:
        """Return all of them, for `unpack_results`."""
        answers = ResponseColumns(self._names, tuple(self._columns)) if self._pickled is None else self._pickled
        return pickled(answers)

    def _write(self, result: Any) -> bool:
        """Write a result into the columns; False if it does not fit, and then none of its row counts."""
        names: tuple[str, ...] | None = None
        values: Iterable[Any] = (result,)
        if type(result) is dict:
            names, values = tuple(result), result.values()
            if len(names) > 1 and _shared(values):
                return False
        if not self._written and not self._begin(names, values):
            return False
        if names != self._names:
            return False
        # A row that is given up halfway is written again, because `_written` counts whole rows.
        row = self._written
        for value, column in zip(values, self._columns, strict=True):
            if not _is_exact(value, column):
                return False
            column[row] = value
        return True

    def _begin(self, names: tuple[str, ...] | None, values: Iterable[Any]) -> bool:
        """Make columns for answers like the first one; False where each had better be pickled."""
        if names is not None and not (names and all(type(name) is str for name in names)):
            return False
        columns = [_column(value, self._count) for value in values]
        self._names, self._columns = names, [column for column in columns if column is not None]
        return len(self._columns) == len(columns)

    def _one_by_one(self) -> list[bytes]:
        """Return the list of pickled answers, with those that were written into columns."""
        if self._pickled is None:
            rows = [column[: self._written] for column in self._columns]
            written = ResponseColumns(self._names, tuple(rows)).responses() if self._written else []
            self._pickled = [pickled((True, one.result)) for one in written]
            self._columns = []
        return self._pickled


def _shared(values: Iterable[Any]) -> bool:
    """Tell whether two columns of an element are one array, which it stays where both are pickled together."""
    arrays = [id(value) for value in values if type(value) is np.ndarray]
    return len(set(arrays)) < len(arrays)


def _column(value: Any, count: int) -> AnswerColumn | None:
    """Return an empty column for values like one; None where each had better be pickled."""
    # Decision 85: by exact types here and in `_is_exact`, because what comes out has to be what went in.
    if type(value) in IMMUTABLE:
        return [None] * count
    rows = type(value) is np.ndarray and 0 < value.ndim < MOST_DIMENSIONS and value.flags.c_contiguous
    if not (rows or isinstance(value, np.generic)):
        return None
    fits = value.dtype.kind in NUMBERS and math.prod(value.shape) * value.dtype.itemsize * count <= MOST_BYTES
    return np.empty((count, *value.shape), value.dtype) if fits else None


def _is_exact(value: Any, column: AnswerColumn) -> bool:
    """Tell whether a value comes out of a column as it went in."""
    if isinstance(column, list):
        return type(value) in IMMUTABLE
    if type(value) is np.ndarray:
        same = value.dtype == column.dtype and value.shape == column.shape[1:]
        return bool(same and value.ndim and value.flags.c_contiguous)
    return column.ndim == 1 and isinstance(value, np.generic) and value.dtype == column.dtype


def unpack_results(message: bytes) -> Sequence[CallResponse]:
    """Return the answers of a message."""
    answers: ResponseColumns | list[bytes] = pickle.loads(message)
    if isinstance(answers, ResponseColumns):
        return answers.responses()
    return [CallResponse(*pickle.loads(one)) for one in answers]
