"""What a group of sharing readers does: who reads where, what must be produced, how far a run goes, when all is over.

Pure, like the job beneath it: things happen to it, and it returns what must be done.

Decisions: docs/decisions/sharing.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from pecan_ray.cache import SlidingWindow
from pecan_ray.errors import PlanError
from pecan_ray.job.share_trials import IncompleteTrials, RankTurns, TrialMember, TrialRank
from pecan_ray.job.slow_readers import IdleReader, SlowReaders

SharedEntry = TypeVar("SharedEntry")


@dataclass(frozen=True, order=True)
class Place:
    """Of an entry: its epoch, and its number in that."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class SendEntry(Generic[SharedEntry]):
    """Give a reader an entry that it has wished for."""

    reader: str
    entry: SharedEntry
    skipped: int
    """By this reader so far."""


@dataclass(frozen=True)
class Finish:
    """Tell a reader that it has had all its epochs; it is no reader any more."""

    reader: str
    skipped: int = 0


@dataclass(frozen=True)
class LeaveBehind:
    """Tell a reader that the others go on without it; it is no reader any more."""

    reader: str
    skipped: int
    seconds: float
    """Seconds that the others have waited for it."""


@dataclass(frozen=True)
class TellWaiting:
    """Tell readers for whom they wait."""

    readers: tuple[str, ...]
    slow: tuple[str, ...]
    seconds: float
    """Seconds for which these have read nothing."""


@dataclass(frozen=True)
class Produce:
    """Take one more entry from the run; answered by `produced` or `ran_out`."""


@dataclass(frozen=True)
class BeginRun:
    """Go on with a run of so many epochs in all (None: without end), from where the last one ended.

    `restart_from`: begin another run, with the epoch of that number.
    """

    epochs: int | None
    restart_from: int | None = None


@dataclass(frozen=True)
class MoveToDisk(Generic[SharedEntry]):
    """Memory holds no more, and somebody has not read this; answered by `disk_failed` if at all."""

    entry: SharedEntry


@dataclass(frozen=True)
class EndGroup:
    """Nobody has read for long."""


GroupInstruction: TypeAlias = (
    SendEntry[SharedEntry]
    | MoveToDisk[SharedEntry]
    | Finish
    | LeaveBehind
    | TellWaiting
    | Produce
    | BeginRun
    | EndGroup
)


@dataclass(frozen=True)
class ReaderStats:
    """How one reader is doing."""

    reader: str
    read: int = 0
    skipped: int = 0
    lag: int = 0
    """Entries that the window holds and it has not read."""
    waiting: bool = False
    """For the next epoch to begin."""


@dataclass
class _Reader:
    epochs: int | None
    since: Place
    """Where its epochs begin."""
    waiting: bool
    turns: RankTurns
    requests: int = 0
    read: int = 0

    def ends(self) -> Place | None:
        """Return the place before which it has had all; None: there is none."""
        return None if self.epochs is None else Place(self.since.epoch + self.epochs, self.since.index)


class ShareGroup(Generic[SharedEntry]):
    """The readers of a group and the window between them and its run."""

    def __init__(
        self,
        capacity_bytes: int,
        linger_s: float,
        *,
        max_lag: int | None = None,
        disk_bytes: int = 0,
        first_epoch: int = 0,
        patience_s: float = 60.0,
    ) -> None:
        """`capacity_bytes`: of the window in memory; `disk_bytes`: of what it holds besides, on disk.

        `patience_s`: others wait for so long for a reader that reads nothing.
        """
        self.window: SlidingWindow[tuple[Place, SharedEntry]] = SlidingWindow(
            capacity_bytes, max_lag=max_lag, overflow_bytes=disk_bytes
        )
        self._exact = max_lag is not None
        self._positions: deque[Place] = deque()
        """Of what the window holds."""
        self._next = Place(first_epoch)
        """Of the next entry, if its epoch goes on."""
        self._base: int | None = None
        """The epoch with which the last run began that began anew; None: none has yet."""
        self._run: int | None = 0
        """Where the run that is under way ends: before the epoch of this number; 0: there is none."""
        self._entry_requested = False
        """The run owes an entry."""
        self._held: tuple[SharedEntry, int, Place] | None = None
        """What was produced and may not be pushed yet."""
        self._readers: dict[str, _Reader] = {}
        self._trials = IncompleteTrials()
        self.slow = SlowReaders(linger_s, patience_s)
        self.ended = False

    # --- what happens --------------------------------------------------------------------------------------

    def join(self, reader: str, epochs: int | None, *, behind: int = -1, of: TrialRank | None = None) -> Place:
        """Let a reader in, that wants so many epochs (None: without end); return where these begin.

        Args:
            reader: A name that no other reader has.
            epochs: How many.
            behind: The last epoch of this group that the same program has read before: it gets later ones.
            of: Its trial, if that has several ranks. They begin together, at the same entry, once all have come.

        Raises:
            PlanError: The group has ended, or the reader does not fit to the other ranks of its trial.
        """
        if self.ended or reader in self._readers:
            raise PlanError(f"{reader} cannot join: {'the group has ended' if self.ended else 'it has before'}.")
        if of is None:
            return self._admit(TrialMember(reader, epochs, behind, TrialRank()))
        complete = self._trials.add(TrialMember(reader, epochs, behind, of))
        return [self._admit(one) for one in complete][-1] if complete else self._next

    def _admit(self, member: TrialMember) -> Place:
        reader = member.reader
        new = partial(_Reader, member.epochs, turns=RankTurns(member.of), requests=member.requests)
        oldest = self._positions[0] if self._positions else None
        # Decision 44: with `max_lag` no reader begins in the middle of an epoch.
        if oldest is not None and oldest.epoch > member.behind and (not self._exact or oldest.index == 0):
            self.window.attach(reader, at="oldest")
            self._readers[reader] = new(oldest, waiting=False)
        # Between two epochs of the run: the reader begins at the front, with the next one.
        elif self._next.index == 0:
            self.window.attach(reader, at="newest")
            self._readers[reader] = new(self._next, waiting=False)
        else:
            self._readers[reader] = new(Place(self._next.epoch + 1), waiting=True)
        return self._readers[reader].since

    def request(self, reader: str, count: int = 1) -> list[GroupInstruction[SharedEntry]]:
        """A reader has room for so many more entries."""
        if (member := self._trials.find(reader)) is not None:
            member.requests += count
        if reader not in self._readers:
            return []  # it has had all meanwhile, or its trial is not complete
        self._readers[reader].requests += count
        served, self._trials.to_serve = (*self._trials.to_serve, reader), ()
        done = [one for name in served if name in self._readers for one in self._serve(name)]
        return [*done, *self._go_on()]

    def leave(self, reader: str) -> list[GroupInstruction[SharedEntry]]:
        """A reader is gone, or wants no more."""
        if reader in self._readers:
            # The reader that goes may have held the front back.
            self._remove(reader)
        self._trials.remove(reader)
        return self._go_on()

    def produced(self, entry: SharedEntry, nbytes: int, epoch: int) -> list[GroupInstruction[SharedEntry]]:
        """The run has given an entry of an epoch; raises PlanError for one larger than the window."""
        self.window.may_push(nbytes)  # which refuses one that is too large
        self._entry_requested = False
        # Entries come in order, so one of a later epoch shows that the epoch before has ended.
        place = Place(epoch) if epoch > self._next.epoch else self._next
        if place.index == 0:
            self._next = place
            # Before the entry is pushed: readers that have waited for this epoch begin with it.
            self._start_waiting()
        self._held = entry, nbytes, place
        return self._go_on()

    def disk_failed(self) -> None:
        """Nothing can be moved to disk any more."""
        self.window.stop_overflow()

    def ran_out(self) -> list[GroupInstruction[SharedEntry]]:
        """The run has given all entries of its epochs."""
        if self._run is None:  # there is nothing in an epoch, or the next one would follow
            finished: list[GroupInstruction[SharedEntry]] = [Finish(name) for name in self._readers]
            self._entry_requested, self._run = False, 0
            for name in list(self._readers):
                self._remove(name)
            return finished
        self._entry_requested, self._next, self._run = False, Place(self._run), 0
        self._start_waiting()
        return [*self._serve_all(), *self._go_on()]

    def time(self, now: float) -> list[GroupInstruction[SharedEntry]]:
        """Let time pass."""
        holders = self.held_back_by
        # Time in which nobody waits for the slowest readers does not count against them.
        waiting = tuple(name for name, one in self._readers.items() if one.requests and name not in holders)
        self.slow.passes(now, self._idle_readers(holders) if waiting and holders else (), empty=not self.readers)
        if self.slow.is_over(now) and not self.ended:
            self.ended = True
            return [EndGroup()]
        done: list[GroupInstruction[SharedEntry]] = []
        if named := self.slow.to_name(now):
            done.append(TellWaiting(waiting, tuple(named), max(named.values())))
        left = self.slow.left_behind()
        for name, seconds in left.items():
            done.append(LeaveBehind(name, self._skipped(name), seconds))
            self._remove(name)
        return [*done, *self._go_on()] if left else done

    def _idle_readers(self, holders: tuple[str, ...]) -> tuple[IdleReader, ...]:
        return tuple(
            IdleReader(name, one.read, name in holders, one.turns.is_one_of_many)
            for name, one in self._readers.items()
            if name in holders or not (one.requests or one.waiting)
        )

    # --- what can be told ----------------------------------------------------------------------------------

    @property
    def readers(self) -> tuple[ReaderStats, ...]:
        """How the readers are doing, in the order in which they came."""
        coming = (ReaderStats(one.reader, waiting=True) for one in self._trials.members())
        return (*(self.stats(name) for name in self._readers), *coming)

    def stats(self, name: str) -> ReaderStats:
        """Return how one reader is doing."""
        reader = self._readers[name]
        if reader.waiting:
            return ReaderStats(name, waiting=True)
        return ReaderStats(name, reader.read, self._skipped(name), self.window.lag(name))

    @property
    def held_back_by(self) -> tuple[str, ...]:
        """Readers for which the front waits, if it does."""
        return tuple(map(str, self.window.slowest())) if self._held or not self.window.may_push() else ()

    @property
    def place(self) -> Place:
        """Where the front is."""
        return self._next

    # --- inside --------------------------------------------------------------------------------------------

    def _skipped(self, name: str) -> int:
        return self.window.skipped(name) + self._readers[name].turns.dropped

    def _serve_all(self) -> list[GroupInstruction[SharedEntry]]:
        return [done for name in list(self._readers) for done in self._serve(name)]

    def _serve(self, name: str) -> list[GroupInstruction[SharedEntry]]:
        """Hand a reader what it has wished for and the window holds."""
        done: list[GroupInstruction[SharedEntry]] = []
        reader = self._readers[name]
        ends = reader.ends()
        while reader.requests and not reader.waiting:
            found = self.window.read(name)
            # At the front the next entry counts, so a reader with all its epochs ends without
            # waiting for one more.
            place = self._next if found is None else found[0]
            if ends is not None and place >= ends:
                reader.turns.drop()
                done.append(Finish(name, self._skipped(name)))
                self._remove(name)
                break
            if found is None:
                break
            entry = reader.turns.take(found[0].index, found[1])
            if entry is None:
                continue  # it is another rank's, or waits for the rest of its round
            reader.requests -= 1
            reader.read += 1
            done.append(SendEntry(name, entry, self._skipped(name)))
        return done

    def _go_on(self) -> list[GroupInstruction[SharedEntry]]:
        """Push what waits to be pushed, and have more produced if somebody at the front wishes for it."""
        done = self._push_held()
        if self._entry_requested or self._held is not None or not self.window.may_push():
            return done
        # Decision 44: nothing is made before it is wished for. What runs ahead is the queue of the run's job.
        if not any(reader.requests for reader in self._readers.values()):
            return done
        if self._run != 0 and self._next.index and all(reader.waiting for reader in self._readers.values()):
            self._base, self._run = None, 0  # nobody reads the rest of this epoch
            self._next = Place(self._next.epoch + 1)
            self._start_waiting()
        if self._run == 0:
            return [*done, self._begin()]
        self._entry_requested = True
        return [*done, Produce()]

    def _push_held(self) -> list[GroupInstruction[SharedEntry]]:
        """Push the entry that waits for room in the window, if there is room now, and serve readers with it."""
        if self._held is None or not self.window.may_push(self._held[1]):
            return []
        (entry, nbytes, place), self._held = self._held, None
        self.window.push((place, entry), nbytes)
        self._positions.append(place)
        done: list[GroupInstruction[SharedEntry]] = []
        done += [MoveToDisk(moved) for _, moved in self.window.take_overflow()]
        while len(self._positions) > len(self.window):
            self._positions.popleft()
        self._next = replace(place, index=place.index + 1)
        return done + self._serve_all()

    def _begin(self) -> BeginRun:
        """Begin a run that is as long as its readers need, and take its first entry."""
        anew = self._next.epoch if self._base is None else None
        base = self._base = self._next.epoch if self._base is None else self._base
        needed = [reader.ends() for reader in self._readers.values()]
        known = [end for end in needed if end is not None]
        endless = len(known) < len(needed)
        # A reader that began in the middle of an epoch ends in the middle of one: the run needs that one, too.
        self._run = None if endless else max(end.epoch + (end.index > 0) for end in known)
        self._entry_requested = True
        return BeginRun(None if self._run is None else self._run - base, anew)

    def _start_waiting(self) -> None:
        """An epoch begins: so do those who have waited for it."""
        for name, reader in self._readers.items():
            if reader.waiting:
                self.window.attach(name, at="newest")
                reader.waiting, reader.since = False, self._next

    def _remove(self, name: str) -> None:
        # A reader that waits for the next epoch is not attached to the window yet.
        if not self._readers.pop(name).waiting:
            self.window.detach(name)
