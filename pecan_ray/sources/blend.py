"""A blend of several sources: exactly so many elements, in proportion to weights, some of them several times."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import PlanError
from pecan_ray.plan.arguments import positive
from pecan_ray.plan.splits import Element, Source, Split
from pecan_ray.plan.weight_schedule import checked_weights
from pecan_ray.sampling.random_keys import generator, sampler_key
from pecan_ray.sources.by_index import ByIndex, Indexed, SamplerArguments, indexed
from pecan_ray.sources.image_folder import ImageFolder
from pecan_ray.sources.memory import row_ranges


class Blend(ByIndex):
    """Exactly `samples` elements a pass of several sources, in proportion to weights, evenly mixed.

    Of a source that has fewer elements than its share all come, and come again in another order, as often as it takes:
    2.5 epochs of one source are two whole ones and a half.  Of one that has more each pass takes others.
    """

    def __init__(self, sources: Sequence[Source], *, weights: Sequence[float], samples: int) -> None:
        """Blend sources that `ByIndex` can read.

        Args:
            sources: whose elements have the same columns.
            weights: one for each source.
            samples: elements of a pass, of all sources together.
        """
        if not isinstance(sources, Sequence):
            raise PlanError(f"Blend(sources=...) must be a list of sources, but got {type(sources).__name__}.")
        given = tuple(sources)
        if any(isinstance(one, ImageFolder) and one.decode for one in given):
            raise PlanError('Blend: decode behind it, .map(pecan.images.Decode(), on="image"), and not in its sources.')
        shares = checked_weights("Blend(weights=...)", weights, len(given))
        joined = JoinedRows(given, tuple(indexed("Blend", one) for one in given))
        if empty := [place for place, size in enumerate(joined.sizes()) if not size and shares[place]]:
            raise PlanError(f"Blend: source {empty[0]} is empty and has a weight: leave it out.")
        order = BlendOrder(joined.sizes(), shares, positive("Blend(samples=...)", samples))
        self._sample("Blend", joined, SamplerArguments(order, None, None, shuffle=False), stacks=False)


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """The elements of several sources, numbered one source after the other."""

    given: tuple[Source, ...]
    """As they were written: options of storages are theirs."""
    parts: tuple[Indexed, ...]
    split_rows: ClassVar[int | None] = None
    counts_splits: ClassVar[bool] = True

    def sizes(self) -> tuple[int, ...]:
        """Return how many elements each source has."""
        return tuple(part.num_elements() or 0 for part in self.parts)

    def splits(self) -> Iterator[Split]:
        """Yield ranges of elements."""
        return row_ranges(self.num_elements(), None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the elements of a range."""
        return self.rows_at(range(split.start + start, self.num_elements() if split.stop is None else split.stop))

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the elements with some numbers; neighbours of one source are asked for together."""
        ends = np.cumsum(self.sizes())
        numbered = ((int(np.searchsorted(ends, index, side="right")), int(index)) for index in indices)
        for place, some in itertools.groupby(numbered, key=lambda one: one[0]):
            begin = int(ends[place - 1]) if place else 0
            yield from self.parts[place].rows_at([index - begin for _, index in some])

    def num_elements(self) -> int:
        """Return the number of all."""
        return sum(self.sizes())

    def identity(self) -> str:
        """Return a digest of those of all sources."""
        told = "\n".join(part.identity() for part in self.parts)
        return f"JoinedRows:{hashlib.sha256(told.encode()).hexdigest()}"


@dataclass(frozen=True)
class BlendOrder:
    """Draws numbers of joined elements."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    samples: int

    def __call__(self, epoch: int, seed: int) -> npt.NDArray[np.int64]:
        """Return the numbers of a pass: each source's share, spread evenly over it."""
        begins = np.cumsum([0, *self.sizes[:-1]])
        drawn = [self._of(place, count, epoch, seed) for place, count in enumerate(self.counts())]
        # Each element in the middle of its equal share of the pass; stable, so that all processes agree where
        # two are due.
        due = [(np.arange(len(one)) + 0.5) / max(1, len(one)) for one in drawn]
        order = np.argsort(np.concatenate(due), kind="stable")
        numbers: npt.NDArray[np.int64] = np.concatenate([one + at for one, at in zip(drawn, begins, strict=True)])
        return numbers[order]

    def counts(self) -> list[int]:
        """Return how many elements of each source a pass has: shares, rounded so that they add up."""
        shares = np.array(self.weights) / sum(self.weights) * self.samples
        counts = np.floor(shares).astype(np.int64)
        most_cut = np.argsort(counts - shares, kind="stable")
        counts[most_cut[: self.samples - int(counts.sum())]] += 1
        return [int(count) for count in counts]

    def _of(self, place: int, count: int, epoch: int, seed: int) -> npt.NDArray[np.int64]:
        size = self.sizes[place]
        # A key for each source: two of equal sizes are not drawn alike.
        draws = generator(sampler_key(seed, epoch, place + 1))
        # Each element once before any comes again.
        rounds = [draws.permutation(size) for _ in range(-(-count // size))] if count else []
        return np.concatenate(rounds)[:count].astype(np.int64) if rounds else np.empty(0, np.int64)
