"""Maps and filters on rows of a table: a function sees the columns that it reads, and the others stay as they are.

A function is called once for each row, as it is for elements: with the value of its column (`on=`), or with an element
of the columns that its code reads (`pecan_ray.plan.columns_read`).  What it returns is a new column, or new columns, or
says which rows stay.  Where a function makes arrays, lists or other things that can be written into, its column is no
table's any more, and rows go on as elements.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.counting import EVERY, Counts, column_bytes
from pecan_ray.engines.element_errors import apply_error_policy, end_child, op_error
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item, deep_copy
from pecan_ray.engines.own_results import BOOLEANS, FIXED, HeldValue, own_element
from pecan_ray.engines.positions import SkippedPositions, parts_of_arrays
from pecan_ray.engines.python.chain import (
    ELEMENT_WANTED,
    Chain,
    ChainProtocol,
    ChainStep,
    run_in_order,
)
from pecan_ray.engines.row_block import MISSING, RowBlock, RowNumbers, part_arrays
from pecan_ray.errors import ElementError, is_interrupt
from pecan_ray.plan.columns_read import columns_read
from pecan_ray.plan.operators import Autocache, ElementOp, Filter, Map, Subset
from pecan_ray.plan.splits import Array, Element
from pecan_ray.sampling.subsets import is_member

NUMBER_KINDS = "biufc"
"""Kinds of dtypes whose numbers tell their dtype by their class."""


def column_chain(
    chain: ChainProtocol,
    ops: Sequence[ElementOp | Autocache],
    options: EngineOptions,
    skipped_positions: SkippedPositions,
) -> ColumnChain | None:
    """Return what runs operators on rows of a table; None where one of them needs whole elements."""
    if type(chain) is not Chain or not all(map(sees_columns, ops)):
        return None
    # The columns behind a map of elements are not known before it has run.
    if any(isinstance(step.op, Map) and step.op.on is None for step in chain.steps[:-1]):
        return None
    return ColumnChain(chain, options, skipped_positions)


def sees_columns(op: ElementOp | Autocache) -> bool:
    """Tell whether an operator needs nothing but known columns of an element, or its place."""
    return isinstance(op, Autocache) or _columns_seen(op) is not None


def _columns_seen(op: ElementOp) -> tuple[str, ...] | None:
    """Return the columns that an operator needs of an element; None: it may need all of them."""
    if isinstance(op, Subset):
        return ()
    if type(op) not in (Map, Filter) or op.processes:
        return None
    return columns_read(op.fn) if op.on is None else (op.on,)


@dataclass
class _Rows:
    """Rows under way."""

    block: RowBlock
    """All rows, as they were given."""
    alive: RowNumbers
    """Numbers of those that are left."""
    changed: dict[str, Array]
    """Columns that functions have made, of the rows that are left."""
    names: Iterable[str]
    """Of all columns."""

    def column(self, name: str) -> Array:
        """Return a column of the rows that are left."""
        found = self.changed.get(name)
        return self._left_of(self.block.columns[name]) if found is None else found

    def _left_of(self, column: Array) -> Array:
        return column if len(self.alive) == self.block.rows else column[self.alive]

    def item(self, place: int) -> Item:
        """Return a row that is left as it was given, as an element of its own."""
        row = int(self.alive[place])
        (item,) = self.block.cut(row, row + 1).own_items()
        return item

    def keep(self, places: NDArray[Any]) -> None:
        """Keep some of the rows that are left; `places`: their numbers, or which of them."""
        self.alive = self.alive[places]
        self.changed = {name: column[places] for name, column in self.changed.items()}

    def result(self) -> RowBlock:
        """Return what has become of the rows."""
        block = self.block
        columns = {name: self.column(name) for name in self.names}
        return RowBlock(columns, block.leases, self._left_of(block.lease_of), self._left_of(block.elements))


class ColumnChain:
    """Runs the operators of a chain on rows of a table, as the chain does on elements."""

    def __init__(self, chain: Chain, options: EngineOptions, skipped_positions: SkippedPositions) -> None:
        self._chain, self._options, self._skipped_positions = chain, options, skipped_positions
        self.steps: Sequence[ChainStep] = chain.steps
        self._returns_objects = False
        """A function has returned something that can be written into."""
        self._columns_seen = [_columns_seen(step.op) or () for step in chain.steps]

    def takes(self, block: RowBlock) -> bool:
        """Tell whether rows can go through by columns: no function can write into what it is given."""
        if not self.steps:
            return True
        # The first element goes through the chain, which then seeds global generators anew.
        if self._returns_objects or self._chain.is_new or any(lease.passed for lease in block.leases):
            return False
        # Columns that no function sees may hold anything: they are handed on as they lie.
        names = set(itertools.chain.from_iterable(self._columns_seen))
        return names <= block.columns.keys() and all(_is_fixed(block.columns[name]) for name in names)

    def run(self, block: RowBlock) -> tuple[RowBlock, BaseException | None]:
        """Return what becomes of rows; with the error of the first one that failed, if it is to be raised: up to it."""
        rows = _Rows(block, np.arange(block.rows), {}, block.columns)
        failed: BaseException | None = None
        for step, columns in zip(self.steps, self._columns_seen, strict=True):
            counted = self._count_rows(rows)
            before = self._bytes(rows, counted)
            if isinstance(step.op, Subset):
                self._keep(rows, np.array([self._is_member(step.op, block, row) for row in rows.alive], bool))
            else:
                failed = self._step(step, rows, columns) or failed
            if counted is not None:
                left = self._count_rows(rows)
                counted_in, counted_out = int(counted.sum()), 0 if left is None else int(left.sum())
                self._add_counts(step.op.name, counted_in, counted_out, before, self._bytes(rows, left))
        return rows.result(), failed

    def _is_member(self, op: Subset, block: RowBlock, row: int) -> bool:
        lease = block.leases[block.lease_of[row]]
        return is_member(op, lease.split.index, int(block.elements[row]))

    def _step(self, step: ChainStep, rows: _Rows, columns: Sequence[str]) -> BaseException | None:
        """Run an operator, which sees some columns; return the error at which the rows end."""
        arguments: Iterable[Any]
        if step.op.on is not None:
            arguments = rows.column(step.op.on)
        else:
            arguments = _elements(columns, [rows.column(name) for name in columns], len(rows.alive))
        results, bad, failed = self._call_each(step, rows, arguments)
        if failed is not None:
            rows.keep(np.arange(len(results)))
        if step.filters:
            # Bad rows are dealt with: they only have to be left out.
            left = np.ones(len(results), bool)
            left[bad] = False
            rows_left = np.flatnonzero(left)
            if bad:
                rows.keep(rows_left)
            self._keep(rows, np.array(results, bool)[rows_left])
            return failed
        if bad:
            good = np.setdiff1d(np.arange(len(results)), bad)
            rows.keep(good)
            results = [results[place] for place in good]
        if step.op.on is not None:
            rows.changed[step.op.on] = column_of(results)
        else:
            # A map of an element replaces all columns, and elements may differ in theirs: in the order of
            # their first appearance.
            rows.names = list(dict.fromkeys(itertools.chain.from_iterable(results)))
            rows.changed = {name: column_of([one.get(name, MISSING) for one in results]) for name in rows.names}
        return failed

    def _keep(self, rows: _Rows, kept: NDArray[np.bool_]) -> None:
        """Leave rows out that filters do not let pass."""
        if kept.all():
            return
        block, out = rows.block, rows.alive[~kept]
        arrays = part_arrays(block.leases, block.lease_of[out], block.elements[out])
        self._skipped_positions.add(parts_of_arrays(arrays), elements=len(out))
        rows.keep(kept)

    def _call_each(
        self, step: ChainStep, rows: _Rows, arguments: Iterable[Any]
    ) -> tuple[list[Any], list[int], BaseException | None]:
        """Call a function for each row; return results, rows without one, and the error that ends it."""
        # `call_stacks` finds `step`, `rows` and `place` in this frame by their names.
        results: list[Any] = []
        bad: list[int] = []
        # Local names: this loop runs once for each row, where the function may take a microsecond.
        call, tracker, makes_elements = step.call, forks, step.makes_elements
        # What needs no look: of a filter the two answers, of a map values that nobody can change.
        plain = BOOLEANS if step.filters else FIXED
        keywords: dict[str, Any] = {}
        wants_keywords = step.wants_keywords
        for place, value in enumerate(arguments):
            generation = tracker.generation
            try:
                try:
                    if wants_keywords:
                        keywords = self._chain.keywords(step, self._named(rows, place), 0)
                    result = call(value, **keywords)
                except BaseException as error:
                    if tracker.generation != generation:
                        end_child(step.op.name, self._named(rows, place), error)
                    result = self._chain.result_behind(error, step, value, self._named(rows, place), 0)
                if tracker.generation != generation:
                    end_child(step.op.name, self._named(rows, place))
                if makes_elements:
                    result = self._checked_element(step, result, value, rows, place)
                elif type(result) not in plain:
                    result = self._checked(step, result, value, rows, place)
            except ElementError as bad_element:
                if self._options.on_error == "raise" or bad_element.fields.get("ends_job"):
                    return results, bad, bad_element
                self._leave_out(rows, place, bad_element)
                bad.append(place)
                result = False
            results.append(result)
        return results, bad, None

    def _named(self, rows: _Rows, place: int) -> Item:
        """Return an element without its value."""
        row = rows.alive[place]
        return Item(None, [], rows.block.leases[rows.block.lease_of[row]], int(rows.block.elements[row]))

    def _leave_out(self, rows: _Rows, place: int, error: ElementError) -> None:
        item = rows.item(place)
        kept = deep_copy(item.value) if self._options.on_error == "quarantine" else None
        apply_error_policy(item, error, self._options.on_error, self._skipped_positions, kept)

    def _checked(self, step: ChainStep, result: Any, value: Any, rows: _Rows, place: int) -> Any:
        """Return a result that is not plain as the engine's own; raises `OutputTypeError` where it is none."""
        item = self._named(rows, place)
        if step.filters:
            if isinstance(result, bool):
                return result
            raise self._chain.wrong_type(step.op, item, result, "whether to keep the element: True or False")
        if isinstance(result, types.CoroutineType):
            raise self._chain.wrong_type(step.op, item, result, "a value")
        if type(result) in FIXED:
            return result
        # `own_element` counts references, so this frame must not hold the result beside the element.
        element = {"": result}
        del result
        return self._own(step, element, {"": value}, item)[""]

    def _checked_element(self, step: ChainStep, result: Any, value: Element, rows: _Rows, place: int) -> dict[str, Any]:
        if type(result) is dict and FIXED.issuperset(map(type, result.values())):
            return dict(result)  # the function may fill this one again for the next element
        item = self._named(rows, place)
        if not isinstance(result, dict):
            raise self._chain.wrong_type(step.op, item, result, ELEMENT_WANTED)
        return self._own(step, result, value, item)

    def _own(self, step: ChainStep, result: dict[str, Any], value: dict[str, Any], item: Item) -> dict[str, Any]:
        """Return what a function has made of `value`, which may be written into, as the engine's own."""
        # From now on rows go through as elements: a column of such values belongs to whoever writes into
        # them.
        self._returns_objects = True
        held: list[HeldValue] = []
        try:
            return dict(own_element(result, value, result, held))
        except BaseException as error:  # what holds itself
            if is_interrupt(error):
                raise
            raise op_error(step.op.name, item, error) from error

    def _count_rows(self, rows: _Rows) -> NDArray[np.bool_] | None:
        """Return which rows are counted; None where nothing is."""
        block = rows.block
        if self._chain.counts is None or block.lease.epoch != self._options.count_epoch:
            return None
        splits = np.array([lease.split.index for lease in block.leases])
        counted: NDArray[np.bool_] = (splits[block.lease_of[rows.alive]] + block.elements[rows.alive]) % EVERY == 0
        return counted

    def _bytes(self, rows: _Rows, counted: NDArray[np.bool_] | None) -> int:
        if counted is None:
            return 0
        return sum(column_bytes(rows.column(name)[counted]) for name in rows.names)

    def _add_counts(self, op: str, rows_in: int, rows_out: int, bytes_in: int, bytes_out: int) -> None:
        counts: Counts | None = self._chain.counts
        if counts is not None:
            counts.add_rows(op, rows_in, bytes_in, bytes_out, rows_out=rows_out)


class BlockChain:
    """Runs operators on blocks of rows: by columns where it can be, else on elements, which make a block of objects."""

    def __init__(self, columns: ColumnChain, alone: ChainProtocol) -> None:
        self._columns, self._alone = columns, alone

    def run(self, block: RowBlock) -> tuple[RowBlock, BaseException | None]:
        """Return what becomes of rows, up to the first one that fails, and its error."""
        if self._columns.takes(block):
            return self._columns.run(block)
        items, failed = run_in_order(self._alone, block.own_items())
        return RowBlock.of_items(items), failed


def _is_fixed(column: Array) -> bool:
    """Tell whether nobody can write into the values of a column."""
    if column.ndim > 1 or column.dtype.kind == "V":
        return False
    return column.dtype != object or FIXED.issuperset(map(type, column.tolist()))


def _elements(names: Sequence[str], columns: Sequence[Array], rows: int) -> Iterator[Element]:
    """Yield rows as elements with some columns, each as it is asked for."""
    if not names:
        return ({} for _ in range(rows))
    if len(names) == 1:
        name = names[0]
        return ({name: value} for value in columns[0])
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def column_of(values: list[Any]) -> Array:
    """Return a column that gives each of some values back as it was."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and issubclass(kind := kinds.pop(), np.generic):
        dtype = np.dtype(kind)
        if dtype.kind in NUMBER_KINDS and dtype.type is kind:
            return np.fromiter(values, dtype, len(values))
    # `fromiter` makes one object of each value; `np.array` would look into lists and arrays.
    return np.fromiter(values, object, len(values))
