"""What a controller's process does: it holds a job, and answers trainers, workers and those who look on.

It is off the data path: batches go from workers to clients.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Mapping
from typing import Any

import ray

from pecan_ray.by_value import NamedArrays
from pecan_ray.engines.counting import OpCount, sum_of
from pecan_ray.errors import CutError, JournalError, OrderError, PecanError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.active_clock import TICK_S
from pecan_ray.job.job_views import JobView, LiveJob, job_view
from pecan_ray.job.messages import TrainerReport, WorkerProgress
from pecan_ray.job.stats import JobStats
from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.splits import Split
from pecan_ray.runtime.host_names import with_host_names
from pecan_ray.runtime.job_arrays import receive
from pecan_ray.runtime.job_host import JobHost
from pecan_ray.runtime.journal_file import OFF, JournalPlace, place_of
from pecan_ray.runtime.journaled_job import cannot_go_on
from pecan_ray.runtime.worker_owner import Keeping

logger = logging.getLogger("pecan_ray.controller")

# Seconds. A training step that saves a state waits for this, so it is short beside a step.
LOOK_S = 0.02
WATCH_S = 10.0
"""A call that only tells whether this process lives is answered after so long: then another one follows, and a dead
process is seen at once."""
JOB_COMES_S = 60.0
"""A controller to which nobody sends a job within this time ends."""


GIVEN_UP: Mapping[type[PecanError], type[events.OrderFailed | events.CutRefused]] = {
    OrderError: events.OrderFailed,
    CutError: events.CutRefused,
}
"""Errors with which a worker gives up, and lets others do it in another way."""


# Why a process that is lost can be replaced:
# docs/decisions/restart-and-journal.md#37-a-journal-of-events
class JobController:
    """Controller of one job.  Its methods are those of the actor, in which they are called."""

    def __init__(self, name: str, journal: str | None) -> None:
        """`journal`: its folder, or a bucket, as in `Config`."""
        # The job itself comes by `open`, or from the journal of a process before this one: it can be larger than what
        # Ray keeps for starting an actor again.
        self._name = name
        self._place = None if journal == OFF else place_of(journal, name)
        # Decision 37: not in the journal, so after a restart the counts begin anew.
        self._counts: dict[str, Mapping[str, OpCount]] = {}
        self._explain_json = ""
        """What AutoOrder found, as JSON; a process that goes on after this one does not know it."""
        self._keeping = None if self._place is None else Keeping(name, self._place.actor)
        self._opened: JobHost | None = None
        self._lost: JournalError | None = None
        """Why this process cannot go on after one that was lost: whoever calls is told, in a sentence."""
        try:
            self._opened = None if self._place is None else _resume_job(name, self._place, self._keeping)
        except JournalError as error:
            # Kept and not raised: callers would get Ray's traceback of a constructor that has failed.
            self._lost = error
        # Those who have started it may be gone before they call.
        ray.get_runtime_context().current_actor.watch.remote()

    @property
    def _host(self) -> JobHost:
        self._raise_lost()
        if self._opened is None:
            raise JournalError(f"the controller of job {self._name} was lost, and there is no journal to go on from.")
        if self._opened.broken is not None:
            raise self._opened.broken
        return self._opened

    def _raise_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    async def watch(self) -> None:
        """Go on with a job whose controller was lost, though nobody calls; end where no job comes."""
        started = time.monotonic()
        while self._opened is None and time.monotonic() < started + JOB_COMES_S:
            await asyncio.sleep(TICK_S)
        if self._opened is not None:
            self._opened.begin()
        else:
            gone = "those who have started its controller are gone"
            logger.warning("job %s ends: %s", self._name, gone if self._lost is None else self._lost.message)
            # Ray starts no other process in the place of one that was killed so.
            ray.kill(ray.get_runtime_context().current_actor)

    async def wait_until_lost(self) -> None:
        """Hold a call of what keeps the workers, which fails when this process is lost."""
        await asyncio.sleep(WATCH_S)

    # --- trainers ------------------------------------------------------------------------------------------

    async def open(self, job: bytes, arrays: NamedArrays) -> None:
        """Begin with a job, pickled, unless another trainer has sent it; `arrays`: what its sources name."""
        self._raise_lost()
        if self._opened is not None:
            return
        # Awaited, because Ray warns of an actor that waits for an object in its event loop.
        received = await receive(job, arrays).mapped()
        # Several trainers send the job: another one's call may have opened it while this one waited.
        if self._opened is None:
            self._opened = JobHost(received, self._place, self._keeping, again=False)

    async def register(
        self, rank: int, incarnation: str, node: str, described: tuple[tuple[str, str], ...], process: str = ""
    ) -> bool:
        """Add a trainer; with the last one the job begins.  Raises PecanError if it cannot take part.

        `process`: its id as a worker of Ray's.  False: the job itself must come before.
        """
        self._raise_lost()
        if self._opened is None:
            return False
        self._host.happened(events.TrainerRegistered(rank, incarnation, node, described, process))
        self._raise_rejection(incarnation)
        return True

    def _raise_rejection(self, incarnation: str) -> None:
        if incarnation in self._host.rejected:
            raise self._host.rejected.pop(incarnation)

    async def yield_to_run(self, incarnation: str) -> None:
        """Raise why another run of this name cannot begin; end, where the trainers of this one are gone."""
        self._raise_lost()
        if self._opened is None:
            raise StaleJobError(f"job {self._name}: a controller has this name, and ends where no trainer comes to it.")
        self._host.happened(events.OtherRunRegistered(incarnation))
        self._raise_rejection(incarnation)

    async def listen(self, rank: int, incarnation: str, number: int, met: int) -> bytes:
        """Return a trainer's orders, pickled, as soon as they differ from the ones with that number."""
        self._host.happened(events.TrainerWaiting(rank, incarnation, met, number))
        self._raise_rejection(incarnation)
        return await self._host.update_calls.listen(rank, number)

    async def report(self, pickled: bytes) -> bytes:
        """Take a trainer's report; return its orders, pickled."""
        report: TrainerReport = pickle.loads(pickled)
        self._host.metrics.trainers.reported(report)
        self._host.happened(events.TrainerReported(report))
        self._raise_rejection(report.incarnation)
        return self._host.update_calls.pickled_update(report.rank)

    async def leave(
        self, rank: int, incarnation: str, unused: int, finished: bool = False, keep: bool = False
    ) -> tuple[JobStats, bool]:
        """Take a trainer off the job that has so many batches which it will not use.

        `finished`: it has had all that it asked for; `keep`: another job may follow in these processes.

        Returns the facts, and whether it was the last one, who ends this actor, or keeps it.
        """
        # Before the job hears of it: when the last trainer leaves, the workers end with what they write behind.
        await self._host.flush()
        self._host.keep = keep
        self._host.happened(events.TrainerLeft(rank, incarnation, unused, finished))
        # Its thread that listens for orders must come to its end.
        self._host.update_calls.release(rank)
        facts = with_host_names(self._host.state.stats(self._host.now()))
        if self._host.ended:
            await self._host.wait_for_cleanup()
        return facts, self._host.ended

    async def claim(self) -> bool:
        """Tell whether another job may begin in these processes: one has ended here well, and all of them live."""
        idle = self._opened.idle if self._opened is not None else None
        if idle is None or not await idle.claim():
            return False
        # Decision 172: the next job has a new state, so nothing of this one may be left.
        self._opened, self._counts, self._explain_json = None, {}, ""
        return True

    async def resume_point(self, batches: int, early: bool = False) -> bytes:
        """Return where the job stands after so many batches of each trainer, pickled; None before they were told of.

        `early`: the loop has not used all of them.
        """
        # Not before the trainers have kept all bad elements that count as dealt with.
        state = self._host.state
        while state.quarantine.waiting and state.error is None and not self._host.ended:
            await asyncio.sleep(LOOK_S)
        return pickle.dumps(state.resume_point(batches, early=early))

    async def begin(
        self,
        plan: bytes | None,
        order: OpOrders,
        row_s: float | None = None,
        op_seconds: tuple[tuple[str, float], ...] = (),
        decoders: tuple[str, ...] = (),
        order_text: str = "",
    ) -> None:
        """Let work begin, with the plan in that order (None: as it is written); the first trainer decides.

        `row_s`: seconds of one thread for a row of a batch, by a sample; `op_seconds`: of each operator for an element;
        `order_text`: all that was found, as JSON, for those who look at the job.
        """
        host = self._host
        self._explain_json = self._explain_json or order_text
        # A trainer calls again if the controller's process was lost: the plan must not be added twice.
        if plan is not None and not host.state.ordered:
            host.add_plan(plan)
        host.happened(events.OrderKnown(len(host.plan_versions) > 1, row_s, order, op_seconds, decoders))

    async def change_plan(
        self, plan: bytes, order: OpOrders, message: str, decoders: tuple[str, ...], order_text: str
    ) -> None:
        """Run another order of the operators from the next epoch on that has not begun."""
        self._explain_json = order_text or self._explain_json
        self._host.add_plan(plan)
        self._host.happened(events.PlanChanged(message, order, decoders))

    async def drop_order(self, message: str) -> None:
        """Let all workers run the operators as the user wrote them, from now on."""
        self._host.happened(events.OrderDropped(message))

    async def scale(self, local: int, remote: int) -> None:
        """Fix the numbers of workers, as a trainer asks: from now on nothing else changes them."""
        self._host.happened(events.ScaleRequested(local, remote))

    async def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Bound what all workers together read of object stores, from now on."""
        self._host.happened(events.RemoteIoSet(bytes_per_s))

    # --- workers -------------------------------------------------------------------------------------------

    async def ask(self, pickled: bytes) -> bytes:
        """Answer a worker's question, pickled as it is itself, as soon as there is an answer."""
        return pickle.dumps(await self._host.response_to(pickle.loads(pickled)))

    async def note_progress(self, worker: str, progress: WorkerProgress, counts: Mapping[str, OpCount]) -> None:
        """Note what a worker has done so far."""
        self._counts[worker] = counts
        known = self._host.state.worker_table.workers.get(worker)
        if known is not None:
            with self._host.tasks.guard_call(f"counting what {worker} has done"):  # which waits for no answer
                self._host.metrics.workers.note_progress(worker, known.placement, progress)
        self._host.happened(events.WorkerProgressReported(worker, progress))

    async def failed(self, worker: str, error: PecanError, row: int | None = None) -> bool:
        """End the job with a worker's error: the trainers raise it; or go on, in the user's order of operators.

        `row`: the first one that cannot be made, where rows are numbered: False while those before it are to come.
        """
        if (given_up := GIVEN_UP.get(type(error))) is not None:
            self._host.happened(given_up(worker, error.message))
            return True
        self._host.happened(events.WorkerFailed(worker, error, row))
        state = self._host.state
        # Decision 150: the job forgets a failure that it does not take, and the worker tells it again.
        # So a lost controller loses nothing.
        taken = state.error is not None or state.over or worker not in state.worker_table.workers
        if taken:
            # At this level, because the job tells the same error of its own, and its trainers raise it.
            logger.info("%s: %s", worker, error)
        return taken

    async def plan(self, version: int) -> bytes:
        """Return a version of the plan, pickled."""
        return self._host.plan_versions[version]

    async def arrays(self) -> list[Any]:
        """Return the object, in a list, that holds the large arrays of the job's sources."""
        return [self._host.arrays]

    async def split(self, branch: int, index: int) -> Split:
        """Return a split of a source, which names its elements."""
        return self._host.state.ledger.queues.listings[branch][index]

    # --- others --------------------------------------------------------------------------------------------

    async def pool_requests(self) -> bytes:
        """Return what this job bids for nodes that others may want as well, pickled."""
        return pickle.dumps(self._host.state.pool_requests())

    async def make_room(self, job: str) -> None:
        """Give up a worker for another job, if this one may."""
        self._host.happened(events.RoomRequested(job))

    async def end_idle(self) -> None:
        """End these processes, if their job has ended: another one wants the place."""
        if self._opened is not None and self._opened.idle is not None:
            self._opened.idle.end()

    async def stats(self) -> JobStats | None:
        """Return the facts of the job so far; None: it has ended, and another one may follow."""
        return None if self._host.idle is not None else with_host_names(self._host.state.stats(self._host.now()))

    async def live(self) -> LiveJob | None:
        """Return how the job is at this moment; None: it has ended, and another one may follow."""
        return None if self._host.idle is not None else self._host.live()

    async def view(self) -> JobView:
        """Return what a page about the job shows, which is bounded."""
        return job_view(self._host.state, self._host.now(), self._host.live(), self._explain_json)

    async def cost_so_far(self) -> float | None:
        """Return the dollars that the job has cost so far; None where no prices were given."""
        cost = self._host.state.cost(self._host.now())
        return None if cost is None else cost.total

    async def op_counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators in the first epoch, over all workers."""
        return sum_of(self._counts.values())


def _resume_job(name: str, place: JournalPlace, keeping: Keeping | None) -> JobHost | None:
    """Return the job of a process before this one, from its journal; None if there was none; raises JournalError."""
    try:
        # The job's file is written behind the beginning of the journal: if it is there, a process ran before this one.
        job = place.job()
        return None if job is None else JobHost(receive(job, {}), place, keeping, again=True)
    except JournalError as error:
        raise cannot_go_on(name, error) from error
