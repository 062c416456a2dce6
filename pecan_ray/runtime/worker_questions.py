"""What a worker asks its job: numbered, so that a repeated question is answered as before."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ray

from pecan_ray.cache.substitution import LOOK_AHEAD
from pecan_ray.engines.contract import BadElement, Produced, SpansByKey
from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.lots import ONE_BY_ONE, SideBySide, elements_in
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    EndData,
    Lengths,
    NoMoreLeases,
    Offered,
    UnopenedSplit,
    WorkerAsked,
    WorkerProgress,
    WorkerQuestion,
)
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.runtime.calls import PAUSE_S
from pecan_ray.runtime.messages import left_out, left_out_whole
from pecan_ray.sampling.spans import Spans

MOST_IN_LOT = 4096
MOST_IN_RUN = 1 << 20
"""Rows that are asked for at a time."""
LEAST_LOOK = 32
"""So many of the next splits are looked at, to find some that are at hand, however few are wanted."""
AHEAD_S = 1.0
"""The next lot is asked for while half of one is left, if a lease takes less than this: what a worker holds and has not
begun, no other one can do at the end of an epoch."""


def ask_again(method: Any, *arguments: Any) -> Any:
    """Wait for a controller's answer, and call again while its process is lost, and Ray starts it again.

    Nobody need give up: what keeps the workers ends them where it does not come.
    """
    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.ActorUnavailableError:
            time.sleep(PAUSE_S)


@dataclass(frozen=True)
class PendingQuestion:
    """A question that was asked, and may have to be asked again."""

    pickled: bytes
    answer: Any
    """Ray's reference to it."""

    def when_there(self, call: Callable[[Any], None]) -> None:
        """Have a function called with the answer in a thread of Ray's, if it comes without being asked for again."""

        def there(came: Future[bytes]) -> None:
            if came.exception() is None:  # else whoever needs the answer sees it
                call(pickle.loads(came.result()))

        self.answer.future().add_done_callback(there)


class Asking:
    """The worker's side of the conversation."""

    def __init__(self, worker: str, controller: Any, heartbeat: Heartbeat) -> None:
        self._worker, self._controller, self._heartbeat = worker, controller, heartbeat
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        """Guards the numbers."""

    def ask(self, channel: str, question: WorkerQuestion) -> PendingQuestion:
        """Ask a question; return what `answer` waits for.  One at a time for each channel."""
        with self._lock:
            number = self._numbers[channel] = self._numbers.get(channel, 0) + 1
        self._heartbeat.asked = time.monotonic()
        # Ray passes bytes on as they are, which costs the controller less than an object.
        pickled = pickle.dumps(WorkerAsked(self._worker, channel, number, question))
        return PendingQuestion(pickled, self._controller.ask.remote(pickled))

    def answer(self, asked: PendingQuestion) -> Any:
        """Wait for the answer to a question; where the controller's process is lost, the next one is asked the same."""
        try:
            return pickle.loads(ray.get(asked.answer))
        except ray.exceptions.ActorUnavailableError:
            return pickle.loads(ask_again(self._controller.ask, asked.pickled))


EpochBeginning: TypeAlias = tuple[int, Sequence[Split]]


@dataclass
class Branch:
    """What a worker holds of one source."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Whoever takes a lease waits for it with this."""
    here: deque[Lease] = field(default_factory=deque)
    lot: int = 0
    """So many leases came with the last answer."""
    asked: PendingQuestion | None = None
    """Whose answer is to come,"""
    asked_beside: bool = False
    """and does not wait for more to be listed: the worker has others to read."""
    offered: tuple[Split, ...] = ()
    """Some of the splits that come next."""
    foreseen: EpochBeginning = (-1, ())
    """An epoch, and what it begins with."""
    lease_s: float | None = None
    """How long a lease takes, lately; a row, where runs are asked for."""
    given: deque[float] = field(default_factory=deque)
    """When those were handed out that are read,"""
    given_rows: int = 1
    """and how many rows the last one has: 1 where these are not numbered, and nothing is asked for by them."""
    in_rows: bool = False

    def hand_out(self, lease: Lease, now: float | None) -> None:
        """Note that a lease is handed out; None: nobody will read it."""
        if now is not None:
            self.given.append(now)
        if self.in_rows != (lease.row is not None):
            self.in_rows, self.lease_s = lease.row is not None, None
        self.given_rows = (elements_in(lease) or 1) if self.in_rows else 1


def lot_of(mine: Branch, lot_s: float) -> int:
    """Return how many leases (or rows) to ask for at a time, so that they take so long; 1 while that is not known."""
    if mine.lease_s is None:
        return 1
    return max(1, min(MOST_IN_RUN if mine.in_rows else MOST_IN_LOT, int(lot_s / max(mine.lease_s, 1e-9))))


def _leases(answer: Offered | NoMoreLeases | Sequence[Lease]) -> Sequence[Lease]:
    if isinstance(answer, NoMoreLeases):
        return ()
    return answer.leases if isinstance(answer, Offered) else answer


def _splits_to_come(answer: Offered | NoMoreLeases | Sequence[Lease]) -> Sequence[Split]:
    """Return what will be read after an answer: in this epoch, or at the beginning of the next one."""
    return answer.next_epoch if isinstance(answer, NoMoreLeases) else [lease.split for lease in _leases(answer)]


class WorkerLeases:
    """A worker's leases, as its engine sees them: several in one call where they are soon done."""

    def __init__(
        self,
        asking: Asking,
        coming: Callable[[int, Sequence[Split]], None] = lambda *_: None,
        at_hand: Callable[[int, Sequence[Split]], tuple[int, ...] | None] = lambda *_: None,
        *,
        ahead: bool,
        one_sequence: bool = False,
    ) -> None:
        """`ahead`: every lease that is taken will be worked on, so that some may be taken early: not so where `take`
        and `zip` may leave some of a whole plan's splits unread.

        `one_sequence`: which leases are worked on at a time decides the order of results: it is the same in each run.
        `coming` is given the source's number and the splits of each lot as soon as it is here, from any thread, and
        again when the first of them is taken; and what the next epoch begins with.  `at_hand` is given that number and
        splits of which it returns the indices of those that had better go first, or None where that does not matter.
        """
        self._asking, self._ahead, self._coming, self._at_hand = asking, ahead, coming, at_hand
        self._one_sequence = one_sequence
        self._rows: dict[LeaseKey, tuple[int, int]] = {}
        """Of the splits of this assignment, the row that their first element is, and how many there are."""
        self._branches: dict[int, Branch] = {}
        self._lengths: list[tuple[tuple[int, int, int], int]] = []
        self._unopened: list[UnopenedSplit] = []
        self._noting = threading.Lock()
        """Guards both."""
        self._epoch, self.lot_s = 0, 0.5
        self.stopped = threading.Event()

    def begin(self, assigned: Assigned) -> Assignment:
        """Begin with an assignment."""
        self._rows.clear()
        self._epoch, self.lot_s = assigned.assignment.epoch, assigned.lot_s
        for number, branch in self._branches.items():
            if branch.foreseen[0] == self._epoch:  # else it is still to come
                self._coming(number, branch.foreseen[1])
                branch.foreseen = (-1, ())  # an epoch may have several assignments
        return assigned.assignment

    def drop(self) -> None:
        """Forget the leases of an assignment that was left, and what was to be told of it."""
        self._noted()
        for branch in self._branches.values():
            with branch.lock:
                if branch.asked is not None:
                    self._asking.answer(branch.asked)
                branch.here.clear()
                branch.asked, branch.offered = None, ()
                branch.given.clear()

    def take(self, branch: int = 0, *, unread: bool = False) -> Lease | None:
        """Return the next lease, or None at the end of the assignment; `unread`: it is likely not to be read."""
        return self._take(branch, ONE_BY_ONE, unread=unread)

    def take_beside(self, branch: int, reading: int, streams: int) -> Lease | None:
        """Return the next lease while `reading` others are worked on, of `streams` at a time; None: not now."""
        return self._take(branch, ONE_BY_ONE if self._one_sequence else SideBySide(streams, reading))

    def _take(self, branch: int, side: SideBySide, *, unread: bool = False) -> Lease | None:
        mine = self._branches.setdefault(branch, Branch())
        with mine.lock:
            if self.stopped.is_set():
                return None
            self._time(mine, side.reading)
            asked_beside = True
            while not mine.here and asked_beside:
                asked_beside = self._fill(branch, mine, side, unread=unread) and not side.reading
            if not mine.here:
                return None
            lease = mine.here.popleft()
            if lease.row is not None:
                self._rows[lease.key] = lease.row, lease.split.elements or 0
            if self._ahead and self._wants_more(mine):
                had = side.reading + 1 + len(mine.here) if side.streams > 1 else 0
                mine.asked, mine.asked_beside = self._ask(branch, mine, SideBySide(side.streams, had)), had > 0
                mine.asked.when_there(lambda answer: self._coming(branch, _splits_to_come(answer)))
            mine.hand_out(lease, None if unread else time.monotonic())
            return lease

    def _fill(self, branch: int, mine: Branch, side: SideBySide, *, unread: bool) -> bool:
        """Take the answer to a question that was asked, or is now; return whether no lease in it would mean no end."""
        if mine.asked is None:
            mine.asked, mine.asked_beside = self._ask(branch, mine, side, unread=unread), side.reading > 0
        answer, mine.asked = self._asking.answer(mine.asked), None
        mine.here.extend(_leases(answer))
        mine.lot = len(mine.here)
        mine.offered = answer.splits if isinstance(answer, Offered) else ()
        if isinstance(answer, NoMoreLeases):
            mine.foreseen = self._epoch + 1, answer.next_epoch
        if not unread:
            self._coming(branch, _splits_to_come(answer))
        return mine.asked_beside

    @staticmethod
    def _wants_more(mine: Branch) -> bool:
        """Tell whether to ask for the next lot: its files come while the other half of this one is read."""
        soon = mine.lease_s is not None and mine.lease_s * mine.given_rows < AHEAD_S
        return soon and mine.asked is None and len(mine.here) <= mine.lot // 2

    def _ask(self, branch: int, mine: Branch, side: SideBySide, *, unread: bool = False) -> PendingQuestion:
        most = MOST_IN_LOT if unread else lot_of(mine, self.lot_s) if self._ahead else 1
        most = max(most, side.streams - side.reading)
        at_hand = None if unread else self._at_hand(branch, mine.offered)
        look = 0 if at_hand is None else max(LEAST_LOOK, LOOK_AHEAD * most)
        lengths, unopened = self._noted()
        asked = (self._epoch, branch, most, lengths, look, at_hand or (), unopened, side.streams, side.reading)
        question = AskLeases(*asked)
        return self._asking.ask(f"take:{branch}", question)

    @staticmethod
    def _time(mine: Branch, reading: int) -> None:
        """Note how long leases took that are not read any more, with what the trainer made them wait.

        Of several that are read at a time each takes its share of the time.
        """
        at_a_time = len(mine.given)
        while len(mine.given) > reading:
            took = (time.monotonic() - mine.given.popleft()) / mine.given_rows / at_a_time
            mine.lease_s = took if mine.lease_s is None else mine.lease_s + 0.3 * (took - mine.lease_s)

    def first_row(self, produced: Produced) -> int | None:
        """Return which row of the epoch a batch begins with; None where rows are not numbered, or others come between.

        A split that is longer than it told has rows with the numbers of others: these count as not numbered.
        """
        if not all(key in self._rows for key in produced.spans):
            return None
        begins: list[int] = []
        ends: list[int] = []
        for key, spans in produced.spans.items():
            data = Spans(spans)
            for nothing in produced.without_data.get(key, ()):
                data.remove(*nothing)
            row, elements = self._rows[key]
            for start, stop in data:
                begins.append(row + (start >> OUTPUT_BITS))
                ends.append(row + ((stop - 1) >> OUTPUT_BITS) + 1)
                if ends[-1] > row + elements:
                    return None
        first = min(begins, default=0)
        return first if begins and max(ends) - first == produced.rows else None

    def ended(self, lease: Lease, elements: int) -> None:
        """Report the length of a split, with the next question that is due."""
        with self._noting:
            self._lengths.append((lease.key, elements))

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Say, with the next question that is due, that this worker cannot open a split: the job gives it to others."""
        with self._noting:
            self._unopened.append(UnopenedSplit(lease.key, lease.spans, left_out_whole([bad])[0]))
        return True

    def _noted(self) -> tuple[Lengths, tuple[UnopenedSplit, ...]]:
        with self._noting:
            noted = tuple(self._lengths), tuple(self._unopened)
            self._lengths, self._unopened = [], []
        return noted

    def ask_for_work(self, progress: WorkerProgress) -> Assigned | None:
        """Wait for an assignment; None when there is nothing more to do."""
        answer = self._asking.answer(self._asking.ask("run", AskAssignment(progress)))
        return answer if isinstance(answer, Assigned) else None

    def end(self, leftover: SpansByKey, batches: int, rows: int) -> bool:
        """End the assignment; return whether the `rows` elements that fill no batch become a smaller one."""
        lengths, unopened = self._noted()
        question = EndAssignment(self._epoch, leftover, batches, lengths, rows, unopened)
        return bool(self._asking.answer(self._asking.ask("run", question)) == "flush")

    def tell_end(self, spans: SpansByKey, rows: int, bad: list[BadElement], *, keep: bool) -> None:
        """Tell of data that yields no batch; `keep`: its bad elements are to be kept by a trainer."""
        lost = left_out_whole(bad) if keep else tuple(left_out(one) for one in bad)
        self._asking.answer(self._asking.ask("run", EndData(self._epoch, spans, rows, lost)))
