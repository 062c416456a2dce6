"""Iterable data sets of PyTorch."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pecan_ray.errors import PlanError
from pecan_ray.plan.splits import Element, KnownSplits, Split
from pecan_ray.sources.files import check_positive
from pecan_ray.sources.libraries import library

_asking = threading.Lock()
"""PyTorch tells a data set through a variable of the process which of its workers asks it."""


@dataclass(frozen=True, eq=False)
class TorchIterable:
    """What a ``torch.utils.data.IterableDataset`` yields: dicts as they are, other values in the column ``item``.

    Each of `shards` splits is one iteration over the data set, in which ``get_worker_info()`` tells the number of the
    split and their count, as of a DataLoader with so many workers. A data set that does not look there yields all of
    its data in each of them: leave `shards` at 1, which one worker reads.  An element is found again by iterating anew
    up to it, so an iteration must give the same each time.
    """

    one_split_at_a_time: ClassVar[Literal[True]] = True

    dataset: Any = field(repr=False)
    shards: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_positive(shards=self.shards)
        if not isinstance(self.dataset, _torch("").IterableDataset):
            raise PlanError(
                f"TorchIterable needs a torch.utils.data.IterableDataset, but got {type(self.dataset).__name__}. Of a "
                "map-style data set take the indices: Items(range(len(dataset))), and map(dataset.__getitem__, ...)."
            )

    def splits(self) -> Iterator[Split]:
        """Yield one split for each shard."""
        yield from (Split(index=index, payload=index) for index in range(self.shards))

    def listed(self) -> KnownSplits:
        """Return its splits without the data set, whose class imports torch."""
        return KnownSplits(tuple(self.splits()))

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield elements from number `start` on; those before are iterated over."""
        for value in itertools.islice(self._shard(split.payload), start, None):
            yield dict(value) if isinstance(value, Mapping) else {"item": value}

    def num_elements(self) -> int | None:
        """Return the length of the data set where it has one and is read once."""
        try:
            return len(self.dataset) if self.shards == 1 else None
        except (TypeError, NotImplementedError):
            return None

    def identity(self) -> str:
        """Return a digest of the data set's class and the number of shards: its data is not known."""
        kind = type(self.dataset)
        told = repr((kind.__module__, kind.__qualname__, self.shards))
        return f"TorchIterable:{hashlib.sha256(told.encode()).hexdigest()}"

    def _shard(self, number: int) -> Iterator[Any]:
        worker: Any = _torch("._utils.worker")
        # No random seed: a shard that is read again must give the same elements.
        info = worker.WorkerInfo(id=number, num_workers=self.shards, seed=number, dataset=self.dataset)
        values: Iterator[Any] | None = None
        while True:
            with _asking:
                # For one value at a time: iterations over several splits may take turns in a process.
                before, worker._worker_info = worker._worker_info, info
                try:
                    values = values if values is not None else iter(self.dataset)
                    value = next(values)
                except StopIteration:
                    return
                finally:
                    worker._worker_info = before
            yield value


def _torch(module: str) -> Any:
    return library(f"torch.utils.data{module}", "sources.TorchIterable", "torch")
