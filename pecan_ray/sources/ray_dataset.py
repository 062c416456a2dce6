"""Datasets of Ray Data: their blocks are the splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from pecan_ray.plan.splits import Element, Split


@dataclass(frozen=True, eq=False)
class RayDataset:
    """The rows of a ``ray.data.Dataset``, read block by block from Ray's object store.

    The dataset is executed once, when its splits are first asked for, and its blocks are kept for as long
    as this object lives: every epoch reads the same blocks in the same order.  The process that asks first
    owns them.
    """

    dataset: Any = field(repr=False)
    needs_cluster: ClassVar[Literal[True]] = True
    """It can be read in processes that are connected to its cluster only."""
    counts_splits: ClassVar[bool] = True

    def splits(self) -> Iterator[Split]:
        """Yield one split for each block that is not empty; the payload is the block's ObjectRef."""
        for index, (reference, rows) in enumerate(self._blocks):
            yield Split(index=index, start=0, stop=rows, elements=rows, payload=reference)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the rows of a block from number `start` on."""
        import ray
        from ray.data.block import BlockAccessor

        block: Any = BlockAccessor.for_block(ray.get(split.payload))
        rows: Any = BlockAccessor.for_block(block.slice(start, block.num_rows(), copy=False))
        for row in rows.iter_rows(public_row_format=True):
            yield dict(row)

    def first(self, count: int) -> Iterator[Element]:
        """Yield the first rows, for which only the first blocks are computed; they are not kept."""
        for row in self.dataset.limit(count).iter_rows():
            yield dict(row)

    def num_elements(self) -> int | None:
        """Return the number of rows once the dataset has been executed, before that None."""
        # To ask would execute the dataset.
        if "_blocks" not in self.__dict__:
            return None
        return sum(rows for _, rows in self._blocks)

    def identity(self) -> str:
        """Return a digest of the blocks' references: it is new for every execution of a dataset."""
        digest = hashlib.sha256()
        for reference, rows in self._blocks:
            digest.update(f"{reference.hex()}:{rows};".encode())
        return f"RayDataset:{digest.hexdigest()}"

    @cached_property
    def _blocks(self) -> tuple[tuple[Any, int], ...]:
        materialized = self.dataset.materialize()
        entries = [entry for bundle in materialized.iter_internal_ref_bundles() for entry in bundle.blocks]
        return tuple((entry.ref, entry.metadata.num_rows) for entry in entries if entry.metadata.num_rows)
