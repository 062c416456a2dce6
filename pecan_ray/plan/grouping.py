"""Operators that make batches of elements of one group each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pecan_ray.plan.operators import BatchingOp, Function

Tail: TypeAlias = Literal["keep", "fill", "merge", "drop"]
"""What becomes of elements that fill no batch of their group when an epoch ends."""


@dataclass(frozen=True, kw_only=True)
class GroupingOp(BatchingOp, ABC):
    """Collects elements by groups; each group yields a batch whenever it has enough."""

    @property
    @abstractmethod
    def rest(self) -> Tail:
        """What becomes of elements that fill no batch."""


@dataclass(frozen=True, kw_only=True)
class GroupBy(GroupingOp):
    """Batches elements with equal keys together."""

    key: Function | str
    """A column that holds the key, or a function of the element."""
    size: int | Function
    """Elements in a batch, or a function of the key that returns their number."""
    tail: Tail = "keep"
    lists: bool = False
    """Whether batches are lists of elements, for the `Collate` behind it."""

    @property
    def rest(self) -> Tail:
        """What becomes of elements that fill no batch."""
        return self.tail

    @property
    def full_sizes(self) -> tuple[int, ...]:
        """Elements in a batch, where the keys do not decide it."""
        return (self.size,) if isinstance(self.size, int) else ()


@dataclass(frozen=True, kw_only=True)
class BucketByLength(GroupingOp):
    """Batches elements of similar length together, padded within the bucket."""

    length: Function | str
    """A column whose first dimension is the length, or a function of the element."""
    boundaries: tuple[int, ...]
    """Bucket i holds lengths below boundaries[i]; the last one the rest."""
    sizes: tuple[int, ...]
    """Batch size of each bucket; one more than boundaries."""
    padding: Any = 0
    same_shape: tuple[str, ...] = ()
    """Columns that are padded to one shape."""

    @property
    def excluded_fields(self) -> frozenset[str]:
        """Leave out of fingerprints what earlier versions did not have."""
        return frozenset() if self.same_shape else frozenset({"same_shape"})

    @property
    def rest(self) -> Tail:
        """What becomes of elements that fill no batch of their bucket."""
        return "drop" if self.drop_remainder else "keep"

    @property
    def full_sizes(self) -> tuple[int, ...]:
        """Elements in a batch of each bucket."""
        return self.sizes
