"""A sample spread over the whole data: the splits evenly, and a few elements of each at random, wherever it ends.

Which elements of a split are drawn depends on their numbers and the split's alone, so each look has the same ones.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from pecan_ray.autoorder.op_runner import SampleClock, SampleLimits, Scans
from pecan_ray.engines.contract import Leases
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.own_results import NOTHING, own_element
from pecan_ray.errors import describe_error
from pecan_ray.plan.op_sequences import OpSequence, without_buffers
from pecan_ray.plan.operators import Join, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import OUTPUT_BITS, Element, Lease, RowRangeSource, Source, Split
from pecan_ray.sources.files import prefetching_files
from pecan_ray.sources.listing import list_splits

MOST_OPENED = 32
"""Splits that a sample is drawn from, as far as they hold enough."""
SCAN_S = 2.0
"""Where a split can only be read from its beginning, it is read on to draw elements from all of it, and not from its
first ones.  All splits together take so long for that: 2 s are a tenth of a look, and 500 MB of text."""
MOST_DRAWN = 1024
"""Numbers that are drawn of a split whose elements are read one by one: more than a sample takes of it."""


class _DrawnElements:
    """Of the elements that come one by one, those with the largest numbers, as many as there is room for."""

    def __init__(self, room: int, max_bytes: int) -> None:
        self.room, self._bytes_left = room, max_bytes
        self.count = 0
        """Elements that have come."""
        self.elements: list[tuple[float, int, Element]] = []
        """A heap: the number that was drawn, which element it is, and the element."""

    @property
    def is_full(self) -> bool:
        """Return whether another one takes the place of one of these."""
        return len(self.elements) == self.room

    def wants(self, drawn: float) -> bool:
        """Tell whether an element with this number is one of them."""
        return not self.is_full or drawn > self.elements[0][0]

    def add(self, drawn: float, element: Element) -> None:
        """Hold the element that has come, in the place of another one if there is no room."""
        if self.is_full:
            heapq.heapreplace(self.elements, (drawn, self.count, element))
            return
        heapq.heappush(self.elements, (drawn, self.count, element))
        self._bytes_left -= element_bytes(element)
        # More of them would not be taken: the sample has so many bytes at most.
        if self._bytes_left <= 0:
            self.room = len(self.elements)


class Bounded:
    """Another source's elements, until a deadline.

    A source that would compute all of its data before it gives any has a method `first(count)`, which is used instead.
    """

    def __init__(self, source: Source, limits: SampleLimits, clock: SampleClock, scans: Scans) -> None:
        self._source, self._limits, self._clock, self._scans = source, limits, clock, scans
        self._first: Callable[[int], Iterator[Element]] | None = getattr(source, "first", None)
        self._drawn: dict[tuple[int, int], tuple[Element | None, float]] = {}
        """By split and number: an element that was drawn, and the seconds of reading it; None: it is yet to be read."""
        self._lengths: dict[int, int] = {}
        """Elements of splits that were read to their ends."""

    def splits(self) -> Iterator[Split]:
        """Yield the source's splits, in time."""
        splits = prefetching_files(self._source, self._source.splits()) if self._first is None else [Split(0)]
        for split in splits:
            if self.over:
                return
            yield split

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the source's elements, in time; one that was drawn comes alone."""
        if (split.index, start) in self._drawn:
            element, seconds = self._drawn.pop((split.index, start))
            with self._scans.giving(seconds):
                yield from [element] if element is not None else itertools.islice(self._source.read(split, start), 1)
            return
        if self._first is None:
            elements = self._source.read(split, start)
        else:
            elements = itertools.islice(self._first(self._limits.elements), start, None)
        for element in elements:
            if self.over:
                return
            yield element

    @property
    def over(self) -> bool:
        """Return whether nothing more is wanted: nothing more need be opened, which may take long of a bucket."""
        return self._clock() > self._limits.deadline

    def draw(self, split: Split, first: int, stop: int, share: float) -> list[int]:
        """Return the numbers of some elements of a split: of all in the order in which they are drawn, a part.

        `share`: of the time for reading on that this split may take.
        """
        length = self._lengths.get(split.index, split.elements)
        if length is not None and first >= length:
            return []
        # What has numbers, or files, is read at any place; all else from its beginning.
        if length is not None and (split.files or isinstance(self._source, RowRangeSource)):
            numbers = random.Random(split.index).sample(range(length), min(length, max(MOST_DRAWN, stop)))
            numbers = numbers[:: -1 if self._limits.later else 1][first:stop]
            self._drawn.update({(split.index, number): (None, 0.0) for number in numbers})
            return numbers
        return self._scan(split, first, stop, SCAN_S * share)

    def _scan(self, split: Split, first: int, stop: int, seconds: float) -> list[int]:
        """Read a split on, as long as there is time, and hold what is drawn of it.

        Each element is given a random number, and those with the least ones are drawn: so they are spread over what
        was read, wherever that ends.
        """
        numbers, held, cut = random.Random(split.index), _DrawnElements(stop, self._limits.bytes), ""
        timer = self._scans.timer()
        timer.start()
        until = self._clock() + seconds
        try:
            for element in self._source.read(split):
                drawn = numbers.random() if self._limits.later else -numbers.random()
                if held.wants(drawn):
                    # Here, where nothing else holds the element: `own_element` counts references.
                    held.add(drawn, own_element(element, NOTHING, None, []))
                held.count += 1
                now = self._clock()
                if now > self._limits.deadline or (held.is_full and now > until):
                    cut = "there was no time to read on"
                    break
        except Exception as error:  # a source can raise anything: where nothing else is left, reading says where
            if not held.elements:
                return [first]
            cut = f"behind them is what cannot be read ({describe_error(error).splitlines()[0]})"
        each = timer.stop() / max(1, held.count)
        taken = sorted(held.elements, reverse=True)[first:]
        self._drawn.update({(split.index, number): (element, each) for _, number, element in taken})
        self._scans.add(split, held.count, len(taken), cut)
        self._scans.full |= held.room < stop
        if not cut:
            self._lengths[split.index] = held.count
        return [number for _, number, _ in taken]

    def num_elements(self) -> int | None:
        """Return the source's number of elements."""
        return self._source.num_elements()

    def identity(self) -> str:
        """Return the source's identity."""
        return self._source.identity()


def evenly(count: int) -> Iterator[int]:
    """Yield the numbers below `count` such that the first ones are spread evenly, however many are taken.

    That is van der Corput's sequence: 0, the middle, the quarters, the eighths.
    """
    bits = max(0, count - 1).bit_length()
    for number in range(1 << bits):
        # The bits of the number in reverse.
        place = int(f"{number:0{bits}b}"[::-1], 2) if bits else 0
        if place < count:
            yield place


class SpreadLeases:
    """Leases on a few elements of each split; round by round on more of them, where the splits hold few."""

    def __init__(self, streams: Sequence[Iterator[Lease]], over: Callable[[], bool]) -> None:
        """`over`: tells whether the time is up, and no more is wanted."""
        self._streams, self._over = streams, over

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease of a source."""
        return None if self._over() else next(self._streams[branch], None)

    def ended(self, lease: Lease, elements: int) -> None:
        """Do nothing: nobody asks."""


def _leases(branch: int, source: Bounded, splits: Sequence[Split], elements: int, *, again: bool) -> Iterator[Lease]:
    """Yield leases on so many elements; `again`: come back to splits for more, where others hold few."""
    opened = min(MOST_OPENED, len(splits))
    first, few = 0, -(-elements // opened) if opened else 0
    while first < (elements if again else 1) and few:
        stop = max(few, 2 * first)
        # Evenly from the first one on: the time may be over behind any of them
        # (docs/decisions/autoorder.md#24-kept-orders-and-reverting).
        for place in evenly(len(splits)):
            for number in source.draw(splits[place], first, stop, 1 / opened):
                span = (number << OUTPUT_BITS, (number + 1) << OUTPUT_BITS)
                yield Lease(0, splits[place], spans=(span,), branch=branch)
        first = stop


def _shares(plan: Plan, elements: int, *, again: bool = True) -> Iterator[tuple[int, bool]]:
    """Yield how many elements are wanted of each source: where sources follow each other, of each its share."""
    if not isinstance(plan.head, Join):
        yield elements, again
        return
    concat = plan.head.kind == "concat"
    for branch in plan.head.inputs:
        share = -(-elements // len(plan.head.inputs)) if concat else elements
        yield from _shares(branch, share, again=again and not concat)


def entering(
    stretch: OpSequence, limits: SampleLimits, clock: SampleClock, scans: Scans
) -> tuple[Plan, list[Source], Leases]:
    """Return the plan of what enters a stretch, its sources, which end in time, and the leases of a sample of it.

    Not spread is what needs the beginning of its data, and what would compute all of it before it has splits.
    """
    plan = without_buffers(stretch.prefix)
    bounded = [Bounded(one, limits, clock, scans) for one in plan.sources()]
    sources: list[Source] = [*bounded]
    # `take`, `skip` and `zip` count from the beginning, so a sample of such a plan has to begin there.
    if (
        not limits.spread
        or plan_shape(plan, order=False).serial
        or any(hasattr(source, "first") for source in plan.sources())
    ):
        return plan, sources, AllLeases(sources, epoch=0, num_passes=1)
    streams = [
        _leases(branch, source, list_splits(source).splits, share, again=again)
        for branch, (source, (share, again)) in enumerate(zip(bounded, _shares(plan, limits.elements), strict=True))
    ]
    return plan, sources, SpreadLeases(streams, lambda: any(one.over for one in bounded))
