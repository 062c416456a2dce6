"""Batches of the rows of several blocks: one copy, and none where all rows lie in one block.

The elements of a block are of one kind (`pecan_ray.engines.row_types`).  So rows go together here if they would have
gone together in one process, and the first row of a block tells what all of them are like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.errors import join_names, to_str

BlockRows: TypeAlias = tuple[Mapping[str, Any], int, int]
"""Columns of a block, and which of its rows belong to a batch: the first, and the one behind the last."""

TYPE_REMEDY = "Convert one of them, or fill in what is missing, by a map before"
KEYS_REMEDY = "Give all the same keys, or take out what is needed, by a map before"
DTYPE_REMEDY = "Convert elements to one dtype before"
SHAPE_REMEDY = (
    "Resize or crop elements to one shape, use padded_batch, or put them together by a function of your own: "
    "batch(n, collate=fn)"
)


class UnequalRowsError(Exception):
    """Rows of one batch do not go together; those who know the names of elements make a message of it."""

    def __init__(self, part: int, column: Any, messages: tuple[str, str], remedy: str) -> None:
        """`part`: the number of the block that does not go with the first one; `messages`: what both are like."""
        super().__init__(part, column, messages, remedy)
        self.part, self.column = part, column
        self._logged, self._hint = messages, remedy

    def message(self, element: str, first: str) -> str:
        """Return the message; `element`: the first row of that block in words, `first`: that of the first block."""
        mine, other = self._logged
        return f"batch: {mine.format(element)}, but {other.format(first)}. {self._hint}."


def joined(parts: Sequence[BlockRows]) -> dict[str, Any]:
    """Return the columns of a batch of consecutive rows; raises `UnequalRowsError` where blocks do not go together."""
    first = parts[0][0]
    for part, (columns, _, _) in enumerate(parts):
        if columns.keys() != first.keys():
            mine, other = (_quote(join_names(*both)) for both in ((columns, first), (first, columns)))
            # By text, because names of unlike types have no order.
            column = min(columns.keys() ^ first.keys(), key=to_str)
            messages = f"{{}} has the columns {mine}", f"{{}} has {other}"
            raise UnequalRowsError(part, column, messages, "Every element of a batch needs the same columns")
    return {
        name: _JoinedColumn(name).joined([(columns[name], start, stop) for columns, start, stop in parts], "")
        for name in first
    }


class _JoinedColumn:
    """A column of a batch that is joined."""

    def __init__(self, name: str) -> None:
        self._name = name

    def joined(self, parts: Sequence[tuple[Any, int, int]], path: str) -> Any:
        """Return the rows of what stands at one path in this column."""
        first = parts[0][0]
        if type(first) is dict:
            return self._dicts(parts, path)
        if any(type(one) is tuple for one, _, _ in parts):
            return self._tuples(parts, path)
        if len(parts) == 1:
            return first[parts[0][1] : parts[0][2]] if hasattr(first, "__getitem__") else first
        for part, (column, row, _) in enumerate(parts):
            if not _go_together(column, first):
                self._reject(part, column, row, parts[0], path)
        return np.concatenate([one[start:stop] for one, start, stop in parts])

    def _dicts(self, parts: Sequence[tuple[Any, int, int]], path: str) -> Any:
        first = parts[0][0]
        for part, (column, row, _) in enumerate(parts):
            if type(column) is not dict or column.keys() != first.keys():
                self._reject(part, column, row, parts[0], path)
        return {
            key: self.joined([(one[key], *rows) for one, *rows in parts], f"{path}[{to_str(key)}]") for key in first
        }

    def _tuples(self, parts: Sequence[tuple[Any, int, int]], path: str) -> Any:
        """Return lists of values of unlike types: a column for each place."""
        places = [_split_lists(one) for one, _, _ in parts]
        for part, (column, row, _) in enumerate(parts):
            if len(places[part]) != len(places[0]):
                self._reject(part, column, row, parts[0], path)
        return tuple(
            self.joined([(mine[at], *rows) for mine, (_, *rows) in zip(places, parts, strict=True)], f"{path}[{at}]")
            for at in range(len(places[0]))
        )

    def _reject(self, part: int, column: Any, row: int, other: tuple[Any, int, int], path: str) -> None:
        mine, kinds = f"column {to_str(self._name)}{path}", (_describe(column, row), _describe(other[0], other[1]))
        remedy = KEYS_REMEDY if type(column) is type(other[0]) is dict else TYPE_REMEDY
        if all(isinstance(one, np.ndarray) and one.dtype != object for one in (column, other[0])):
            remedy = SHAPE_REMEDY if column.dtype == other[0].dtype else DTYPE_REMEDY
        messages = f"{_quote(mine)} of {{}} is {_quote(kinds[0])}", f"that of {{}} is {_quote(kinds[1])}"
        raise UnequalRowsError(part, self._name, messages, remedy)


def _quote(text: str) -> str:
    # Names may hold braces, and `UnequalRowsError.message` formats the text.
    return text.replace("{", "{{").replace("}", "}}")


def _go_together(column: Any, first: Any) -> bool:
    if not (isinstance(column, np.ndarray) and isinstance(first, np.ndarray)) or column.shape[1:] != first.shape[1:]:
        return False
    # Texts of unequal lengths differ in dtype, and NumPy joins them as the longest.
    return column.dtype == first.dtype or all(one.dtype.kind in "SU" for one in (column, first))


def _split_lists(column: Any) -> tuple[Any, ...]:
    """Return a column of lists as a column for each of their places; nothing for what is none."""
    if type(column) is tuple:
        return column
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return tuple(column[:, place] for place in range(column.shape[1]))
    return ()


def _describe(column: Any, row: int) -> str:
    """Say in words of which kind a row of a column is."""
    if type(column) is dict:
        return f"a dict with the keys {join_names(column, ())}"
    if type(column) is tuple:
        return f"a list of {len(column)} values"
    if not isinstance(column, np.ndarray):
        return f"a {type(column).__name__}"
    if column.dtype == object and column.ndim == 1:
        return "None" if column[row] is None else f"a {type(column[row]).__name__}"
    return f"{'text' if column.dtype == object else column.dtype}{list(column.shape[1:])}"
