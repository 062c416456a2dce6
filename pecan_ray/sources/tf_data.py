"""Existing tf.data pipelines as a source: each shard of the dataset is a split."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pecan_ray.errors import MissingExtraError, PlanError
from pecan_ray.plan.fingerprint import spelled_out
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import check_positive
from pecan_ray.sources.tf_randomness import restarting_randomness
from pecan_ray.sources.tf_shards import chain, check_shard, counted_by_shard, shuffles_anew

logger = logging.getLogger("pecan_ray")


@dataclass(frozen=True)
class TfDataSource:
    """The elements of the ``tf.data.Dataset`` that a function makes.

    A function of ``(num_shards, shard_index)`` is called for each of `num_shards` shards, so that many workers
    share the data; one without parameters is read as a whole, by one worker.  A dataset of tuples has the
    columns "0", "1" and so on; nested names are joined by "/".  Elements are counted within their shard: a
    shard must yield the same elements in the same order whenever it is read, or "exactly once" cannot hold
    when a worker is lost (shuffle with a seed, and ``reshuffle_each_iteration=False``).

    Of several shards, one without an end (``repeat()``) is refused, since no worker would leave it, and so is one that
    drops a remainder (``drop_remainder=True``), which would be dropped of each, or shuffles without a seed before it is
    sharded.  Random numbers whose state begins anew with the dataset are warned of, and other shuffles without a seed.
    """

    make_dataset: Callable[..., Any] = field(hash=False)
    num_shards: int = field(default=16, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.make_dataset):
            raise PlanError(
                f"from_tf_data needs a function that makes a dataset, but got {type(self.make_dataset).__name__}: a "
                "dataset cannot be sent to workers, but a function can."
            )
        check_positive(num_shards=self.num_shards)

    @property
    def sharded(self) -> bool:
        """Whether the function takes (num_shards, shard_index)."""
        parameters = inspect.signature(self.make_dataset).parameters.values()
        needed = [
            p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(needed) not in (0, 2):
            raise PlanError(
                f"from_tf_data: {spelled(self.make_dataset)} takes {len(needed)} arguments, but it must take none, or "
                "(num_shards, shard_index)."
            )
        return len(needed) == 2

    def splits(self) -> Iterator[Split]:
        """Yield one split for each shard."""
        for index in range(self.num_shards if self.sharded else 1):
            yield Split(index=index, path=f"shard {index} of {spelled(self.make_dataset)}")

    def dataset(self, split: Split) -> Any:
        """Return a shard's tf.data.Dataset of dicts from column name to tensor."""
        try:
            import tensorflow as tf
        except ImportError as error:
            raise MissingExtraError('from_tf_data needs TensorFlow: pip install "pecan_ray[tf]".') from error
        made = self.make_dataset(self.num_shards, split.index) if self.sharded else self.make_dataset()
        if not isinstance(made, tf.data.Dataset):
            raise PlanError(
                f"from_tf_data: {spelled(self.make_dataset)} returned {type(made).__name__}, not a tf.data.Dataset."
            )
        shards = self.num_shards if self.sharded else 1
        check_shard(made, spelled(self.make_dataset), shards)
        if drawn := restarting_randomness(made):
            _warn_of_randomness(spelled(self.make_dataset), drawn, shards)
        if shards > 1 and (counted := counted_by_shard(made)):
            _warn_of_counting(spelled(self.make_dataset), counted, shards)
        if any(map(shuffles_anew, chain(made))):
            _warn_of_shuffling(spelled(self.make_dataset))
        return made.map(lambda *parts: columns_of(parts[0] if len(parts) == 1 else parts))

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield a shard's elements from number `start` on, as NumPy values."""
        for element in self.dataset(split).skip(start).as_numpy_iterator():
            yield dict(element)

    def num_elements(self) -> None:
        """Return None: the dataset would have to be made in the trainer's process to count it."""
        return

    def identity(self) -> str:
        """Return what the function does, spelled out, and the number of shards."""
        return f"TfDataSource:{self.num_shards}:{spelled_out(self.make_dataset)}"


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_randomness(name: str, drawn: tuple[str, ...], shards: int) -> None:
    places = f"in each of its {shards} shards and in each epoch" if shards > 1 else "in each epoch"
    logger.warning(
        "from_tf_data: %s draws random numbers by %s. Their state begins anew wherever the dataset is made, which is "
        "%s: with a seed, the same numbers come again. Draw in a function behind from_tf_data (map(fn), where fn takes "
        "rng), or by tf.random.stateless_* with a seed that differs from element to element, and shuffle behind it, by "
        ".shuffle(n).",
        name,
        ", ".join(drawn),
        places,
    )


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_counting(name: str, counted: tuple[str, ...], shards: int) -> None:
    logger.warning(
        "from_tf_data: %s calls %s on its shards: the number counts in each of the %d shards, so that %d times as many "
        "elements are taken, or left out, as it says. If it is meant for the whole, call it in front of .shard().",
        *(name, " and ".join(counted), shards, shards),
    )


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_shuffling(name: str) -> None:
    logger.warning(
        "from_tf_data: %s shuffles without a seed, so that a shard has another order whenever it is read. If a worker "
        "is lost, or the job goes on from a state, elements come twice and others never. Shuffle behind from_tf_data, "
        "by .shuffle(n), or give the shuffle a seed.",
        name,
    )


def columns_of(value: Any) -> dict[str, Any]:
    """Return a nested structure of tensors as flat columns."""
    return dict(_flat("", value))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        parts = [(str(name), inner) for name, inner in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [(str(number), inner) for number, inner in enumerate(value)]
    else:
        yield prefix or "0", value
        return
    for name, inner in parts:
        yield from _flat(f"{prefix}/{name}" if prefix else name, inner)


def spelled(fn: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    return str(getattr(fn, "__name__", type(fn).__name__))
