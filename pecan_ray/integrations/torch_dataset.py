"""A pipeline as a data set of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from pecan_ray.errors import PlanError
from pecan_ray.integrations.passes import EpochByEpoch, OnBreak, Passes


class TorchBatches(Passes, IterableDataset[dict[str, Any]]):
    """Batches of tensors, for ``DataLoader(dataset, batch_size=None, num_workers=0)`` or to be iterated over.

    Each iterator is a new pass.  It has `state_dict` and `load_state_dict` as data sets of torchdata's
    `StatefulDataLoader`.
    """

    def __init__(
        self,
        begin: Callable[..., EpochByEpoch],
        *,
        what: str,
        epochs: int | None,
        length: Callable[[], int],
        on_break: OnBreak = "new",
    ) -> None:
        super().__init__(begin, what=what, epochs=epochs, on_break=on_break)
        self._length = length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is not None:
            raise PlanError(
                f"{self._what} was given to a DataLoader with num_workers={worker.num_workers}: each of these "
                "processes would begin a job of its own. Pass num_workers=0 (and batch_size=None): pecan_ray has "
                "workers of its own, whose number iter_batches(workers=...) sets."
            )
        return super().__iter__()

    def __len__(self) -> int:
        return self._length()
