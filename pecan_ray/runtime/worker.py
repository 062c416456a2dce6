"""What a worker's process does: it performs what `WorkerState` says, with an engine, calls of Ray, and streams."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from pecan_ray.cache_options import ClusterIo
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.freed_memory import keep_freed_memory
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.slots import HeapSlots, into_slot
from pecan_ray.errors import CutError, ElementError, PecanError, describe_error
from pecan_ray.job import worker_events as words
from pecan_ray.job.heartbeat import HEARTBEAT_S, Heartbeat
from pecan_ray.job.lease_requests import next_splits
from pecan_ray.job.messages import AskAssignment, AskLeases, DatasetRooms, LeftOutElement
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.worker import WorkerState
from pecan_ray.job.worker_channels import RUN
from pecan_ray.options import AutoWorkers
from pecan_ray.runtime.cache_node import keep_blocks
from pecan_ray.runtime.cluster import ACTORS_NICE
from pecan_ray.runtime.job_arrays import MappedArrays
from pecan_ray.runtime.messages import Job, left_out, left_out_whole
from pecan_ray.runtime.pipeline_split import PipelineSplit
from pecan_ray.runtime.worker_plan import WorkerPlan
from pecan_ray.runtime.worker_reporter import NEWS_S, WorkerReporter
from pecan_ray.runtime.worker_requests import EngineLeases, WorkerRequests, retry
from pecan_ray.runtime.worker_streams import WorkerStreams
from pecan_ray.storage import bound_datasets, drop_prefetch, hedge_reads, limit_remote_io, set_patience
from pecan_ray.storage.retry import tell_elsewhere
from pecan_ray.transport.choice import SelectedTransport
from pecan_ray.transport.joining import joined
from pecan_ray.transport.messages import Message
from pecan_ray.transport.outbox import Outbox, release_slot
from pecan_ray.transport.owned_slots import OwnedSlot

FAILURE_S = 0.2
"""A failure whose turn has not come is told again after this time."""
# Decision 168: beside eight busy loops on two CPUs, ticks at Ray's niceness of 15 were late by 4.8 ms (median).
# With the loops at 19 they were late by 0.6 ms.  Nothing raises a priority: Ray's processes have no right to that.
NICE = 19 - ACTORS_NICE
"""By so much workers yield to others: to the trainer, and to controllers and keepers, which Ray has begin as low as
workers.  The sum is the lowest priority that there is, also where Ray begins with 15."""
QUIET_CPU_PROCESS = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Accelerators belong to the trainer; and a worker's log is for what it has to say itself."""


@dataclass(frozen=True)
class EngineRun:
    """An engine at work on the leases of an assignment."""

    leases: LeaseTracker
    batches: Generator[Produced, None, None]


# Why it decides nothing: docs/decisions/control-plane.md#157-the-worker-is-a-state-machine
class WorkerProcess:
    """Runs a job's plan; one process on one node.  Its methods are those of the actor, in which they are called."""

    def __init__(self, started: StartWorker, job: Job, controller: Any) -> None:
        self._name, self._job, self._controller = started.worker, job, controller
        prepare_for(job, started)
        self._outbox = Outbox(job.config.ring_bytes, job.spec.shape.world_size, started.number)
        split = PipelineSplit.of_worker(started, job, self._link_bytes_per_s)
        self._plan = WorkerPlan(self._name, job, started.sharing, MappedArrays(job, controller), split)
        about = job.spec.shape, heartbeat_of(job), job.config.hung_after_s
        self._state = WorkerState(*about, one_sequence=job.in_order)
        # Threads of the engine, the heartbeat and Ray's calls all bring events.
        self._handling, self._over, self._leaves = threading.Lock(), threading.Event(), threading.Event()
        """Guards the state; set when the work has ended; set when this worker is let go."""
        self._worker_requests = WorkerRequests(self._name, controller)
        self._leases = EngineLeases(self._worker_requests, self._happened, self._plan.threads, self._plan.ends_runs)
        self._streams = WorkerStreams(self._name, job, self._outbox)
        self._reporter = WorkerReporter(self._name, controller, self._plan, self._over)
        self._current_assignment: EngineRun | None = None
        self._instruction_handlers: dict[type, Callable[[Any], None]] = {
            words.AskJob: self._ask,
            words.FindLocalSplits: self._find_local_splits,
            words.FetchSplits: lambda one: self._plan.prefetch(one.branch, one.splits),
            words.ProvideLease: lambda one: self._leases.put_lease(one.branch, one.lease),
            words.LoadPlan: self._load_plan,
            words.RunAssignment: self._run_assignment,
            words.StopAssignment: self._stop_assignment,
            words.PutOut: self._put_out,
            words.Release: lambda one: release_slot(one.batch),
            words.DropEpochs: lambda one: self._outbox.leave_epochs(one.before),
            words.TellJob: lambda one: self._reporter.tell(one.progress),
            words.EndWork: lambda _: self._outbox.close(),
        }

    def set_up(self) -> None:
        """Load the plan and build its engine, which may import a framework; nothing to do a second time."""
        # Before the plan is loaded: the import of a framework takes long, and silence means a loss (decision 46).
        self._reporter.begin(self._happened)
        if self._plan.engine is None:
            keep_blocks(self._job)
            self._plan.load(self._job.plan, 0)

    def run(self) -> None:
        """Work until the job says stop; errors of the pipeline go to the controller.  Called again, wait for that."""
        if self._over.is_set():
            return
        try:
            self._happened(words.WorkStarted())
            while not self._state.over:
                if RUN in self._worker_requests:
                    self._happened(self._worker_requests.wait(RUN))
                else:
                    self._work()
        except PecanError as error:
            # What is made before the last operators may fail where they would not: others run all of them.
            refused = self._plan.cut_refused if isinstance(error, ElementError) else ""
            self._tell_failure(CutError(refused) if refused else error)
        except BaseException as error:  # of any kind: one that Ray cannot send, or would end this process for
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            failed = PecanError(f"worker {self._name} failed: {describe_error(error)}\n{trace}")
            retry(self._controller.failed, self._name, failed)
        finally:
            # Streams end with what is finished. Without this trainers would wait for more.
            self._outbox.close()
            self.flush()  # what this node alone has may go with it
            self._over.set()

    def finish(self) -> bool:
        """Leave nothing under way, behind the work's end; return whether this process can work for another job.

        Nothing that it has sent is yet to come to the controller then: it would be taken for the next job's.
        """
        if not self._over.is_set() or not self._streams.may_end or self._job.config.cache.spread:
            return False
        self._reporter.end()
        self._plan.end()
        gc.collect()  # while nobody waits: memory files and graphs of jobs before go with their cycles
        return self._worker_requests.end(self._reporter.last_report)

    def _tell_failure(self, error: PecanError) -> None:
        """Tell the job what this worker has failed with: again, until all rows before the one that fails have come.

        The job need not remember it then, and a controller that is started again hears of it.
        """
        with self._handling:
            row = self._state.failing_row
        while not retry(self._controller.failed, self._name, error, row) and not self._leaves.wait(FAILURE_S):
            pass

    def _work(self) -> None:
        """Let the engine work until the job is asked something."""
        stretch = self._current_assignment
        assert stretch is not None, "there is neither work nor a question"
        with self._reporter.stages.at_work():
            for produced in stretch.batches:
                # Decision 100: the epoch would wait for ever for positions of which the engine says nothing.
                stretch.leases.mark_processed(produced.spans)
                produced.unfinished = self._plan.unfinished(produced)
                self._happened(words.BatchProduced(produced, self._left_out(produced)))
                # The engine stands still in its generator until the answer is there, because what
                # comes next depends on it.
                if RUN in self._worker_requests or self._state.over:
                    return
            self._happened(
                words.AssignmentFinished(stretch.leases.unresolved_spans() if not self._job.spec.shape.serial else {})
            )

    def _left_out(self, produced: Produced) -> tuple[LeftOutElement, ...]:
        """Return the bad elements of what may become no batch; a batch takes its own to the trainer."""
        if produced.rows and not produced.partial:
            return ()
        if self._job.options.on_error == "quarantine":
            return left_out_whole(produced.bad)
        return tuple(left_out(one) for one in produced.bad)

    def _happened(self, event: words.WorkerEvent) -> None:
        """Let the state take an event, and perform what it says; from any thread."""
        with self._handling:
            done = self._state.handle(event, time.monotonic())
        # Decision 157: the state never waits, and what it says may.  `PutOut` waits for room in the outbox.
        # So the lock is free meanwhile: otherwise the heartbeat would be silent beside a slow trainer.
        for instruction in done:
            self._instruction_handlers[type(instruction)](instruction)

    # --- what the state wants done -------------------------------------------------------------------------

    def _ask(self, asked: words.AskJob) -> None:
        if isinstance(asked.request, AskAssignment):
            progress = self._reporter.completed(asked.request.progress)
            if self._job.check_order_later:  # what was counted in an epoch must be known when the next one begins
                self._reporter.tell(progress)
            asked = replace(asked, request=AskAssignment(progress))
        pending = self._worker_requests.begin(asked)
        if asked.prefetch and isinstance(asked.request, AskLeases):
            branch = asked.request.branch
            # Decision 27: a lot of leases tells what is read next, before the engine asks for the first of them.
            pending.add_callback(lambda reply: self._plan.prefetch(branch, next_splits(reply)))

    def _find_local_splits(self, wanted: words.FindLocalSplits) -> None:
        indices = self._plan.local_splits(wanted.branch, wanted.splits)
        self._happened(words.LocalSplitsFound(wanted.branch, indices))

    def _load_plan(self, wanted: words.LoadPlan) -> None:
        payload = retry(self._controller.plan, wanted.version)
        self._plan.load(payload, wanted.version, wanted.behind)

    def _run_assignment(self, instruction: words.RunAssignment) -> None:
        self._plan.begin_assignment()
        engine = self._plan.engine
        assert engine is not None, "there is no engine before the worker is set up"
        drop_prefetch()  # what is left of the assignment before
        leases = LeaseTracker(self._plan.behind(self._leases))
        self._current_assignment = EngineRun(leases, engine.batches(leases))

    def _link_bytes_per_s(self) -> float | None:
        return self._streams.link_bytes_per_s

    def _stop_assignment(self, instruction: words.StopAssignment) -> None:
        stretch, self._current_assignment = self._current_assignment, None
        if stretch is not None:
            stretch.batches.close()
            if not instruction.for_good:
                stretch.leases.close()  # for threads that have yet to see that this has ended

    def _put_out(self, instruction: words.PutOut) -> None:
        produced = cast(Produced, instruction.batch or Produced({}, {}, 0, instruction.epoch))
        if instruction.rows is not None:
            produced = copy_of_rows(produced, *instruction.rows)
        produced.row_range, produced.row_parts = instruction.row_range, ()
        if instruction.spans is not None:
            produced.spans, produced.without_data = {key: list(one) for key, one in instruction.spans.items()}, {}
        # From here on the outbox or the trainer gives the slot back, and not whoever forgets it.
        if isinstance(produced.slot, OwnedSlot):
            produced.slot = produced.slot.detach_slot()
        self._outbox.put(produced, instruction.rank)

    # --- what the job and clients call ---------------------------------------------------------------------

    def use_users_order(self) -> None:
        """Run the operators in the user's order from now on, also on what is under way."""
        self._plan.use_users_order()

    def leave_epochs(self, before: int) -> None:
        """Drop what there is of epochs before one, and stop working on it with the next batch: nobody wants it."""
        self._happened(words.EpochsLeft(before))

    def drain(self) -> None:
        """Stop taking work; what is finished can still be fetched, what is not goes back to the job."""
        self._leaves.set()
        self._happened(words.DrainRequested())
        self._outbox.drain()

    def limit_remote_io(self, bytes_per_s: float | None, cache_limits: DatasetRooms = ()) -> None:
        """Read no more than so much of object stores from now on (None: as fast as it can), and keep no more of it."""
        limit_remote_io(bytes_per_s)
        bound_datasets(cache_limits)

    def flush(self) -> None:
        """Wait until what was kept is where other machines find it, for a few seconds at most."""
        if self._plan.engine is not None:
            self._plan.engine.flush()

    def select_transport(self, rank: int, node_id: str, sees_process: bool) -> SelectedTransport:
        """Say how batches will travel to a client."""
        return self._streams.select_transport(rank, node_id, sees_process)

    def wait_for_delivery(self, rank: int) -> None:
        """Wait until a client has received everything by Flight; its caller learns of this process's death."""
        self._streams.wait_for_delivery(rank)

    def send(self, rank: int) -> None:
        """Write messages with batches in shared memory into a client's pipe, until there are no more."""
        self._streams.send(rank)

    def stream(self, rank: int, received: int | None = None) -> Iterator[list[Message]]:
        """Yield messages with batches by value for a client; `received`: by Flight, which has failed."""
        yield from self._streams.stream(rank, received)

    def grant(self, rank: int, count: int) -> None:
        """Let so many more messages go to a client through Ray's object store."""
        self._streams.grant(rank, count)


def copy_of_rows(produced: Produced, begin: int, end: int) -> Produced:
    """Return some rows of a batch with memory of their own: its slot goes to nobody."""
    columns, slot, layout = into_slot(joined([(produced.columns, begin, end)]), HeapSlots())
    bad = [] if begin else produced.bad
    return replace(
        produced, columns=columns, spans={}, without_data={}, rows=end - begin, slot=slot, layout=layout, bad=bad
    )


def heartbeat_of(job: Job) -> Heartbeat:
    """Return when a worker of a job says how it gets on: often where shares of the cluster's pipe hang on that, or
    AutoPlacement does."""
    often = isinstance(job.config.remote_io, ClusterIo) or isinstance(job.options.workers, AutoWorkers)
    every_s = NEWS_S if often else HEARTBEAT_S
    return Heartbeat(min(job.config.worker_timeout_s, job.config.hung_after_s), every_s=every_s)


def prepare_for(job: Job, started: StartWorker) -> None:
    """Let this process work for a job, and read no more than its share of object stores until it is told."""
    set_patience(job.config.storage_patience_s)
    hedge_reads(job.config.hedged_reads)
    tell_elsewhere()  # the heartbeat says what is tried again
    # Decision 51: from its start on, so that no worker reads without bound until the job has told it.
    limit_remote_io(started.remote_io)
    bound_datasets(started.cache_limits)


def prepare_process() -> None:
    """Make this process one that works for jobs."""
    os.nice(NICE)
    # What the user has set for workers holds.
    os.environ.update({name: value for name, value in QUIET_CPU_PROCESS.items() if name not in os.environ})
    # Decision 15: memory that goes back to the system with each element costs page faults for the next one.
    keep_freed_memory()
