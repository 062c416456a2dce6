"""Data that workers die of: what several died with is run apart, in ever smaller pieces, down to the element to blame.

A worker that dies holds many leases, and machines fail too: only what two workers have died with is suspected.  What is
suspected is cut into pieces, each of which is an assignment of its own.  Most come through; the one whose worker dies
is cut again.  An element that has killed two workers by itself is left out, in this epoch and those to come.

Of some sources an element is reached only through those before it, which are computed for it, and others ahead of it (a
pipeline of tf.data).  Their pieces are tried one after the other, from the front.  Where workers have died of an
element, and die of the one behind it, too, it is not known which element is to blame: the rest is left out.

A worker that hangs is killed, and is a loss like another one; but it can say with which element, which need not be
looked for then.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.messages import LeftOutElement, WorkerProgress
from pecan_ray.job.suspicion import CRASHED, Suspicion
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, origin_of
from pecan_ray.sampling.spans import Span, Spans

# Decision 29: halving costs a worker for each halving, ten for 1,000 elements. So many pieces take two levels.
PIECES = 32
"""Into so many pieces suspects are cut: those that are innocent cost little, and each guilty one costs a worker."""
STRIKES = 2
"""Workers that must have died with it."""
MOST_APART = 16
"""Workers that may die of pieces of one split before an element is found, or any piece of it comes through."""
OR_AHEAD = "or one that its dataset computes ahead of it"
NOT_EXACT = (
    f"it, {OR_AHEAD}, ended the process of each worker that read it or what follows: nothing behind it can be reached"
)
STORAGE_ANSWERS_S = 40.0
"""A storage may take so long for its first answer (to connect, 10 s; to send something, 30 s): then the request has
failed, and is tried again with a patience of its own."""
BEHIND_ALL = 1 << 28
"""No split has so many elements."""
MOST_IN_VAIN = 5
"""Workers that may die one after the other of something that cannot be cut, and come no further: as many losses as a
job bears (`losses.MOST_IN_A_ROW`)."""
WHOLE_PLAN = "a plan that one worker runs as a whole"
Bundle: TypeAlias = tuple[Lease, ...]


def hung(progress: WorkerProgress, hung_after_s: float, branches: int) -> Suspicion | None:
    """Return what a worker hangs at by what it tells; None as long as it does not.

    `branches`: of sources beyond so many, which are read in step with the first one, no element is known here.
    """
    at, origin = progress.at, progress.at.origin if progress.at is not None else None
    if at is None:
        return None
    # Decision 36: waiting for a storage is no hang.
    hung_after_s = max(hung_after_s, STORAGE_ANSWERS_S) if at.reads else hung_after_s
    if progress.stuck_s <= hung_after_s:
        return None
    message = "it hangs: " + progress.stuck.replace("{seconds}", f"{progress.stuck_s:.0f} s")
    why = f"{at.op} had not done with it after {hung_after_s:.0f} s, twice (Config(hung_after_s=...))"
    place = (
        None
        if origin is None or origin.branch >= branches
        else ((origin.branch, origin.repetition, origin.split), origin.element)
    )
    return Suspicion(at.op, why, message, place, at.reads)


@dataclass(frozen=True)
class FatalElement:
    """An element that kills workers."""

    lease: Lease
    """What was to be delivered of it, in the epoch at hand."""
    element: int
    by: Suspicion
    with_rest: bool = False
    """What lies behind it in its split goes with it."""

    def left_out(self) -> LeftOutElement:
        """Return it as an element that is left out."""
        op, why = self.by.op, self.by.why
        identity = (op, self.lease.epoch, self.lease.key, self.element)
        origin = origin_of(self.lease, self.element)
        where = self.lease.split.where(self.element)
        if not self.with_rest:
            return LeftOutElement(identity, op, where, why, origin=origin)
        known = elements_in(self.lease)
        return LeftOutElement(identity, op, where, NOT_EXACT, known or 1, origin=origin, open_end=known is None)


# Why pieces and no log of elements:
# docs/decisions/faults-and-silence.md#29-elements-that-kill-workers; of sources that are read from the front, 192
class FatalElementTracker:
    """What workers have died with."""

    def __init__(self, from_front: Collection[int] = ()) -> None:
        """`from_front`: sources of which an element is reached only through those before it."""
        self._from_front = frozenset(from_front)
        self._held: set[LeaseKey] = set()
        """Of their splits, those of which a worker has a piece: it is the only one."""
        self._confirming: dict[LeaseKey, tuple[Lease, Suspicion]] = {}
        """An element of which workers have died: it is to blame if a worker lives that reads the one behind it."""
        self._unreachable: dict[tuple[int, int], int] = {}
        """Of source and split: from this element on nothing is read."""
        self._death_counts: Counter[Hashable] = Counter()
        """How many workers of this epoch died with a lease, or with an element alone."""
        self._waiting: deque[Bundle] = deque()
        self._fatal_elements: dict[tuple[int, int], dict[int, Suspicion]] = {}
        """Elements that are left out, by source and split, and what workers were lost of."""
        self._deaths_without_progress: Counter[Hashable] = Counter()
        self._reached: dict[Hashable, int] = {}
        self.found: list[FatalElement] = []
        """What has been left out since somebody took these."""
        self.fatal_reason = ""
        """Why the job cannot come further."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._confirming)

    def positions(self) -> Iterator[tuple[LeaseKey, Iterable[Span]]]:
        """Yield the positions that wait here."""
        yield from ((lease.key, lease.spans) for bundle in self._waiting for lease in bundle)
        yield from ((key, lease.spans) for key, (lease, _) in self._confirming.items())

    def take(self, barred: Set[LeaseKey]) -> Bundle:
        """Return what one worker shall work on, and on nothing else; empty: nothing waits that it can open.

        `barred`: leases that the worker could not open.
        """
        closed = barred | self._held
        found = next((one for one in self._waiting if closed.isdisjoint(lease.key for lease in one)), ())
        if found:
            self._waiting.remove(found)
            self._held.update(lease.key for lease in found if lease.branch in self._from_front)
        return found

    def returned(self, keys: Iterable[LeaseKey]) -> None:
        """Note that a worker works no longer on what it was given: another one may have the next piece."""
        self._held.difference_update(keys)

    def take_out(self, key: LeaseKey) -> list[Lease]:
        """Take everything out that waits of a lease, which no worker can open."""
        taken = [lease for bundle in self._waiting for lease in bundle if lease.key == key]
        kept = (tuple(lease for lease in bundle if lease.key != key) for bundle in self._waiting)
        self._waiting = deque(bundle for bundle in kept if bundle)
        if key in self._confirming:
            taken.append(self._confirming.pop(key)[0])
        return taken

    def ended(self, key: LeaseKey, elements: int) -> None:
        """Forget the pieces behind the last element of a split, whose length is known now."""
        stop = elements << OUTPUT_BITS
        # Pieces of a split of unknown length reach far behind its end (`_cut_open`).
        kept = ([one for one in bundle if one.key != key or one.spans[0][0] < stop] for bundle in self._waiting)
        self._waiting = deque(tuple(bundle) for bundle in kept if bundle)

    def begin_epoch(self) -> None:
        """Forget what the last epoch was about, but for the elements that are left out."""
        self._waiting.clear()
        self._held.clear()
        self._confirming.clear()
        self._death_counts.clear()
        self._deaths_without_progress.clear()
        self._reached.clear()

    def died(self, held: Sequence[Lease], by: Suspicion = CRASHED) -> list[Lease]:
        """Take what a worker has died with; return the part that any worker may have."""
        # Decision 36: an element that a worker has named need not be looked for in pieces, which costs fewer workers.
        if by.at is not None:
            self.hung(held, by, *by.at)
            return [left for one in held if (left := self.without_fatal_elements(one)) is not None]
        self._death_counts.update(map(_split_of, held))
        suspected = [lease for lease in held if self._death_counts[_split_of(lease)] >= STRIKES]
        self.isolate_leases(suspected)
        return [lease for lease in held if self._death_counts[_split_of(lease)] < STRIKES]

    def isolate_leases(self, held: Sequence[Lease]) -> None:
        """Let what workers have died of be run apart, in pieces."""
        self._waiting.extend(split_into_parts(held))

    def put_back(self, held: Sequence[Lease]) -> None:
        """Take back what was given to a worker that is lost, and did not die of it."""
        if held:
            self._waiting.appendleft(tuple(held))

    def hung(self, held: Sequence[Lease], by: Suspicion, key: LeaseKey, element: int) -> None:
        """Note that a worker with these leases hung at one element, which the second such worker puts to blame."""
        begin, end = element << OUTPUT_BITS, (element + 1) << OUTPUT_BITS
        mine = [one for one in held if one.key == key and any(a < end and b > begin for a, b in one.spans)]
        if not mine:
            return
        self._death_counts[(*key, element)] += 1
        # Decision 36: one worker may hang for another reason, so two must have hung at the element.
        if self._death_counts[(*key, element)] < STRIKES:
            return
        if by.reads:  # what lies behind it is not bad, and nobody comes to it
            self.fatal_reason = (
                f"{STRIKES} workers have hung while they were reading one element; the last one, since {by.cause}. "
                "Look at the storage; Config(hung_after_s=...) says how long one element may take"
            )
            return
        self.blame(mine[0], element, by)

    def blame(self, lease: Lease, element: int, by: Suspicion) -> None:
        """Leave an element of a lease's split out from now on."""
        self._fatal_elements.setdefault(_split_of(lease), {})[element] = by

    def blame_in_order(self, lease: Lease, element: int, by: Suspicion) -> str:
        """Leave an element out where rows come in order; return why the job cannot go on, if so.

        There nothing can be tried out of turn: of what is read from the front, the element behind must not die, too.
        """
        if lease.branch not in self._from_front:
            self.blame(lease, element, by)
            return ""
        if element - 1 in self._fatal_elements.get(_split_of(lease), ()):
            where = lease.split.where(element - 1)
            return f"workers have died that read {where}, and what lies behind it: {where} is to blame, {OR_AHEAD}"
        self.blame(lease, element, replace(by, why=f"{by.why}; it is to blame, {OR_AHEAD}"))
        return ""

    def first_in(self, lease: Lease) -> int | None:
        """Return the first element that is left out of those of a lease of one interval; None if there is none."""
        ((begin, end),) = lease.spans
        known = self._fatal_elements.get(_split_of(lease), ())
        return min((n for n in known if n << OUTPUT_BITS < end and n + 1 << OUTPUT_BITS > begin), default=None)

    def note_left_out(self, lease: Lease) -> None:
        """Note that the element with which a lease begins is left out, if it kills workers."""
        element = lease.spans[0][0] >> OUTPUT_BITS
        if (by := self._fatal_elements.get(_split_of(lease), {}).get(element)) is not None:
            self.found.append(FatalElement(lease, element, by))

    def note_single_death(self, held: Sequence[Lease], by: Suspicion = CRASHED) -> None:
        """Take what a worker has died with that worked on nothing else."""
        if by.at is not None:
            self.put_back(self.died(held, by))
            return
        if len(held) == 1 and held[0].key in self._confirming:
            self._leave_out_rest(held[0])
            return
        pieces = split_into_parts(held)
        for split in {_split_of(lease) for lease in held}:
            self._death_counts["apart", split] += 1
            if self._death_counts["apart", split] > MOST_APART:
                self.fatal_reason = (
                    f"{MOST_APART} workers have died of pieces of {held[0].split.where(0)} and what follows, and no "
                    "element was found that is to blame: look at their logs for a crash in native code"
                )
        if len(pieces) != 1:
            # In front and in order: a split is searched to its end before another suspect is begun.
            self._waiting.extendleft(reversed(pieces))
            return
        (lease,) = pieces[0]
        element = lease.spans[0][0] >> OUTPUT_BITS
        alone = (*lease.key, element)
        self._death_counts[alone] += 1
        # Decision 29: a machine that fails at the wrong time must not cost an element, so a second worker tries it.
        if self._death_counts[alone] < STRIKES:
            self._waiting.appendleft((lease,))
            return
        # Further deaths with this split are of another element, for which the search may cost as much again.
        del self._death_counts["apart", _split_of(lease)]
        if lease.branch in self._from_front:
            self._confirm(lease, by)
            return
        self.blame(lease, element, by)
        self.found.append(FatalElement(lease, element, by))

    def _confirm(self, lease: Lease, by: Suspicion) -> None:
        """Let the element behind one of which workers have died be read before that one is blamed."""
        self._confirming[lease.key] = lease, by
        behind = next((one for one in self._waiting if one[0].key == lease.key), None)
        if behind is None:
            # Nobody reads on there, so that nothing can be told apart.
            self._leave_out_rest(replace(lease, spans=()))
            return
        self._waiting.remove(behind)
        first, *rest = behind[0].spans
        begin, end = first
        cut = min(end, ((begin >> OUTPUT_BITS) + 1) << OUTPUT_BITS)
        if left := tuple(span for span in ((cut, end), *rest) if span[0] < span[1]):
            self._waiting.appendleft((replace(lease, spans=left),))
        self._waiting.appendleft((replace(lease, spans=((begin, cut),)),))

    def _leave_out_rest(self, behind: Lease) -> None:
        """Leave an element out and all behind it, since a worker has died that read what is `behind` it."""
        lease, by = self._confirming[behind.key]
        spans = sorted(span for one in (behind, *self.take_out(behind.key)) for span in one.spans)
        element = lease.spans[0][0] >> OUTPUT_BITS
        self._unreachable[_split_of(lease)] = element
        self.found.append(FatalElement(replace(lease, spans=tuple(spans)), element, by, with_rest=True))

    def note_success(self, keys: Iterable[LeaseKey]) -> None:
        """Note that a worker has lived through pieces: processes may die again and again, and get on."""
        for key in keys:
            branch, _, index = key
            self._death_counts.pop(("apart", (branch, index)), None)
            self._held.discard(key)
            if key in self._confirming:
                lease, by = self._confirming.pop(key)
                element = lease.spans[0][0] >> OUTPUT_BITS
                self.blame(lease, element, by)
                self.found.append(FatalElement(lease, element, by))

    def without_fatal_elements(self, lease: Lease) -> Lease | None:
        """Return a lease without the elements that kill workers; None if nothing else is in it."""
        spans = Spans(lease.spans)
        if (first := self._unreachable.get(_split_of(lease))) is not None:
            begin = first << OUTPUT_BITS
            mine = tuple((max(a, begin), b) for a, b in lease.spans if b > begin)
            if mine:
                spans.remove(begin, END)
                self.found.append(FatalElement(replace(lease, spans=mine), first, CRASHED, with_rest=True))
        for element, by in sorted(self._fatal_elements.get(_split_of(lease), {}).items(), key=lambda one: one[0]):
            begin, end = element << OUTPUT_BITS, (element + 1) << OUTPUT_BITS
            mine = tuple((max(a, begin), min(b, end)) for a, b in lease.spans if a < end and b > begin)
            if mine:
                spans.remove(begin, end)
                # Told in each epoch, because it is left out in each.
                self.found.append(FatalElement(replace(lease, spans=mine), element, by))
        return replace(lease, spans=tuple(spans)) if spans else None

    def record_death_without_progress(
        self, what: Hashable, reached: int, message: str, by: Suspicion = CRASHED
    ) -> None:
        """Note that a worker died of something that cannot be cut; it had come so far."""
        # Processes that die again and again may get on all the same: only deaths at one place count.
        if reached > self._reached.get(what, reached - 1):
            self._reached[what], self._deaths_without_progress[what] = reached, 0
        self._deaths_without_progress[what] += 1
        if by.at is not None:
            self._deaths_without_progress[by.at] += 1
        # Decision 36: nothing can be left out here, so two workers that hang at one element end the job.
        twice = by.at is not None and self._deaths_without_progress[by.at] >= STRIKES
        if by.cause and (twice or self._deaths_without_progress[what] > MOST_IN_VAIN):
            self.fatal_reason = (
                f"workers hang in {message} again and again, out of which no element can be left; the last one, since "
                f"{by.cause}. Config(hung_after_s=...) says how long one element may take"
            )
        elif self._deaths_without_progress[what] > MOST_IN_VAIN:
            self.fatal_reason = (
                f"{self._deaths_without_progress[what]} workers have died of {message}, one after the other, and came "
                "no further. Which element is to blame cannot be found there: look at their logs for a crash in native "
                "code, and at the memory of their nodes"
            )


def _split_of(lease: Lease) -> tuple[int, int]:
    """Return what names a split in all passes over the data: its source and its place."""
    return lease.branch, lease.split.index


def positions_in(lease: Lease) -> int:
    """Return how many positions a lease has."""
    return sum(stop - start for start, stop in lease.spans)


def split_into_parts(leases: Sequence[Lease]) -> list[Bundle]:
    """Cut leases into pieces; what is a single element comes back as it is."""
    if len(leases) != 1:
        size = -(-len(leases) // PIECES) or 1
        return [tuple(leases[at : at + size]) for at in range(0, len(leases), size)]
    (lease,) = leases
    begin, end = lease.spans[-1]
    if end != END:
        pieces = _cut(lease.spans)
    elif lease.split.counted is not None:
        # What is behind the last element goes with it.
        stop = max(begin + 1, lease.split.counted << OUTPUT_BITS)
        pieces = _cut((*lease.spans[:-1], (begin, stop)))
        pieces[-1][-1] = (pieces[-1][-1][0], END)
    else:
        pieces = [*_cut(lease.spans[:-1]), *_cut_open(begin)]
    return [(replace(lease, spans=tuple(spans)),) for spans in pieces]


def _cut(spans: Sequence[Span]) -> list[list[Span]]:
    """Cut spans between elements into pieces of equally many of them."""
    size = -(-sum(map(_touched, spans)) // PIECES)
    pieces: list[list[Span]] = []
    room = 0
    for begin, end in spans:
        while begin < end:
            if not room:
                pieces.append([])
                room = size
            cut = min(end, ((begin >> OUTPUT_BITS) + room) << OUTPUT_BITS)
            pieces[-1].append((begin, cut))
            room -= _touched((begin, cut))
            begin = cut
    return pieces


def _touched(span: Span) -> int:
    """Return how many elements a span touches."""
    return ((span[1] - 1) >> OUTPUT_BITS) + 1 - (span[0] >> OUTPUT_BITS)


def _cut_open(begin: int) -> list[list[Span]]:
    """Cut a span whose end is not known: into longer and longer pieces."""
    first = begin >> OUTPUT_BITS
    if first >= BEHIND_ALL:
        return [[(begin, END)]]
    # Pieces of doubling length reach the end of any split in thirty of them.
    cuts = [begin, *((first + (1 << bits)) << OUTPUT_BITS for bits in range(BEHIND_ALL.bit_length())), END]
    return [[span] for span in itertools.pairwise(cuts)]
