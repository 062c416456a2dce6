"""A source that ends when the time is up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from pecan_ray.autoorder.op_runner import SampleClock
from pecan_ray.plan.splits import Element, Source, Split
from pecan_ray.sources.files import with_files_ahead


class Bounded:
    """Another source's elements, until a deadline, and not many more than a sample needs; `exactly`: no more than that.

    A source that would compute all of its data before it gives any has a method `first(count)`, which is used instead.
    """

    def __init__(
        self, source: Source, count: int, deadline: float, clock: SampleClock, *, exactly: bool = False
    ) -> None:
        self._source, self._deadline, self._clock = source, deadline, clock
        self._count, self._most = count, float(count) if exactly else math.inf
        self._first: Callable[[int], Iterator[Element]] | None = getattr(source, "first", None)
        self.elements = 0
        """So many were given."""

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
            self.elements += 1
            yield element

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted: nothing more need be opened, which may take long of a bucket."""
        return self.elements >= self._most or self._clock() > self._deadline

    def num_elements(self) -> int | None:
        """Return the source's number of elements."""
        return self._source.num_elements()

    def identity(self) -> str:
        """Return the source's identity."""
        return self._source.identity()
