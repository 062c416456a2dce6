"""What flows between the operators of the python engine: a value, and which positions of the data it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pecan_ray.engines.positions import Part
from pecan_ray.plan.splits import Lease
from pecan_ray.sources.copies import own_copy

ItemIterator: TypeAlias = Iterator["Item | None"]
"""Items as they come; None in between, whenever positions must be reported that no item carries."""


@dataclass(slots=True)
# Slots and no frozen: one is made for each element, and batches fill in what they learn later.
class Item:
    """An element or a batch under way."""

    value: Any
    parts: list[Part]
    """Positions that count as delivered with it: those that it stands for and that are still missing."""
    lease: Lease
    element: int
    """Number of the (first) element in its split: names it in errors and seeds its random numbers."""
    output: int = 0
    """Which output of that element it is: 0, or its place among the element's positions behind flat_map."""
    width: int = 0
    """How many positions it stands for from there on, missing or not; 0: a batch or a pair, not to be divided."""
    rows: int = 1
    repeats: int = 0
    """For a batch: so many of its rows repeat others of it, and count as no elements."""
    members: list[Item] | None = None
    """For a batch: the items that it was made of, without their values."""
    partial: bool = False
    rank: int | None = None
    """For a batch of a round: the trainer that it is for."""
    kept: bool = False
    """It comes from a cache: what stands before the point has been done to it."""

    @property
    def has_passed(self) -> bool:
        """Return whether filters let it pass before, and are not asked again; a batch stands for more than that."""
        return self.lease.passed and self.width > 0

    def where(self) -> str:
        """Say in words which element this is."""
        return self.lease.split.where(self.element)

    def where_all(self) -> str:
        """Say in words which element this is, or which batch."""
        return self.where() if self.members is None else f"the batch that begins with {self.where()}"

    @property
    def place(self) -> dict[str, Any]:
        """The fields of an error that name the (first) element."""
        split = self.lease.split
        return {"file": split.file_of(self.element), "element": split.number_of(self.element)}

    def without_value(self) -> Item:
        """Return what is known of the item beside its value."""
        return replace(self, value=None)


def batch_of(items: Sequence[Item], columns: dict[str, Any], partial: bool) -> Item:
    """Return the batch that some items make, which holds these columns."""
    parts = [part for item in items for part in item.parts]
    first = items[0]
    return Item(
        columns,
        parts,
        first.lease,
        first.element,
        first.output,
        rows=len(items),
        # Without values: these are in the columns by now, and would be held twice until the batch is gone.
        members=[item.without_value() for item in items],
        partial=partial,
    )


def deep_copy(value: dict[str, Any]) -> dict[str, Any]:
    """Return an element that may be written into, however deep, without changing the given one."""
    return {name: own_copy(column) for name, column in value.items()}


def leading(value: dict[str, Any]) -> int:
    """Return the number of rows of a batch: the first dimension of its first column that has one."""
    return next((len(column) for column in value.values() if has_rows(column)), 1)


def has_rows(column: Any) -> bool:
    """Tell whether a column of a batch has a first dimension."""
    return isinstance(column, (list, tuple)) or getattr(column, "ndim", 0) > 0
