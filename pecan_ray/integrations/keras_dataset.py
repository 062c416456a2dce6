"""A pipeline as what Keras' `fit` takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import keras

from pecan_ray.errors import ColumnError, PlanError, listed
from pecan_ray.plan.splits import Element

ColumnNames: TypeAlias = str | Sequence[str]
"""One column, or several, which Keras gets as a dict."""


class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """Batches of one job for ``model.fit``, whichever backend Keras has: `steps` of them make an epoch."""

    def __init__(
        self, begin: Callable[[], Iterator[Element]], columns: Sequence[ColumnNames], *, what: str, steps: int
    ) -> None:
        """`begin` starts the job; `columns`: of the inputs, the targets, and the weights, as far as there are."""
        super().__init__()
        self._begin, self._columns, self._what, self._steps = begin, columns, what, steps
        self._batches: Any = None
        self._in_epoch = False
        self._ahead: deque[tuple[Any, ...]] = deque()
        """Batches that Keras has looked at before its first epoch, to see their shapes."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self._steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if self._in_epoch and self._ahead:
            return self._ahead.popleft()
        batch = self._next()
        if not self._in_epoch:
            self._ahead.append(batch)
        return batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for _ in range(self._steps):
            yield self._next()

    def on_epoch_begin(self) -> None:
        """Keras begins with an epoch."""
        self._in_epoch = True

    def on_epoch_end(self) -> None:
        """Keras has ended an epoch, or begins with the first one; the job goes on."""
        self._in_epoch = False

    def close(self) -> None:
        """End the job; another one begins where more batches are asked for."""
        batches, self._batches = self._batches, None
        self._ahead.clear()
        if batches is not None:
            batches.close()

    def _next(self) -> tuple[Any, ...]:
        if self._batches is None:
            self._batches = self._begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            raise PlanError(
                f"{self._what}: all of its epochs were given, and Keras asks for more: {self._steps} batches for each "
                "of its own. Pass to_keras(epochs=None), or steps=... where an epoch has fewer batches than len(pipe)."
            ) from None
        return tuple(_chosen(batch, names) for names in self._columns)


def _chosen(batch: Element, names: ColumnNames) -> Any:
    for name in [names] if isinstance(names, str) else names:
        if name not in batch:
            raise ColumnError(f"to_keras: the batch has no column {name!r}; it has {listed(batch)}.")
    return batch[names] if isinstance(names, str) else {name: batch[name] for name in names}
