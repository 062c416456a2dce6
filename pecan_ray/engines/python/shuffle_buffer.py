"""The buffer of a shuffle that holds columns: it draws what it would draw row by row, many rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.engines.row_block import (
    PIECE_ROWS,
    RowBlock,
    RowNumbers,
    as_objects,
    objects_of,
    put_together,
    row_bytes,
    same_layout,
)
from pecan_ray.plan.splits import Array, Lease

LARGE_ROW_BYTES = 4096
"""Longer rows of a column are held one by one: they move by reference, and a copy takes longer than that."""
MAX_LEASES = 1024
"""Leases that are listed before those are left out of which no row is held any more."""


@dataclass(frozen=True)
class _Exchange:
    """Which rows leave the buffer for which new ones."""

    positions: RowNumbers
    """By row that leaves: its place in the buffer; one behind the last place: it is a new one that never gets in."""
    of_new: RowNumbers
    """The rows that leave of which the new rows hold the values: they came and went among these rows."""
    new: RowNumbers
    """Which new rows those are."""
    filled: RowNumbers
    """Places that hold another row behind this."""
    by: RowNumbers
    """Which new rows fill them."""


class ShuffleBuffer:
    """Holds up to `size` - 1 rows between two blocks, and gives back one for each that it has no place for."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        # A new row is put behind the last place before one is drawn, so with it `size` rows are drawn from.
        self._positions, self._rng = size - 1, rng
        self._filling: list[RowBlock] = []
        self._to_fill = self._positions
        """Places that are free."""
        self._held: RowBlock | None = None
        """The rows in their places, once all are filled; its columns are the buffer's own."""
        self._side_by_side: list[tuple[tuple[str, ...], Array]] = []
        """Columns of one dtype, as the columns of one array: a row of them lies together, and moves at once."""
        self._leases: list[Lease] = []
        self._last: tuple[tuple[Lease, ...], int] = (), 0
        """The leases of the last block, and where they begin in the list."""

    def add(self, block: RowBlock) -> RowBlock | None:
        """Take rows in, and return as many as there is no place for."""
        block = _split_large_rows(block)
        if self._to_fill:
            count = min(self._to_fill, block.rows)
            self._filling.append(block.cut(0, count))
            self._to_fill -= count
            block = block.cut(count, block.rows)
        if not block.rows:
            return None
        if self._held is None:
            self._held = self._filled(block)
        return self._swap_rows(self._held, block)

    def rest(self) -> Iterator[RowBlock]:
        """Yield the rows that are held, in an order that is drawn."""
        held = self._held
        if held is not None:
            held = RowBlock(held.columns, tuple(self._leases), held.lease_of, held.elements)
        elif self._filling:
            held = put_together(self._filling)
        else:
            return
        self._held, self._filling = None, []
        # The same call as `operators.shuffled` makes, so blocks and elements leave in the same order.
        drawn = self._rng.permutation(held.rows)
        apart = {name for names, _ in self._side_by_side for name in names}
        alone = RowBlock(
            {name: one for name, one in held.columns.items() if name not in apart},
            held.leases,
            held.lease_of,
            held.elements,
        )
        for rows in np.split(drawn, range(PIECE_ROWS, len(drawn), PIECE_ROWS)):
            block = alone.take(rows)
            columns = dict.fromkeys(held.columns, rows) | dict(block.columns)
            for names, together in self._side_by_side:
                columns.update(_columns_of(names, _whole_rows(together).take(rows), together))
            yield RowBlock(columns, block.leases, block.lease_of, block.elements)

    def _filled(self, like: RowBlock) -> RowBlock:
        """Return what has filled the buffer; of one without places, nothing like a block."""
        held = put_together(self._filling) if self._filling else like.take(np.empty(0, np.int64))
        self._leases, self._filling = list(held.leases), []
        if not held.rows:
            return held
        columns, of_dtype = dict(held.columns), dict[np.dtype[Any], list[str]]()
        for name, column in columns.items():
            # Python's references cannot be moved as plain bytes.
            if column.ndim == 1 and not column.dtype.hasobject:
                of_dtype.setdefault(column.dtype, []).append(name)
        for names in of_dtype.values():
            together = np.stack([columns[name] for name in names], axis=1)
            self._side_by_side.append((tuple(names), together))
            columns.update(zip(names, together.T, strict=True))
        return RowBlock(columns, (), held.lease_of, held.elements)

    def _exchange_side_by_side(self, block: RowBlock, own: dict[str, Array], exchange: _Exchange) -> dict[str, Array]:
        """Exchange the rows of columns that lie side by side; return those that leave."""
        columns: dict[str, Array] = {}
        # From the end, because an entry may be deleted on the way.
        for place, (names, together) in reversed([*enumerate(self._side_by_side)]):
            new = [block.columns.get(name) for name in names]
            if all(one is not None and same_layout(own[name], one) for name, one in zip(names, new, strict=True)):
                given = np.stack([one for one in new if one is not None], axis=1)
                leaving = _exchange(_whole_rows(together), _whole_rows(given), exchange)
                columns.update(_columns_of(names, leaving, together))
            else:  # one of them is not what it was, so each goes on by itself
                own.update((name, own[name].copy()) for name in names)
                del self._side_by_side[place]
        return columns

    def _swap_rows(self, held: RowBlock, block: RowBlock) -> RowBlock:
        exchange = _drawn(self._rng.integers(self._positions + 1, size=block.rows), self._positions)
        lease_of = self._positions_of_leases(block)
        columns: dict[str, Array] = {}
        own = dict(held.columns)
        moved = self._exchange_side_by_side(block, own, exchange)
        for name in dict.fromkeys((*own, *block.columns)):
            if name in moved:
                columns[name] = moved[name]
                continue
            mine, new = own.get(name), block.columns.get(name)
            if mine is None or new is None or not same_layout(mine, new):
                mine, new = as_objects(mine, held.rows), as_objects(new, block.rows)
                own[name] = mine
            columns[name] = _exchange(mine, new, exchange)
        # The arrays stay where they are: rows are exchanged in place.
        leaving = _exchange(held.lease_of, lease_of, exchange), _exchange(held.elements, block.elements, exchange)
        self._held = RowBlock(own, (), held.lease_of, held.elements)
        found = RowBlock(columns, tuple(self._leases), *leaving)
        # Blocks come with new leases, and most of these have no row left in the buffer.
        if len(self._leases) > MAX_LEASES:
            self._leave_out_leases(held.lease_of)
        return found

    def _positions_of_leases(self, block: RowBlock) -> RowNumbers:
        """Return the places of a block's leases in the buffer's list."""
        leases, begin = self._last
        # By identity: pieces of one run share one tuple, so its lease is listed once.
        if block.leases is not leases:
            begin = len(self._leases)
            self._leases += block.leases
            self._last = block.leases, begin
        return block.lease_of + begin

    def _leave_out_leases(self, lease_of: RowNumbers) -> None:
        used, lease_of[:] = np.unique(lease_of, return_inverse=True)
        self._leases, self._last = [self._leases[place] for place in used], ((), 0)


def _split_large_rows(block: RowBlock) -> RowBlock:
    large = {
        name: objects_of(column)
        for name, column in block.columns.items()
        if column.ndim > 1 and row_bytes(column) > LARGE_ROW_BYTES
    }
    return RowBlock({**block.columns, **large}, block.leases, block.lease_of, block.elements)


def _whole_rows(together: Array) -> Array:
    """Return the rows of an array as single items, which are moved as a whole."""
    return together.view(np.dtype((np.void, together.shape[1] * together.itemsize)))[:, 0]


def _columns_of(names: Sequence[str], rows: Array, like: Array) -> Iterator[tuple[str, Array]]:
    """Yield the columns that rows hold, which are those of an array with these names."""
    return zip(names, np.ascontiguousarray(rows.view(like.dtype).reshape(-1, len(names)).T), strict=True)


def _drawn(drawn: RowNumbers, places: int) -> _Exchange:
    """Return what happens if a new row at a time is put in the place of the one that is drawn.

    Row by row: the new one is put behind the last place, a place is drawn, and the row there leaves; the new one
    takes its place.  So a row that leaves is the new one that was put there last, or the one that was there before.
    """
    rows = len(drawn)
    # Draws of one place stay in their order, so the one before each is the row that it meets there. NumPy sorts plain
    # numbers in a quarter of the time that a stable argsort takes.
    numbers = np.sort(drawn * rows + np.arange(rows))
    sorted_places, order = np.divmod(numbers, rows)
    same = sorted_places[1:] == sorted_places[:-1]
    """Of those draws in order: whether the one before is of the same place."""
    before = np.full(rows, -1)
    before[order[1:][same]] = order[:-1][same]
    behind = np.flatnonzero(drawn == places)
    # The place behind the last one was drawn: the new row leaves at once.
    before[behind] = behind
    of_new = np.flatnonzero(before >= 0)
    # Of several new rows for one place the last one stays; `held[filled] = ...` must name each place once.
    last = order[np.append(~same, True)]
    last = last[drawn[last] < places]
    return _Exchange(drawn, of_new, before[of_new], drawn[last], last)


def _exchange(held: Array, new: Array, exchange: _Exchange) -> Array:
    """Return the values that leave a column, and put the new ones in their places."""
    if not len(held):
        return new[exchange.new]
    # "clip": one behind the last place is no place, and its row is replaced below.
    leaving: Array = held.take(exchange.positions, axis=0, mode="clip")
    leaving[exchange.of_new] = new[exchange.new]
    held[exchange.filled] = new[exchange.by]
    return leaving
