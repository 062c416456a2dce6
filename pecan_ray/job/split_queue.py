"""The splits of one source that nobody has begun: a cursor over an epoch's order instead of an object for each."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from pecan_ray.job.pass_order import Listing, PassOrder, Share
from pecan_ray.job.resume_point import BranchPoint, Cursor, Rest
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.random_keys import SplitOrder
from pecan_ray.sampling.spans import Span, Spans

# Passes that stand for no end: it is compared with what workers could ever take, and never dealt out.
MANY = 1 << 40
GROWTH = 1.25
"""While a listing goes on, what is listed joins the shuffled order when there are so many times more splits, or when
the order is used up: so a few numbers tell how an order has come about."""
MOST_PASSED = 1 << 17
"""Most splits that are passed over: some 20 MB."""
MOST_NAMES = 2048
"""Files that are named in one offer."""
Keys: TypeAlias = Set[LeaseKey]
WantedSplits: TypeAlias = "deque[int] | None"
"""Indices of splits that go first, of those that were offered: what was looked for is taken out."""


class SplitQueue(PassOrder):
    """Leases that wait in the passes over a source: first those that came back, then what nobody has begun.

    Without shuffling splits go in the order of the listing.  With it they go in a random order of all of them; while
    the listing goes on, in that order of the ones known so far.  Of these, some may be offered: then those go next that
    are wanted (Quiver §4.7), and the others after all that were not offered, in the order in which they were looked at.
    """

    def __init__(
        self, listing: Listing, branch: int, order: SplitOrder | None, share: Share = (0, 1), passes: int | None = 1
    ) -> None:
        """`share`: (k, n), only every n-th split from number k on; n = 0: only what is put back.

        `passes`: so many in each epoch; None: no end.  `order`: how splits are shuffled; None: they come as listed.
        """
        super().__init__(listing, branch, order, share)
        self._passes = passes
        self.returned: deque[Lease] = deque()
        """What came back, which goes first."""
        self._not_seen: list[Rest] = []
        """Of a run before this one, begun splits that are not listed yet."""
        self._missing: deque[tuple[int, int]] = deque()
        """The places of these splits in the order, as far as it has not come to them again."""
        self._used: dict[tuple[int, int], tuple[Span, ...]] = {}
        """By pass and split, what that run has used after it told all this: to be left out of both."""
        self.begin(0, 0)

    def begin(self, epoch: int, pass_index: int) -> None:
        """Begin a pass: all splits wait again; what came back from the pass before still goes first."""
        super().begin(epoch, pass_index)
        self._passed: OrderedDict[int, int] = OrderedDict()
        """Offered and not taken, with their places in the order: the one that was looked at longest ago first."""
        self._replay: deque[tuple[int, int]] = deque()
        """Of a run before this one, how its order grew: nothing is begun before it has grown so again."""

    def go_on(self, epoch: int, point: BranchPoint) -> None:
        """Go on where a run before this one was: at its cursor, with what is missing of begun splits."""
        self.begin(epoch, point.cursor.pass_index)
        self._at = point.cursor.taken
        self._replay.extend(point.cursor.extensions)
        self._missing.extend(point.cursor.missing)
        self._not_seen.extend(point.remaining_parts)
        self._used = {(rest.pass_index, rest.index): rest.spans for rest in point.used}

    def cursor(self) -> Cursor:
        """Return how far the pass has come."""
        grown = (*zip(self._extensions[::2], self._extensions[1::2], strict=True), *self._replay)
        # What was offered and not taken has its place in the order behind it, so it counts as missing.
        passed = ((place, place + 1) for place in self._passed.values())
        return Cursor(self.pass_index, self._at, tuple(sorted([*self._missing, *passed])), grown)

    def remaining_parts(self) -> Iterator[Rest]:
        """Yield what has come back, or has not been listed since a run before this one."""
        for lease in self.returned:
            yield Rest(lease.split.index, lease.pass_index, lease.spans)
        yield from self._not_seen

    def used(self) -> tuple[Rest, ...]:
        """Return what is still to be left out of `cursor` and `remaining_parts`."""
        return tuple(Rest(index, pass_index, spans) for (pass_index, index), spans in sorted(self._used.items()))

    def __len__(self) -> int:
        fresh = self._fresh()
        # `_fresh` comes first, because it takes notice of what was listed since.
        return fresh + len(self._passed) + len(self.returned)

    def __bool__(self) -> bool:
        return self._fresh() > 0 or bool(self._passed or self.returned)

    def __iter__(self) -> Iterator[Lease]:
        """Yield what waits, in no particular order where it is shuffled."""
        self.catch_up()
        yield from self.returned
        yield from map(self._lease, self._passed)
        # Until the order has come about again nobody knows which splits were begun.
        if not (self._replay or self._used):
            yield from (self._lease(int(index)) for index in self._order[self._at :])
            yield from (self._lease(index) for index in self._not_yet_ordered[max(0, self._at - len(self._order)) :])

    def put_back(self, lease: Lease, *, last: bool = False) -> None:
        """Let a lease be the next one, or the `last` one of those that came back."""
        (self.returned.append if last else self.returned.appendleft)(lease)

    def take_returned_lease(self, key: LeaseKey) -> Lease | None:
        """Take a lease out that came back; None if it does not wait."""
        found = next((lease for lease in self.returned if lease.key == key), None)
        if found is not None:
            self.returned.remove(found)
        return found

    def has_for(self, barred: Set[LeaseKey]) -> bool:
        """Tell whether a lease waits, or may come, for somebody for whom some that came back are barred."""
        if self._fresh() > 0 or self._passed or self.passes_left:
            return True
        return any(lease.key not in barred for lease in self.returned)

    def clear(self) -> None:
        """Drop what came back; the epoch begins anew."""
        self.returned.clear()
        self._missing.clear()
        self._not_seen.clear()
        self._used.clear()
        self.begin(self._epoch, 0)

    @property
    def passes_left(self) -> int:
        """How many passes may follow the current one, as far as is known; endless ones count as many."""
        if not (self._listing.complete and self.splits):
            return 0
        return MANY if self._passes is None else max(0, self._passes - self.pass_index - 1)

    def next_fresh(self) -> Split | None:
        """Return the split that comes next of those that nobody has begun; None if none is known."""
        if self._fresh():
            return self._listing[int(self._order[self._at])] if self._at < len(self._order) else None
        return self._listing[self._first] if self.passes_left else None

    def peek_splits(self, most: int) -> list[Split]:
        """Return up to so many of the next splits, each once: from now on they go last, but for those that are wanted.

        What was offered before is offered again when there is nothing else.  Without shuffling there are no offers.
        """
        if self._shuffling is None:
            return []
        offered: list[Split] = []
        again = deque(islice(self._passed, most))
        names = 0
        while len(offered) < most and names < MOST_NAMES:
            if self._fresh() and len(self._passed) < MOST_PASSED:
                index, place = self._begin_next()
                self._passed[index] = place
            elif again:
                index = again.popleft()
                self._passed.move_to_end(index)
            else:
                break
            offered.append(self._listing[index])
            names += 1 + len(offered[-1].files)
        return offered

    def take(self, wanted: WantedSplits = None, barred: Keys = frozenset(), fresh_first: bool = False) -> Lease | None:
        """Return the next lease, or None if none waits now.

        `wanted`: indices of splits that go first if they wait and were offered; what was looked for is taken out.
        `barred`: leases that came back and are for others.  `fresh_first`: those that came back are the last of a pass.
        """
        fresh = self._fresh()
        # A worker that mixes splits takes fresh ones first: else its ten splits would be pieces of the one last cut.
        for place, lease in enumerate(() if fresh and fresh_first else self.returned):
            if lease.key not in barred:
                del self.returned[place]
                return lease
        while wanted:
            index = wanted.popleft()
            if self._passed.pop(index, None) is not None:
                return self._lease(index)
        if not fresh and self._passed:
            return self._lease(self._passed.popitem(last=False)[0])
        # A pass is not over while splits are yet to be listed that a run before this one has begun.
        return None if self._replay else self._next_of_any_pass()

    def _fresh(self) -> int:
        self.catch_up()
        early = bool(self._replay or self._used) or self._current_pass < self.pass_index
        return 0 if early else max(0, len(self._order) + len(self._not_yet_ordered) - self._at)

    @property
    def _current_pass(self) -> int:
        """The pass that nobody may go beyond: splits that a run before this one began in it are yet to be listed."""
        to_come = () if self._listing.complete else self._not_seen
        return min((rest.pass_index for rest in to_come if rest.index >= self._seen), default=self.pass_index)

    def catch_up(self) -> None:
        """Take notice of splits that were listed since."""
        self._extend_by_listed()
        if self._used and not self._lists_used():
            return
        if self._not_seen or self._missing:
            self._take_up()
        if self._used:
            self._leave_out_used()

    def _extend_by_listed(self) -> None:
        """Give places in the order to splits that were listed since."""
        splits = len(self._listing)
        while self._replay and self._replay[0][1] <= splits:
            started, listed = self._replay.popleft()
            self._extend(listed, started)
        enough = self._shuffling is None or self._listing.complete or splits >= GROWTH * self._seen
        if not self._replay and self._seen < splits and enough:
            self._extend(splits)

    def _lists_used(self) -> bool:
        """Tell whether all splits of which something was used have a place in the order."""
        if self._listing.complete:
            return True
        # Later passes, and orders that grow otherwise than before, are known when all is listed.
        behind = (self.pass_index, len(self._listing))
        return self._shuffling is None and not self.pass_index and max(self._used) < behind

    def _leave_out_used(self) -> None:
        """Begin all splits of which something was used, and let what is missing of them wait."""
        used, self._used = self._used, {}
        waiting, self.returned = self.returned, deque()
        while used or waiting:
            if not waiting and not self._fresh() and max(used)[0] <= self.pass_index:
                return  # the source has fewer splits now
            lease = waiting.popleft() if waiting else self._next_of_any_pass()
            if lease is None:
                return
            lease = _without(lease, used.pop((lease.pass_index, lease.split.index), ()))
            self.returned.extend([lease] if lease.spans else [])

    def _next_of_any_pass(self) -> Lease | None:
        """Begin the next split, if need be that of the next pass."""
        if not self._fresh():
            if not self.passes_left:
                return None
            self.begin(self._epoch, self.pass_index + 1)
            self.catch_up()
        return self._lease(self._begin_next()[0])

    def _take_up(self) -> None:
        """Let begun splits of a run before this one wait, as far as they have places, in the order of their passes."""
        if self._replay:
            return
        latest = self._current_pass
        missing = _take_below(self._missing, len(self._order)) if latest == self.pass_index else []
        found = [(self.pass_index, at, self._lease(int(self._order[at]))) for at in missing]
        listed, self._not_seen = _split_by_seen(self._not_seen, self._seen, latest)
        places = self.positions([rest.index for rest in listed])
        for rest, place in zip(listed, places, strict=True):
            lease = Lease(self._epoch, self._listing[rest.index], rest.spans, self._branch, rest.pass_index)
            found.append((rest.pass_index, place, lease))
        self.returned.extend(lease for _, _, lease in sorted(found, key=itemgetter(0, 1)))


def _without(lease: Lease, used: Sequence[Span]) -> Lease:
    """Return what is left of a lease."""
    if not used:
        return lease
    spans = Spans(lease.spans)
    spans.remove_all(used)
    end = END if lease.split.counted is None else lease.split.counted << OUTPUT_BITS
    # What is left keeps its end: where rows are joined, the trainer knows by that that the next split follows.
    return replace(lease, spans=tuple(spans) if any(start < end for start, _ in spans) else ())


def _take_below(ranges: deque[tuple[int, int]], end: int) -> list[int]:
    """Take the numbers below `end` out of ranges that follow one another."""
    taken: list[int] = []
    while ranges and ranges[0][0] < end:
        start, stop = ranges.popleft()
        taken += range(start, min(stop, end))
        if end < stop:
            ranges.appendleft((end, stop))
    return taken


def _split_by_seen(rests: Iterable[Rest], seen: int, latest: int) -> tuple[list[Rest], list[Rest]]:
    """Return the rests whose splits are among the first `seen`, of passes up to the latest, and the other rests."""
    listed: list[Rest] = []
    others: list[Rest] = []
    for rest in rests:
        (listed if rest.index < seen and rest.pass_index <= latest else others).append(rest)
    return listed, others
