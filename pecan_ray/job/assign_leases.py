"""Whose turn it is: whether an idle worker may begin with an assignment, and who gets what a lost one held."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pecan_ray.job.fatal_elements import FatalElementTracker, positions_in
from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide, cut, elements_in, lot
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.leftovers import Leftovers, as_group
from pecan_ray.job.pending_leases import WorkerLeaseState, within, without
from pecan_ray.job.queues import NoLease, Queues
from pecan_ray.job.row_runs import RowRuns
from pecan_ray.job.split_queue import WantedSplits
from pecan_ray.job.suspicion import Suspicion
from pecan_ray.job.whole_plan import ProducedBatches, WholePlan
from pecan_ray.plan.behind import first_missing
from pecan_ray.plan.splits import Lease, Split


def elsewhere(worker: str, shape: LedgerShape, whole: WholePlan, workers: Mapping[str, WorkerLeaseState]) -> bool:
    """Tell whether another worker has the only assignment that may be given at a time."""
    if shape.runs_whole:
        # Decision 6: the worker that runs a serial plan keeps it until the trainers have all of it.
        return not whole.may_run(worker)
    others = (state for name, state in workers.items() if name != worker)
    return shape.one_at_a_time and any(state.working or state.pending_leases for state in others)


def assigned(shape: LedgerShape, epoch: int, made: ProducedBatches, counts: Sequence[int]) -> Assignment:
    """Return what a worker is told that may begin, with what ranks have of a sequence."""
    if shape.runs_whole:
        delivered = made.by_rank(epoch, counts)
        # Decision 6: the second run of a serial plan begins behind the batches that all ranks have.
        behind = first_missing(delivered) if shape.counts else 0
        return Assignment(epoch, delivered=delivered, repeated=True, behind=behind)
    # Decision 35: ranks of one sequence get batches in turn, so a successor must know how many each has.
    return Assignment(epoch, delivered=tuple(counts) if shape.in_order and shape.world_size > 1 else ())


def has_work(worker: str, state: WorkerLeaseState, epoch: int, queues: Queues) -> bool:
    """Tell whether there is something for a worker to do in an epoch."""
    # With sharding="off" each worker has an epoch of its own (decision 4), and says itself when that has ended.
    if queues.each_sees_all:
        return state.finished_epoch < epoch
    return queues.has_work(worker)


def any_will_do(worker: str, shape: LedgerShape, workers: Mapping[str, WorkerLeaseState]) -> bool:
    """Tell whether this worker, where it must wait, waits for the same as all others of which this is true."""
    state = workers.get(worker)
    # These answers depend on what this worker alone holds: a group, or rows that a second worker makes too.
    mine = state is None or state.unresolved is not None or bool(state.group or state.stale_spans)
    return not (mine or shape.one_at_a_time) and shape.sharding == "dynamic"


@dataclass(frozen=True)
class LeaseSource:
    """What the leases of an epoch are taken from."""

    shape: LedgerShape
    queues: Queues
    fatal_elements: FatalElementTracker


def next_lease(
    worker: str,
    branch: int,
    state: WorkerLeaseState,
    source: LeaseSource,
    workers: int,
    wanted: WantedSplits = None,
    side: SideBySide = ONE_BY_ONE,
) -> Lease | NoLease:
    """Return the next lease of a branch for a worker: of its group, if it has one, without what kills workers.

    `workers`: so many there are that share what waits.  `side`: how the worker reads; "none" to one that reads others
    is no end.
    """
    shape, queues = source.shape, source.queues
    mixes = side.is_interleaved and not state.grouped
    part = queues.interleave_size(worker, branch, replace(side, workers=max(side.workers, workers))) if mixes else 0
    if mixes and side.reading and not part:
        return "none"
    lease = _take_waiting(worker, branch, state, source, wanted, fresh_first=mixes)
    if not isinstance(lease, Lease) or state.grouped or not shape.may_divide_splits:
        return lease
    # Decision 91: splits are cut so that workers end an epoch together. A worker that is alone has
    # nobody to wait for.
    alone = workers < 2 and not part
    return lease if alone else _cut_to_lot(lease, branch, part, workers, state, source)


def _cut_to_lot(
    lease: Lease, branch: int, part: float, workers: int, state: WorkerLeaseState, source: LeaseSource
) -> Lease:
    """Return as much of a lease as a worker gets at a time, and put the rest back; `part`: of a worker that mixes."""
    elements, shape, queues = elements_in(lease), source.shape, source.queues
    if elements is None:
        return lease
    waiting = elements + queues.leases_waiting(branch) * (lease.split.elements or elements)
    # What it got before may have ended within a batch. This lease makes up for that, so that in all
    # it fills batches.
    most = part - state.taken % shape.batch_size if part else lot(waiting, workers, shape.batch_size, state.taken)
    if elements > most:
        lease, rest = cut(lease, int(most))
        queues.put_back(rest, last=part > 0)  # else the pieces of a split would follow each other
    state.taken += int(min(elements, most))
    # Tells `in_a_batch` that a short lease may be followed by another one, until a batch is full.
    state.in_groups = not part and (elements >= most or waiting < 2 * workers * shape.batch_size)
    return lease


def _take_waiting(
    worker: str,
    branch: int,
    state: WorkerLeaseState,
    source: LeaseSource,
    wanted: WantedSplits,
    *,
    fresh_first: bool,
) -> Lease | NoLease:
    """Take the next lease that waits, without what kills workers; leases of nothing else are dropped."""
    while True:
        answer: Lease | NoLease
        if state.grouped:
            answer = state.take_of_group(branch)
        else:
            answer = source.queues.take(worker, branch, wanted, fresh_first=fresh_first)
        if not isinstance(answer, Lease):
            return answer
        lease = source.fatal_elements.without_fatal_elements(answer)
        if lease is not None:
            return lease


def in_a_batch(worker: str, shape: LedgerShape, workers: Mapping[str, WorkerLeaseState]) -> bool:
    """Tell whether what a worker has been given near the end of an epoch ends within a batch."""
    state = workers.get(worker)
    return state is not None and state.in_groups and state.taken % shape.batch_size > 0


def peek_splits(
    worker: str, branch: int, most: int, workers: Mapping[str, WorkerLeaseState], queues: Queues
) -> tuple[Split, ...]:
    """Return up to so many of the next splits, of which a worker may want some; the others go last from now on."""
    # A group is to be one batch of exactly its leases, so its worker has nothing to choose.
    return () if workers[worker].grouped else tuple(queues.peek_splits(worker, branch, most))


def return_leases(
    state: WorkerLeaseState,
    shape: LedgerShape,
    queues: Queues,
    leftovers: Leftovers,
    fatal_elements: FatalElementTracker,
    runs: RowRuns,
    delivered: int,
) -> Sequence[Lease]:
    """Let others have what a lost worker held; return what nobody gets, where data is visited at most once.

    `delivered`: so many batches of the epoch the trainers have received.
    """
    rest: Sequence[Lease] = [held.rest() for held in state.pending_leases.values()]
    if shape.sharding == "off":  # every other worker has the same data
        # A worker that held nothing died of nothing. Else each idle worker of a lost node would count.
        if state.died and rest:
            fatal_elements.record_death_without_progress(
                "all data", state.received, 'a plan with sharding="off"', state.died
            )
        return ()
    # What a draining worker has not finished reaches no trainer twice, so others may have it.
    if shape.visitation == "at_most_once" and not state.draining:
        return rest
    if state.rank is not None and rest:
        _note_death_in_group(state, rest, fatal_elements)
        _return_group(state.rank, rest, shape, leftovers)
        return ()
    rest = _split_suspicious(state, rest, shape, fatal_elements, runs, delivered)
    if runs.kept:
        runs.put_back(rest)
        return ()
    # Each is put in front of the others, so the last one goes first: they stay in order (decision 35).
    for lease in reversed(rest):
        queues.put_back(lease)
    return ()


def _return_group(rank: int, rest: Sequence[Lease], shape: LedgerShape, leftovers: Leftovers) -> None:
    """Let another worker make what a lost one held of a group."""
    if shape.groups == shape.world_size:
        # Decision 4: the group stays whole, because it is the batch that its rank is due.
        leftovers.groups.appendleft(as_group(rank, rest))
        return
    # One worker makes batches of it for all ranks, with what those that have more of them give back first.
    for lease in rest:
        leftovers.add(lease, lease.spans)


def _note_death_in_group(state: WorkerLeaseState, rest: Sequence[Lease], fatal_elements: FatalElementTracker) -> None:
    if state.died:
        # A batch of leftovers cannot be run apart in pieces. It comes further if fewer positions are left.
        keys, left = frozenset(one.key for one in rest), sum(map(positions_in, rest))
        fatal_elements.record_death_without_progress(keys, -left, "a batch of leftovers", state.died)


def _split_suspicious(
    state: WorkerLeaseState,
    rest: Sequence[Lease],
    shape: LedgerShape,
    fatal_elements: FatalElementTracker,
    runs: RowRuns,
    delivered: int,
) -> Sequence[Lease]:
    """Note what a lost worker may have died of; return what other workers may have of what it held."""
    if state.suspicious:
        return _settle_single(state, rest, fatal_elements)
    if not state.died:
        return rest
    if shape.in_order and state.died.at is None and rest:
        # Decision 35: out of turn nothing can be run apart, so deaths at one place end the job.
        fatal_elements.record_death_without_progress("in order", delivered, 'a plan with order="strict"', state.died)
        return rest
    return _died(state, rest, state.died, fatal_elements, runs)


def _settle_single(
    state: WorkerLeaseState, rest: Sequence[Lease], fatal_elements: FatalElementTracker
) -> Sequence[Lease]:
    """Settle what a worker held that ran suspected elements one by one; return what it held besides."""
    fatal_elements.returned((*state.suspected, *state.not_started))
    fatal_elements.put_back(within(rest, state.not_started))
    # Only what it worked on is blamed. What it had finished, and a slow trainer has not fetched, came through.
    at_hand = within(rest, state.suspected)
    # What all has come of came through, however its worker ended.
    fatal_elements.note_success(state.suspected.keys() - {lease.key for lease in at_hand})
    if state.died:
        fatal_elements.note_single_death(at_hand, state.died)
    else:
        fatal_elements.put_back(at_hand)
    return without(without(rest, state.not_started), state.suspected)


def _died(
    state: WorkerLeaseState, rest: Sequence[Lease], by: Suspicion, fatal_elements: FatalElementTracker, runs: RowRuns
) -> Sequence[Lease]:
    """Return what others may have of what a worker has died with: the rest is looked at apart."""
    if not runs.kept or (by.at is not None and not runs.joins):
        return fatal_elements.died(rest, by)
    if why := runs.fatal_batches.died(state.alone, rest, by, fatal_elements):
        runs.drop_order(why)
    if runs.kept:
        return rest
    # Decision 151: the order was given up just now because of this batch, so that its element can
    # be searched apart.
    fatal_elements.isolate_leases(rest)
    return ()


def all_given(workers: Collection[WorkerLeaseState], shape: LedgerShape, epoch: int, *, in_order: bool) -> bool:
    """Tell whether the trainers have all that was given to workers in an epoch; `in_order`: by runs."""
    if shape.sharding == "off":
        return bool(workers) and all(state.has_given_all(epoch, whole=shape.serial) for state in workers)
    # Decision 152: an epoch does not wait for a worker that is busy with rows which another one has brought, nor in
    # order for one that has yet to say that it is done.
    return not any(state.holds or (state.working and not (in_order or state.stale_spans)) for state in workers)
