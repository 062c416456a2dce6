"""A source that ends when the time is up."""

from __future__ import annotations

from collections.abc import Iterator

from pecan_ray.plan.splits import Element, Source, Split
from pecan_ray.profiling.bench import Clock


class Bounded:
    """Another source's elements, until a deadline."""

    def __init__(self, source: Source, deadline: float, clock: Clock) -> None:
        self._source, self._deadline, self._clock = source, deadline, clock

    def splits(self) -> Iterator[Split]:
        """Yield the source's splits, in time."""
        for split in self._source.splits():
            if self._clock() > self._deadline:
                return
            yield split

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the source's elements, in time."""
        for element in self._source.read(split, start):
            if self._clock() > self._deadline:
                return
            yield element

    def num_elements(self) -> int | None:
        """Return the source's number of elements."""
        return self._source.num_elements()

    def identity(self) -> str:
        """Return the source's identity."""
        return self._source.identity()
