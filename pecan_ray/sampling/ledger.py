"""Who has which data, and what was delivered: the exactly-once ledger, as a pure state machine.

Let G be the positions given to workers, A those that clients acknowledged and R those taken back from lost or
finished workers.  At any time every position of an epoch is in exactly one of: waiting in a queue, held by one
worker (given, not acknowledged), or acknowledged.  An epoch is complete when only the last is left.

Words: a worker runs *stretches*.  In a stretch it takes leases until there are no more, and ends with elements
that do not fill a batch.  If it is the only one with work it may *flush* them as a smaller batch; otherwise it
*surrenders* them, and one worker finishes what all have surrendered (the *tail*).  So an epoch has at most one
smaller batch, whatever the number of workers.  With several trainers the tail is dealt in equal lots.

No Ray, no threads, no clock: the controller calls it under its own serialization.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.order import split_order
from pecan_ray.sampling.randomness import random_key
from pecan_ray.sampling.spans import Span, Spans

Key: TypeAlias = tuple[int, int, int]
Sharding: TypeAlias = Literal["dynamic", "off", "static"]
Visitation: TypeAlias = Literal["exactly_once", "at_most_once", "zero_or_more"]
Answer: TypeAlias = Literal["wait", "none", "stop"]

MANY = 1 << 40
MAX_DEALS = 3
"""How often a tail is dealt anew among trainers before what cannot be dealt equally is left out."""


@dataclass(frozen=True)
class Stretch:
    """Leave to start working: on an epoch, and for one rank only if the batches are addressed."""

    epoch: int
    rank: int | None = None
    dealt: tuple[int, ...] = ()
    """Not empty: deal the batches to the ranks in turn.  So many of each were delivered before: produce them again, in
    order, and leave them out."""


@dataclass(frozen=True)
class JobShape:
    """What the ledger needs to know of a job."""

    branches: int = 1
    epochs: int | None = 1
    repetitions: int | None = 1
    """Passes over the data within an epoch (`repeat`); None: no end."""
    sharding: Sharding = "dynamic"
    visitation: Visitation = "exactly_once"
    world_size: int = 1
    batch_size: int = 1
    shuffle_seed: int | None = None
    """Shuffle the order of the splits, anew in each epoch; None: as listed.  Splits that are asked for before the
    listing has ended are drawn from those known so far."""
    serial: bool = False
    """The plan cannot be cut: one worker gets every split of an epoch, in order."""


@dataclass
class Holding:
    """What a worker was given of a split and nobody has acknowledged yet."""

    lease: Lease
    missing: Spans


@dataclass
class WorkerState:
    """What the ledger knows of one worker."""

    holdings: dict[Key, Holding] = field(default_factory=dict)
    own: list[deque[Lease]] = field(default_factory=list)
    """Queues of this worker alone, per branch (sharding off and static)."""
    working: bool = False
    finished_epoch: int = -1
    unsettled: set[int] | None = None
    """Ranks that have yet to say what they received from this lost worker; None: it lives."""


class Ledger:
    """Bookkeeper of one job: splits in, leases out, acknowledgements in."""

    def __init__(self, shape: JobShape) -> None:
        self.shape = shape
        self.epoch = 0
        self.splits: list[list[Split]] = [[] for _ in range(shape.branches)]
        self.listed = [False] * shape.branches
        self.workers: dict[str, WorkerState] = {}
        self.counts = [0] * shape.world_size
        self.dropped: list[Lease] = []
        self.left_out_elements = 0
        self.finished = False
        self._queues: list[deque[Lease]] = [deque() for _ in range(shape.branches)]
        self._queued = [0] * shape.branches
        self._repetition = [0] * shape.branches
        self._pool: dict[Key, Holding] = {}
        self._lots: deque[tuple[int, list[Lease]]] = deque()
        self._tail_owner: str | None = None
        self._tail_rank: int | None = None
        self._deals = 0
        self._dealer: str | None = None
        """The worker that runs a whole plan in this epoch,"""
        self._dealt: int | None = None
        """and how many batches it makes, once it knows."""
        self._static: list[str] = []

    # --- splits become known -------------------------------------------------------------------------------

    def add_splits(self, branch: int, splits: Sequence[Split]) -> None:
        """Add a page of a source's listing; work on it may start at once."""
        self.splits[branch].extend(splits)
        self._refill(branch)

    def end_listing(self, branch: int) -> None:
        """Note that a source has no more splits."""
        self.listed[branch] = True
        if self.shape.shuffle_seed is not None:
            place = {split.index: number for number, split in enumerate(self._order(branch))}
            for queue in (self._queues[branch], *(state.own[branch] for state in self.workers.values())):
                waiting = sorted(queue, key=lambda lease: place[lease.split.index])
                queue.clear()
                queue.extend(waiting)
        self._advance()

    def _order(self, branch: int) -> Sequence[Split]:
        """Return all known splits in the order of the current pass."""
        if self.shape.shuffle_seed is None:
            return self.splits[branch]
        return split_order(self.splits[branch], self.shape.shuffle_seed, self.epoch, self._repetition[branch], branch)

    def _refill(self, branch: int) -> None:
        """Queue the splits of the current pass that are not queued yet."""
        shape = self.shape
        repetition = self._repetition[branch]
        known = self._order(branch) if self.listed[branch] else self.splits[branch]
        fresh = known[self._queued[branch] :]
        if not fresh:
            return
        self._queued[branch] = len(self.splits[branch])
        leases = [Lease(self.epoch, split, branch=branch, repetition=repetition) for split in fresh]
        if shape.sharding == "off":
            for state in self.workers.values():
                state.own[branch].extend(leases)
        elif shape.sharding == "static" and self._static:
            for lease in leases:
                owner = self.workers.get(self._static[lease.split.index % len(self._static)])
                (owner.own if owner and owner.unsettled is None else self._queues)[branch].append(lease)
        else:
            self._queues[branch].extend(leases)

    def _passes_to_come(self, branch: int) -> int:
        """Return how many passes of a `repeat` over a branch may follow the current one; endless ones count as many."""
        if self.shape.sharding != "dynamic" or not (self.listed[branch] and self.splits[branch]):
            return 0
        limit = self.shape.repetitions
        return MANY if limit is None else limit - self._repetition[branch] - 1

    def _next_repetition(self, branch: int) -> bool:
        """Begin the next pass of a `repeat` over a branch, if there is one."""
        if not self._passes_to_come(branch):
            return False
        self._repetition[branch] += 1
        self._queued[branch] = 0
        self._refill(branch)
        return True

    # --- workers -------------------------------------------------------------------------------------------

    def join(self, worker: str) -> None:
        """Register a worker."""
        state = WorkerState(own=[deque() for _ in range(self.shape.branches)])
        self.workers[worker] = state
        if self.shape.sharding == "off":
            for branch, splits in enumerate(self.splits):
                leases = (Lease(self.epoch, split, branch=branch) for split in splits[: self._queued[branch]])
                state.own[branch].extend(leases)

    def assign_static(self, workers: Sequence[str]) -> None:
        """Deal the splits of this and later epochs to these workers by index (static sharding)."""
        self._static = list(workers)
        if self.shape.sharding != "static":
            return
        for branch, queue in enumerate(self._queues):
            waiting = list(queue)
            queue.clear()
            for lease in waiting:
                self.workers[workers[lease.split.index % len(workers)]].own[branch].append(lease)

    def next_stretch(self, worker: str) -> Stretch | Answer:
        """Answer a worker that is idle: a stretch to work on, "wait" for a change, or "stop"."""
        state = self.workers.get(worker)
        if self.finished or state is None or state.unsettled is not None:
            return "stop"
        if self._tail_owner is None and self._lots and self._nobody_holds():
            rank, leases = self._lots.popleft()
            for lease in leases:
                self._queues[lease.branch].append(lease)
            self._tail_owner, self._tail_rank = worker, rank
        if self._tail_owner == worker:
            state.working = True
            return Stretch(self.epoch, self._tail_rank)
        if self._tail_owner is not None:
            return "wait"
        serial_elsewhere = self._dealer not in (None, worker)
        if self.shape.serial and not self._runs_whole:
            others = (state for name, state in self.workers.items() if name != worker)
            serial_elsewhere = any(other.working or other.holdings for other in others)
        has_work = any(state.own) or any(self._queues) or not all(self.listed) or self._passes_left
        if has_work and not serial_elsewhere and not (self.shape.sharding == "off" and not any(state.own)):
            state.working = True
            if self._runs_whole:
                self._dealer, self._dealt = worker, None
            return Stretch(self.epoch, dealt=tuple(self.counts) if self.shape.serial else ())
        return "wait"

    def take(self, worker: str, branch: int = 0) -> Lease | Answer:
        """Give a worker its next lease of a branch; "none" ends the branch for this stretch."""
        state = self.workers.get(worker)
        if self.finished or state is None or state.unsettled is not None:
            return "stop"
        if self._tail_owner is not None and self._tail_owner != worker:
            return "none"
        for queue in (state.own[branch], self._queues[branch]):
            if queue:
                self._draw(branch, queue)
                return self._give(state, queue.popleft())
        if not self.listed[branch]:
            return "wait"
        if self._tail_owner is None and self._next_repetition(branch):
            return self.take(worker, branch)
        return "none"

    def share(self, worker: str, branch: int = 0) -> int:
        """Return how many leases of a branch a worker may take at a time, so that all have work to the end.

        All that are its own; else half of an even share of what waits, passes to come included (as in guided
        self-scheduling, Polychronopoulos and Kuck, 1987).
        """
        state = self.workers.get(worker)
        own = len(state.own[branch]) if state is not None else 0
        waiting = len(self._queues[branch]) + self._passes_to_come(branch) * len(self.splits[branch])
        return own or max(1, waiting // (2 * max(1, len(self.workers))))

    def _draw(self, branch: int, queue: deque[Lease]) -> None:
        """While a shuffled source is being listed, bring one of the splits known so far to the front."""
        if self.shape.shuffle_seed is None or self.listed[branch]:
            return
        key = random_key(
            self.shape.shuffle_seed, self.epoch, 0, branch, len(self.splits[branch]), len(queue), 0, "draw"
        )
        drawn = key[0] % len(queue)
        queue[0], queue[drawn] = queue[drawn], queue[0]

    def _give(self, state: WorkerState, lease: Lease) -> Lease:
        missing = Spans(lease.spans)
        held = state.holdings.get(lease.key)
        if held is not None:
            for span in held.missing:
                missing.add(*span)
        state.holdings[lease.key] = Holding(lease, missing)
        return lease

    def ended(self, worker: str, key: Key, elements: int) -> None:
        """Note a split's length, read to its end: nothing is missing behind it."""
        state = self.workers.get(worker)
        if state is not None and key in state.holdings:
            self._fulfil(state, {key: [(elements << OUTPUT_BITS, END)]})

    def consumed(self, worker: str, spans: Mapping[Key, Iterable[Span]], *, left_out: int = 0) -> None:
        """Note data that ends at the worker: filtered, skipped, or a remainder that the user wants dropped."""
        self.left_out_elements += left_out
        state = self.workers.get(worker)
        if state is not None:
            self._fulfil(state, spans)

    def stretch_ended(
        self, worker: str, leftover: Mapping[Key, Iterable[Span]], batches: int = 0
    ) -> Literal["flush", "surrendered"]:
        """Decide about elements that fill no batch at the end of a stretch.

        `batches`: so many a whole plan has, one of these elements included.
        """
        state = self.workers[worker]
        state.working = False
        if worker == self._dealer:
            self._dealt = batches
        tail = self._tail_owner == worker
        if tail:
            self._tail_owner = None
        others = any(s.holdings or any(s.own) for name, s in self.workers.items() if name != worker)
        alone = not others and not any(self._queues) and not self._pool
        whole = self.shape.serial or self.shape.sharding == "off"
        if tail or whole or (alone and self.shape.world_size == 1):
            state.finished_epoch = self.epoch
            self._advance()
            return "flush"
        for key, spans in leftover.items():
            held = state.holdings.get(key)
            if held is None:
                continue
            returned = Spans(span for span in spans if held.missing.covers(*span))
            for span in returned:
                held.missing.remove(*span)
            self._return(held.lease, returned)
            if not held.missing:
                del state.holdings[key]
        self._advance()
        return "surrendered"

    def lost(self, worker: str) -> None:
        """Note that a worker is gone or has drained: what it holds comes back once every rank has settled."""
        state = self.workers.get(worker)
        if state is None or state.unsettled is not None:
            return
        state.working = False
        state.unsettled = set(range(self.shape.world_size))
        self._deals = 0  # a deal that a loss has spoilt does not count
        if self._tail_owner == worker:
            self._tail_owner = None
            for queue in self._queues:
                while queue:
                    lease = queue.popleft()
                    self._return(lease, Spans(lease.spans))
        for branch, queue in enumerate(state.own):
            if self.shape.sharding == "static":
                self._queues[branch].extend(queue)
            queue.clear()
        if self.shape.visitation == "zero_or_more":
            state.unsettled.clear()
        self._bury(worker)

    def settled(self, rank: int, worker: str) -> None:
        """Note that a client has told all that it received from a lost worker, and takes no more from it."""
        state = self.workers.get(worker)
        if state is not None and state.unsettled is not None:
            state.unsettled.discard(rank)
            self._bury(worker)

    def unsettled(self) -> dict[str, set[int]]:
        """Return the lost workers about which ranks have yet to settle, and these ranks."""
        return {name: state.unsettled for name, state in self.workers.items() if state.unsettled}

    def _bury(self, worker: str) -> None:
        state = self.workers[worker]
        if state.unsettled:
            return
        del self.workers[worker]
        unfinished = worker == self._dealer and not self._all_dealt() if self._runs_whole else bool(state.holdings)
        if self.shape.serial and unfinished:
            self._dealer = self._dealt = None
            # What take, skip or zip yield depends on the whole sequence: it is run again from its beginning.
            for branch, queue in enumerate(self._queues):
                queue.clear()
                self._queued[branch] = 0
                self._refill(branch)
            self._advance()
            return
        for held in state.holdings.values():
            if self.shape.sharding == "off" or self.shape.visitation == "at_most_once":
                self.dropped.append(replace(held.lease, spans=tuple(held.missing)))
                continue
            self._requeue(held)
        self._advance()

    def _requeue(self, held: Holding) -> None:
        """Give out again what a lost worker held, before anything new."""
        lease = replace(held.lease, spans=tuple(held.missing))
        self._queues[lease.branch].appendleft(lease)

    # --- clients -------------------------------------------------------------------------------------------

    def acked(self, rank: int, worker: str, spans: Mapping[Key, Iterable[Span]], batches: int = 1) -> None:
        """Note that a client has received batches from a worker: their data is delivered."""
        self.counts[rank] += batches
        state = self.workers.get(worker)
        if state is not None:
            self._fulfil(state, spans)

    def given_back(self, rank: int, spans: Mapping[Key, Iterable[Span]], batches: int) -> None:
        """Note batches that a client received and will not use, since other ranks have fewer."""
        self.counts[rank] -= batches
        if self._dealt is not None:
            self._dealt -= batches
        if self.shape.serial:
            spans = {}  # a batch of a whole plan cannot be made from its positions alone
        for (branch, repetition, index), returned in spans.items():
            split = self.splits[branch][index]
            self._return(Lease(self.epoch, split, branch=branch, repetition=repetition), Spans(returned))
        self._advance()

    def allowed(self) -> int:
        """Return how many batches of this epoch every rank may use: as many as the poorest has received."""
        return min(self.counts)

    def closing(self) -> bool:
        """Tell whether all data of the epoch is given out, so that acknowledgements are waited for."""
        waiting = any(self._queues) or any(any(s.own) for s in self.workers.values())
        return all(self.listed) and not waiting and not self._passes_left

    def surplus(self, rank: int) -> int | None:
        """Return how many batches a rank must keep, giving back the rest; None: nothing to give back."""
        keep = self.keeps()
        return keep if keep is not None and self.counts[rank] > keep else None

    def keeps(self) -> int | None:
        """Return how many batches every rank keeps, where the richer ones must give back; None while all may go on."""
        if self.finished or self.shape.world_size == 1 or not self._drained() or self._lots:
            return None
        return min(self.counts)

    # --- inside --------------------------------------------------------------------------------------------

    def _fulfil(self, state: WorkerState, spans: Mapping[Key, Iterable[Span]]) -> None:
        for key, done in spans.items():
            held = state.holdings.get(key)
            if held is None:
                continue
            for span in done:
                held.missing.remove(*span)
            if not held.missing:
                del state.holdings[key]
        self._advance()

    def _return(self, lease: Lease, spans: Spans) -> None:
        held = self._pool.setdefault(lease.key, Holding(replace(lease, spans=()), Spans()))
        for span in spans:
            held.missing.add(*span)

    @property
    def _passes_left(self) -> bool:
        """Whether the epoch has passes that have not begun."""
        return any(self._passes_to_come(branch) for branch in range(self.shape.branches))

    @property
    def _runs_whole(self) -> bool:
        """Whether one worker runs the whole plan: then numbers of batches tell what is done, and not positions.

        The last batch carries all positions that no batch needs, and of several trainers one may have it before the
        others have theirs.
        """
        return self.shape.serial and self.shape.sharding == "dynamic"

    def _all_dealt(self) -> bool:
        """Tell whether the trainers have all batches of the whole plan."""
        return not any(self.splits) or (self._dealt is not None and sum(self.counts) >= self._dealt)

    def _nobody_holds(self) -> bool:
        return not any(state.holdings or state.working or any(state.own) for state in self.workers.values())

    def _drained(self) -> bool:
        """Tell whether all data of the epoch was either delivered or surrendered."""
        if self.shape.sharding == "off" and not (
            self.workers and all(state.finished_epoch == self.epoch for state in self.workers.values())
        ):
            return False
        return (
            all(self.listed)
            and not any(self._queues)
            and self._tail_owner is None
            and not self._passes_left
            and (self._all_dealt() if self._runs_whole else self._nobody_holds())
        )

    def _advance(self) -> None:
        """Deal the tail, or begin the next epoch, when it is time."""
        while not self.finished and self._drained() and not self._lots:
            if min(self.counts) != max(self.counts):
                return  # the richer ranks give back first
            if self._pool:
                self._deal()
            if not self._lots:
                self._next_epoch()

    def _next_epoch(self) -> None:
        self.epoch += 1
        self.counts = [0] * self.shape.world_size
        self._deals = 0
        self._tail_rank = None
        self._dealer = self._dealt = None
        if self._runs_whole:
            for state in self.workers.values():
                state.holdings.clear()
        last = self.shape.epochs is not None and self.epoch >= self.shape.epochs
        if last or not any(self.splits):
            self.finished = True
            return
        self._queued = [0] * self.shape.branches
        self._repetition = [0] * self.shape.branches
        for branch in range(self.shape.branches):
            self._refill(branch)

    def _deal(self) -> None:
        """Turn what was surrendered into lots: one for one trainer, equally many elements for several."""
        held = sorted(self._pool.values(), key=lambda h: h.lease.key)
        self._pool = {}
        leases = [replace(h.lease, spans=tuple(h.missing)) for h in held]
        world = self.shape.world_size
        if world == 1:
            self._lots.append((0, leases))
            return
        units = [unit for lease in leases for unit in _by_element(lease)]
        self._deals += 1
        if len(units) < world or self._deals > MAX_DEALS:
            self.left_out_elements += len(units)
            return
        size = self.shape.batch_size
        rounds = min(-(-len(units) // (size * world)), len(units) // world)
        lots = rounds * world
        self.left_out_elements += max(0, len(units) - lots * size)
        units = units[: lots * size]
        for lot in range(lots):
            share = units[lot * len(units) // lots : (lot + 1) * len(units) // lots]
            self._lots.append((lot % world, _merged(share)))

    def check(self) -> None:
        """Raise AssertionError if a position is in two places at once."""
        seen: dict[Key, Spans] = {}
        places = [(lease.key, lease.spans) for queue in self._queues for lease in queue]
        places += [(lease.key, lease.spans) for _, lot in self._lots for lease in lot]
        places += [(held.lease.key, tuple(held.missing)) for held in self._pool.values()]
        if self.shape.sharding != "off":
            for state in self.workers.values():
                places += [(key, tuple(held.missing)) for key, held in state.holdings.items()]
                places += [(lease.key, lease.spans) for queue in state.own for lease in queue]
        for key, spans in places:
            known = seen.setdefault(key, Spans())
            for start, stop in spans:
                overlap = Spans(known)
                overlap.remove(start, stop)
                if overlap.size() != known.size():
                    raise AssertionError(f"split {key}: [{start}, {stop}) is in two places")
                known.add(start, stop)


def _merged(leases: Sequence[Lease]) -> list[Lease]:
    """Join leases of the same split."""
    by_key: dict[Key, Holding] = {}
    for lease in leases:
        held = by_key.setdefault(lease.key, Holding(lease, Spans()))
        for span in lease.spans:
            held.missing.add(*span)
    return [replace(held.lease, spans=tuple(held.missing)) for held in by_key.values()]


def _by_element(lease: Lease) -> list[Lease]:
    """Cut a lease into leases of one element each."""
    out = []
    for start, stop in lease.spans:
        at = start
        while at < stop:
            until = min(stop, ((at >> OUTPUT_BITS) + 1) << OUTPUT_BITS)
            out.append(replace(lease, spans=((at, until),)))
            at = until
    return out
