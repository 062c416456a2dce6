"""What the sides of a case have in common: the data, the functions, and the size of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:  # peers do not import it
    from pecan_ray.options import EngineName

Element: TypeAlias = dict[str, Any]
BatchColumns: TypeAlias = dict[str, Any]
BatchIterator: TypeAlias = Iterator[BatchColumns]
CPUS = os.cpu_count() or 1


@dataclass(frozen=True)
class Epochs:
    """A user's own tf.data pipeline, which is read epoch after epoch."""

    make_dataset: Callable[[int, int], Any]
    """Given the number of shards and an index, one epoch of a shard, in batches."""
    shards: int
    """Of `from_tf_data`; one shard is read as a whole."""


@dataclass(frozen=True)
class Recipe:
    """A case's work: element `n` is made of ``items[n % len(items)]``, without end."""

    items: Sequence[Any]
    """Small values that every side can send to its workers: paths, lines, numbers."""
    element: Callable[[Any, np.random.Generator], Element]
    """All of the work on one item."""
    batch: int
    pecan: Callable[[EngineName], Any]
    """Given the engine's name, our pipeline of the same functions."""
    known: Callable[[], Any] | None = None
    """Our pipeline of the same work by operators of `pecan_ray.images`, which AutoOrder knows; python engine."""
    graph: Callable[[str], Any] | None = None
    """Given a variant's name, a tf.data pipeline of TensorFlow's own operators, unbatched."""
    parts: dict[str, Callable[[Any, np.random.Generator], Any]] | None = None
    """Parts of the work, or the same in another order, measured on threads as physical bounds."""
    files: tuple[str, ...] = ()
    """Tables, where a case reads tables."""
    epochs: Epochs | None = None
    """A tf.data pipeline with ends, where a case is about those."""


def stacked(elements: Sequence[Element]) -> BatchColumns:
    """Stack elements into a batch, as users of loaders without a collation of their own do."""
    return {name: np.stack([element[name] for element in elements]) for name in elements[0]}


def shapes_of(batch: BatchColumns) -> dict[str, str]:
    """Describe a batch: type and shape of each column."""
    return {name: f"{np.asarray(value).dtype}{list(np.shape(value))}" for name, value in sorted(batch.items())}
