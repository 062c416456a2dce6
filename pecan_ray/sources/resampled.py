"""Splits of another source, drawn with replacement: a sample of shards in each pass, some more often than others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from pecan_ray.errors import PlanError, SourceError, describe_error, is_interrupt
from pecan_ray.plan.arguments import positive
from pecan_ray.plan.splits import Element, IndependentElements, RandomSource, Source, Split
from pecan_ray.sources.by_index import DrawnSource, SequencesKept
from pecan_ray.sources.samplers import Drawn, weighted

WeightOfPath: TypeAlias = Callable[[str], float]
"""Returns the weight of a shard, of which it is given the path."""


@dataclass(frozen=True, eq=False, init=False)
class Resampled(DrawnSource["DrawnShards"]):
    """The shards of another source, drawn with replacement in each pass: those of `WebDataset` and `TFRecords`.

    A draw is a split: read whole by one worker, delivered once, and known by its number in the pass, so that it comes
    again where it is missing.  Which shard a draw is follows from seed and pass.  With `repeat` behind it draws go on
    without end, and ``iter_batches(epoch_batches=...)`` says how long an epoch is.
    """

    source: Source
    listed: tuple[Split, ...] = field(repr=False)
    draws: int
    """In a pass."""
    counts_splits: ClassVar[bool] = False

    def __init__(
        self, source: Source, *, weights: Sequence[float] | WeightOfPath | None = None, draws: int | None = None
    ) -> None:
        """List the shards of a source.

        Args:
            source: whose splits are drawn, which are files or parts of them.
            weights: one for each shard, or a function of its path that returns it; None: all weigh the same.
            draws: shards in a pass; None: as many as there are.
        """
        if not isinstance(source, Source) or isinstance(source, RandomSource):
            raise PlanError(
                f"Resampled needs a source that lies in shards, such as WebDataset, but got {type(source).__name__}."
            )
        # Once and for all passes: what a draw's number stands for must not change
        # (docs/decisions/randomness-and-passes.md#163-epochs-of-a-fixed-length).
        listed = tuple(source.splits())
        if not listed:
            raise PlanError("Resampled: the source has no shards, of which none can be drawn.")
        count = len(listed) if draws is None else positive("Resampled(draws=...)", draws)
        sampler = weighted(
            "Resampled(weights=...)", _weights(weights, listed), len(listed), draws=count, item_name="shard"
        )
        made = {"source": source, "listed": listed, "draws": count, "sampler": sampler, "seed": 0}
        for name, value in {**made, "_kept": SequencesKept()}.items():
            object.__setattr__(self, name, value)

    def splits(self) -> Iterator[Split]:
        """Yield a split for each draw of a pass."""
        # Without path and range: which shard it is differs from pass to pass.
        return (Split(index=index) for index in range(self.draws))

    def _pass(self, epoch: int, seed: int) -> DrawnShards:
        return DrawnShards(self, self._kept.drawn(self.sampler, epoch, seed, len(self.listed)))

    def num_elements(self) -> None:
        """Return None: which shards a pass has is not known before."""

    def identity(self) -> str:
        """Return that of the source, and how its shards are drawn."""
        weights: Any = self.sampler.draw
        # Other weights draw other shards, of which a state would name wrong ones.
        digest = hashlib.sha256(weights.weights.tobytes()).hexdigest()
        return f"Resampled:{self.source.identity()}:{self.draws}:{digest}"


@dataclass(frozen=True)
class DrawnShards:
    """The shards of one pass."""

    whole: Resampled
    drawn: Drawn

    def splits(self) -> Iterator[Split]:
        """Yield those of each pass."""
        return self.whole.splits()

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the elements of the shard that a draw is."""
        return self.whole.source.read(self._shard(split), start)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield what `read` does, and errors in the place of what cannot be read, if the source can read on."""
        source = self.whole.source
        if isinstance(source, IndependentElements):
            return source.read_past_errors(self._shard(split), start)
        return self.read(split, start)

    def num_elements(self) -> None:
        """Return None: they are not counted."""

    def identity(self) -> str:
        """Return that of all passes."""
        return self.whole.identity()

    def _shard(self, split: Split) -> Split:
        return self.whole.listed[int(self.drawn.indices[split.index])]


def _weights(given: Any, listed: Sequence[Split]) -> Any:
    if given is None:
        return np.ones(len(listed))
    if not callable(given):
        return given
    try:
        return [given(split.path) for split in listed]
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PlanError(f"Resampled(weights=...) failed: {describe_error(error)}") from error
