"""A sample spread over the whole data: a few elements of each split, and the splits evenly, wherever it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from pecan_ray.autoorder.op_runner import SampleClock, SampleLimits
from pecan_ray.engines.contract import Leases
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.plan.op_sequences import OpSequence, without_buffers
from pecan_ray.plan.operators import Join, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import OUTPUT_BITS, Element, Lease, Source, Split
from pecan_ray.sources.files import prefetching_files
from pecan_ray.sources.listing import list_splits

MOST_OPENED = 32
"""Splits that a sample is drawn from, as far as they hold enough."""


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
        splits = prefetching_files(self._source, self._source.splits()) if self._first is None else [Split(0)]
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


def _leases(branch: int, splits: Sequence[Split], elements: int, *, again: bool, later: bool) -> Iterator[Lease]:
    """Yield leases on so many elements; `again`: come back to splits for more, where others hold few."""
    opened = min(MOST_OPENED, len(splits))
    few = -(-elements // opened) if opened else 0
    starts = list(range(0, elements if again else 1, max(1, few)))
    # A first look has read the first round, so this comes last if other elements are wanted.
    for start in [*(starts[1:] or [few]), 0] if later else starts:
        # Evenly from the first one on: the time may be over behind any of them
        # (docs/decisions/autoorder.md#24-kept-orders-and-reverting).
        for place in evenly(len(splits)):
            split = splits[place]
            if split.elements is None or start < split.elements:
                span = (start << OUTPUT_BITS, (start + few) << OUTPUT_BITS)
                yield Lease(0, split, spans=(span,), branch=branch)


def _shares(plan: Plan, elements: int, *, again: bool = True) -> Iterator[tuple[int, bool]]:
    """Yield how many elements are wanted of each source: where sources follow each other, of each its share."""
    if not isinstance(plan.head, Join):
        yield elements, again
        return
    concat = plan.head.kind == "concat"
    for branch in plan.head.inputs:
        share = -(-elements // len(plan.head.inputs)) if concat else elements
        yield from _shares(branch, share, again=again and not concat)


def entering(stretch: OpSequence, limits: SampleLimits, clock: SampleClock) -> tuple[Plan, list[Source], Leases]:
    """Return the plan of what enters a stretch, its sources, which end in time, and the leases of a sample of it.

    Not spread is what needs the beginning of its data, and what would compute all of it before it has splits.
    """
    plan = without_buffers(stretch.prefix)
    bounded = [Bounded(one, limits.elements, limits.deadline, clock) for one in plan.sources()]
    sources: list[Source] = [*bounded]
    # `take`, `skip` and `zip` count from the beginning, so a sample of such a plan has to begin there.
    if not limits.spread or plan_shape(plan).serial or any(hasattr(source, "first") for source in plan.sources()):
        return plan, sources, AllLeases(sources, epoch=0, num_passes=1)
    streams = [
        _leases(branch, list_splits(source).splits, share, again=again, later=limits.later)
        for branch, (source, (share, again)) in enumerate(zip(sources, _shares(plan, limits.elements), strict=True))
    ]
    return plan, sources, SpreadLeases(streams, lambda: any(one.over for one in bounded))
