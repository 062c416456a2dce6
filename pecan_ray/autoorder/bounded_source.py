"""A source that ends when the time is up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from pecan_ray.autoorder.op_runner import SampleClock
from pecan_ray.plan.splits import Element, Source, Split
from pecan_ray.sources.files import with_files_ahead


class Bounded:
    """Another source's elements, until a deadline.

    A source that would compute all of its data before it gives any has a method `first(count)`, which is used instead.
    """

    def __init__(self, source: Source, count: int, deadline: float, clock: SampleClock) -> None:
        self._source, self._deadline, self._clock = source, deadline, clock
        self._count = count
        self._first: Callable[[int], Iterator[Element]] | None = getattr(source, "first", None)

    def splits(self) -> Iterator[Split]:
        """Yield the source's splits, in time."""
        splits = with_files_ahead(self._source, self._source.splits()) if self._first is None else [Split(0)]
        for split in splits:
            if self.over:
                return
            yield split

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the source's elements, in time."""
        if self._first is None:
            elements = self._source.read(split, start)
        else:
            elements = itertools.islice(self._first(self._count), start, None)
        for element in elements:
            if self.over:
                return
            yield element

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted: nothing more need be opened, which may take long of a bucket."""
        return self._clock() > self._deadline

    def num_elements(self) -> int | None:
        """Return the source's number of elements."""
        return self._source.num_elements()

    def identity(self) -> str:
        """Return the source's identity."""
        return self._source.identity()
