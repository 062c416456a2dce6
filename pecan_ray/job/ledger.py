"""Who has which data, and what was delivered: the exactly-once ledger.

Let G be the positions given to workers, A those that trainers acknowledged and R those taken back from lost or
finished workers.  At any time every position of an epoch is in exactly one of: waiting in a queue, held by one
worker (given, not acknowledged), among the leftovers, or acknowledged.  An epoch is complete when only the last is
left.

Words: an idle worker is given an *assignment*.  In it the worker takes leases until there are no more, and ends with
elements that do not fill a batch.  If it is the only one with work it may *flush* them as a smaller batch; otherwise
it *returns* them, and what all have returned is distributed in groups (`pecan_ray.job.leftovers`).  So an epoch has at
most one smaller batch, whatever the number of workers; with several trainers, equally large ones for each.

Decisions: docs/decisions/exactly-once.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from pecan_ray.job.assign_leases import LeaseSource, assigned, elsewhere, has_work, next_lease, return_leases
from pecan_ray.job.epoch_end import EpochEnd
from pecan_ray.job.fatal_elements import WHOLE_PLAN
from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.ledger_state import LedgerState
from pecan_ray.job.left_epochs import LoopPlace
from pecan_ray.job.pending_leases import LeaseSpans, WorkerLeaseState
from pecan_ray.job.queues import NoLease
from pecan_ray.job.split_queue import WantedSplits
from pecan_ray.job.suspicion import Suspicion
from pecan_ray.job.whole_plan import WholePlan
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split

Given: TypeAlias = Lease | NoLease | Literal["stop"]


class Ledger(LedgerState):
    """Bookkeeper of one job: splits in, leases out, acknowledgements in."""

    def add_splits(self, branch: int, splits: Sequence[Split]) -> None:
        """Add a page of a source's listing; work on it may start at once."""
        self.queues.add(branch, splits)
        self.changes += 1

    def end_listing(self, branch: int) -> None:
        """Note that a source has no more splits."""
        self.queues.end_listing(branch)
        self.changes += 1
        self._advance()

    def join(self, worker: str, node: str = "") -> None:
        """Register a worker, and where it runs."""
        # While ranks even out, a latecomer counts as done with the epoch: under sharding="off" it would begin one that
        # ranks give back.
        late = self._end.level is not None
        self.workers[worker] = WorkerLeaseState(node, finished_epoch=self.epoch if late else -1)
        self._note_workers()
        (self._end.late_workers.append if late else self.queues.join)(worker)
        self.changes += 1
        self._advance()

    def assign_static(self, workers: Sequence[str]) -> None:
        """Distribute the splits of this and later epochs to these workers by index (static sharding)."""
        self.queues.distribute(workers)
        self.changes += 1

    def next_assignment(self, worker: str) -> Assignment | Literal["wait", "stop"]:
        """Answer a worker that is idle: an assignment, "wait" for a change, or "stop"."""
        if (state := self._living(worker)) is None:
            return "stop"
        if self._end.left:
            return "wait"
        # Decision 98: a batch of leftovers reads several splits, so it goes to a worker that has refused none.
        sees = not self.queues.should_skip(worker, self.workers)  # else it gets nothing that others have read before
        if self.leftovers.groups and sees:
            state.begin((group := self.leftovers.groups.popleft()).leases, group.rank)
            return Assignment(self.epoch, group.rank)
        if not self.runs.may_begin(worker, state, self.rows_in_turn, len(self.workers), self._own_ranks(worker)):
            return "wait"
        taken = elsewhere(worker, self.shape, self._whole, self.workers)
        # Decision 98: what is suspected stays apart, and waits for a worker that can open it.
        suspects = self.fatal_elements.take(self.queues.excluded(worker)) if sees else ()
        if not suspects and (taken or not has_work(worker, state, self.epoch, self.queues)):
            return "wait"
        state.begin(suspects, apart=bool(suspects))
        # Workers of other nodes may help its ranks, now that it does not stand by for them.
        self.changes += self.rank_nodes.matter
        if self.shape.runs_whole:
            self._whole.begin(worker)
        return assigned(self.shape, self.epoch, self.produced, self.counts)

    def take(self, worker: str, branch: int = 0, wanted: WantedSplits = None, side: SideBySide = ONE_BY_ONE) -> Given:
        """Give a worker its next lease of a branch; "none" ends it for this assignment, unless it reads others."""
        state = self._living(worker)
        if state is None or self._end.left:
            return "stop" if state is None else "none"
        # Decision 152: without the order, two batches of the same rows may hold different ones. So what no second
        # worker has taken belongs to the late one again.
        if self.runs.given_up:
            self.seconds.keep(self.workers)
        source = LeaseSource(self.shape, self.queues, self.fatal_elements)
        answer = next_lease(worker, branch, state, source, len(self.workers), wanted, side)
        return state.assign(self.runs.without_row(answer)) if isinstance(answer, Lease) else answer

    def take_run(self, worker: str, most: int, expected: int = 0, *, waits: bool = False) -> tuple[Lease, ...] | None:
        """Give a worker the next run of about so many rows; none ends its assignment; None: it waits for one."""
        if (state := self._living(worker)) is None or self._end.left:
            return ()
        # The first worker that comes leaves something for those that are being started: a short epoch is one run else.
        there = self.rows_in_turn, max(len(self.workers), expected)
        run = self.runs.take(worker, state, most, *there, self.fatal_elements, self._own_ranks(worker), waits=waits)
        return None if run is None else tuple(map(state.assign, run))

    def ended(self, worker: str, epoch: int, key: LeaseKey, elements: int) -> None:
        """Note a split's length, read to its end: nothing is missing behind it."""
        if epoch == self.epoch and worker in self.workers:
            self.fatal_elements.ended(key, elements)
            self.runs.ended(key, elements)
        if self.shape.visitation == "at_most_once":
            self.dropped.ended(key, elements)
        # Decision 5: a fresh lease reaches to END. Without this the epoch waits for positions behind the last element.
        if not self.runs.joins:  # else blocks stand for it
            self.consumed(worker, epoch, {key: [(elements << OUTPUT_BITS, END)]})

    def consumed(self, worker: str, epoch: int, spans: LeaseSpans, *, left_out: int = 0) -> None:
        """Note data that ends at the worker: filtered, skipped, or a remainder that the user wants dropped."""
        state = self.workers.get(worker)
        if epoch == self.epoch and state is not None:
            # Under drop_remainder two workers of the same last rows (decision 152) both tell that these are dropped.
            again = self.shape.in_row_order and left_out > 0 and self.seconds.drops(spans)
            self.left_out_elements += 0 if self.shape.serial or again else left_out  # whole plans say it as they end
            self._mark_completed(state, spans)
            self.seconds.delivered(self.workers, worker, spans)
            self._advance()

    def _mark_completed(self, state: WorkerLeaseState, spans: LeaseSpans) -> None:
        state.mark_completed(spans)
        if self.shape.one_at_a_time and not state.pending_leases:
            self.changes += 1  # another worker may have its turn

    def assignment_ended(
        self, worker: str, remainder_part: LeaseSpans, batches: int = 0, rows: int = 0
    ) -> Literal["flush", "return"]:
        """Decide about elements that fill no batch at the end of an assignment.

        `batches`: so many a whole plan makes, one of these elements included; `rows`: their number.
        """
        state = self._living(worker)
        if state is None:
            return "return"
        self.changes += 1
        self.fatal_elements.note_success(state.suspected)
        state.working, state.finished_epoch, state.produced, state.alone = False, self.epoch, batches, None
        state.stale_spans = {}  # it works on nothing any more, so it may be the second worker of these rows itself
        rest = rows if self.shape.serial and self.shape.drop_remainder else 0
        self.left_out_elements += self._whole.ended(worker, batches, rest)
        # Decision 98: if it could not open a part of a group, another worker gets all of the group.
        returns = bool(state.rejected) or not _may_flush(self, worker, state, rows)
        if returns:
            # Decision 47: one worker makes rounds of what coordinated reads leave, so nothing of that is dealt before.
            self.leftovers.take_back(state, remainder_part, early=state.can_reassign and self.shape.produces_early)
        self._advance()
        return "return" if returns else "flush"

    def lost(self, worker: str, *, died: Suspicion | None = None, drains: bool = False) -> None:
        """Note that a worker is gone (`died`: perhaps of its work) or drains: what it holds comes back later."""
        state = self.workers.get(worker)
        if state is None or state.unresolved is not None:
            return
        state.died, state.draining = died, drains
        self._note_workers(lost=True)
        self.leftovers.note_loss()
        self.queues.leave(worker)
        # zero_or_more gives a lost worker's data out at once. Of one that drains the ranks settle first, so that an
        # ordinary removal repeats nothing.
        state.leave(0 if self.shape.may_repeat and not drains else self.shape.world_size)
        self.changes += 1
        self._lost[worker] = state
        self._retire_worker(worker, state)

    def settled(self, rank: int, worker: str) -> None:
        """Note that a trainer has told all that it received from a lost worker, and takes no more from it."""
        state = self.workers.get(worker)
        if state is not None and state.unresolved is not None:
            state.unresolved.discard(rank)
            self._retire_worker(worker, state)

    def _retire_worker(self, worker: str, state: WorkerLeaseState) -> None:
        if state.unresolved:
            return
        del self.workers[worker], self._lost[worker]
        self.changes += 1
        self.rounds.note_lost(worker)
        if worker == self._whole.runner and not self._all_produced():
            # What take, skip or zip yield depends on the whole sequence: it is run again from its beginning.
            if state.died:
                # Such a plan cannot be run apart in pieces. So deaths count as long as the trainers come no further.
                self.fatal_elements.record_death_without_progress("whole", sum(self.counts), WHOLE_PLAN, state.died)
            self._whole = WholePlan()
            self.queues.restart()
        elif worker != self._whole.runner:
            places = self.queues, self.leftovers, self.fatal_elements, self.runs
            self.dropped.add(worker, return_leases(state, self.shape, *places, sum(self.counts)))
        self._advance()

    def ack(self, rank: int, worker: str, epoch: int, spans: LeaseSpans, batches: int = 1, rows: int = 0) -> None:
        """Note that a trainer has received batches, of so many rows, from a worker: their data is delivered."""
        # Decision 22: an acknowledgement may come late, when its epoch is over.
        if epoch != self.epoch or self.finished:
            return
        self.counts[rank] += self.runs.had_turn(spans, rows) if self.runs.joins else batches
        state = self.workers.get(worker)
        if state is not None:
            state.received += batches
            self._mark_completed(state, spans)
            self.rounds.received(rank, worker, batches)
        self.seconds.delivered(self.workers, worker, spans)
        self.changes += self.runs.kept  # there is room for more
        self._advance()

    def given_back(self, rank: int, epoch: int, spans: LeaseSpans, batches: int, rows: int) -> None:
        """Note batches that a trainer received and will not use, since other ranks have fewer."""
        if epoch != self.epoch or self.finished:
            return
        self.counts[rank] -= batches
        if self._end.left:
            return  # nobody else gets them
        self._whole.given_back(batches)
        self.rounds.given_back(rank, batches)
        if self.shape.serial or self.shape.sharding == "off":
            # A batch of a whole plan cannot be made from its positions alone.
            self.left_out_elements += rows
        else:
            for (branch, pass_index, index), returned in spans.items():
                split = self.queues.listings[branch][index]
                self.leftovers.add(Lease(self.epoch, split, branch=branch, pass_index=pass_index), returned)
        self._advance()

    def leave(self, rank: int, place: LoopPlace) -> bool:
        """Note how far a trainer's loop has left epochs; return whether all have left one that had not ended."""
        epoch, left = self.epoch, self._end.left
        if self.left.note_report(rank, place):
            self._advance()
        # A rank that is alone has nobody to agree with: then the next epoch has begun by now, with a fresh `_end`.
        return not left and (self._end.left or self.epoch > epoch)

    def _advance(self) -> None:
        """Distribute the leftovers, or begin the next epoch, when it is time."""
        while not self.finished:
            if self.left.by_all(self.epoch):
                if not self._forgotten():
                    return  # ranks must say first that they take nothing more
                self._next_epoch()
                continue
            self.runs.leave_rest(self.leftovers)
            if not self._drained() or not self._end.even(self.counts):
                return  # the richer ranks give back first
            self.left_out_elements += self.leftovers.distribute()
            self.changes += 1
            if not self.leftovers.groups:
                self._next_epoch()

    def _forgotten(self) -> bool:
        """Forget the epoch, which all ranks have left, once none takes anything of it and all have equally much."""
        if not self._end.left:
            if not self._has_nothing_left():
                self.left.note(self.epoch)
            self._end.leave(self.rounds.in_epoch if self.shape.coordinated else min(self.counts))
            self.rounds.leave_epoch()
            self.changes += 1
        if not self.left.closed_by_all(self.epoch) or any(count != self._end.level for count in self.counts):
            return False
        for state in self.workers.values():
            state.forget()
        self.leftovers.clear()
        self.queues.restart()
        self._whole = WholePlan()
        self.changes += 1
        return True

    def _next_epoch(self) -> None:
        ended, self._end = self._end, EpochEnd()
        batch, dropped = self.runs.rest(left=ended.left)
        self.counts[0], self.left_out_elements = self.counts[0] + batch, self.left_out_elements + dropped
        # An epoch that the loops left at once has no batches either, which says nothing about the data.
        self.ran_dry = self.shape.epochs is None and not (any(self.counts) or ended.left)
        self.left_out_elements += self._whole.rest
        self.produced.end(self.epoch, self.counts)
        self.epoch += 1
        self.counts = [0] * self.shape.world_size
        self._note_workers()
        self._whole = WholePlan()
        for part in (self.leftovers, self.rounds, self.runs, self.seconds, self.fatal_elements):
            part.begin_epoch()
        for worker in filter(self._living, ended.late_workers):
            self.queues.join(worker)
        for state in self.workers.values():
            # `take` and `zip` leave positions unread. Of such plans numbers of batches tell what is done, not holdings.
            state.begin_epoch(forget=self.shape.serial)
        empty = self.queues.is_complete and self.queues.empty_source
        self.finished = self.epoch == self.shape.end_epoch or self.ran_dry or empty
        if not self.finished:
            self.queues.begin_epoch(self.epoch)


def _may_flush(ledger: Ledger, worker: str, state: WorkerLeaseState, rows: int) -> bool:
    """Tell whether a worker may make a smaller batch of the rows that are left to it."""
    # Elements that were filtered out need no batch, so nobody has to read them again.
    if (ledger.runs.kept and state.ends) or not (rows or ledger.shape.serial):
        return True
    if state.rank is not None or ledger.shape.one_at_a_time or ledger.shape.sharding == "off":
        return True
    # Decision 4: a worker may flush only if nobody else holds anything, so an epoch has at most one smaller batch.
    others = ledger.leftovers or _others_hold(ledger.workers, worker)
    return ledger.shape.may_flush_partial and ledger.closing() and not (others or ledger.rounds.lost_workers)


def _others_hold(workers: Mapping[str, WorkerLeaseState], worker: str) -> bool:
    return any(other.holds for name, other in workers.items() if name != worker)
