"""What a worker's process does: it runs the plan on leases and streams batches to clients."""

from __future__ import annotations

import functools
import os
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pecan_ray.engines.accounted_leases import AccountedLeases
from pecan_ray.engines.contract import Engine, EngineOptions, Leases, Produced, SpansByKey, UnderWay
from pecan_ray.engines.freed_memory import keep_freed_memory
from pecan_ray.engines.global_generators import global_generators
from pecan_ray.engines.kept_elements import kept_tally
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.engines.registry import build_engine, load_framework
from pecan_ray.engines.tuning import MOST_PER_CPU
from pecan_ray.engines.under_way import counted_from, long_retry
from pecan_ray.engines.usable_cpus import whole_cpus
from pecan_ray.engines.users_order import RunOrders, UsersOrder, orders_of
from pecan_ray.errors import PecanError, WorkerStartError, told
from pecan_ray.job.heartbeat import HEARTBEAT_S, Heartbeat
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import DatasetRooms, WorkerProgress
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import AutoWorkers, ClusterIo
from pecan_ray.plan.behind import PlanBehind, plan_behind
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import AtWork, Source, Split
from pecan_ray.runtime.cache_node import keep_blocks
from pecan_ray.runtime.job_arrays import MappedArrays
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.sigterm import SigtermNotice
from pecan_ray.runtime.stage_watch import StageWatch
from pecan_ray.runtime.worker_questions import Asking, WorkerLeases, ask_again
from pecan_ray.runtime.worker_streams import WorkerStreams, release
from pecan_ray.sources.files import fetch_files_ahead, on_node
from pecan_ray.storage import (
    bound_datasets,
    bytes_from_node,
    forget_ahead,
    hedge_reads,
    limit_remote_io,
    reads_hedged,
    remote_bytes,
    set_patience,
)
from pecan_ray.storage.retry import tell_elsewhere
from pecan_ray.transport.choice import Offer
from pecan_ray.transport.messages import Message
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.owned_slots import OwnedSlot, OwnedSlots
from pecan_ray.transport.ring import RingSlots

NEWS_S = 1.0
"""With how many threads it works, and what takes it long, a worker says after this time."""
NICE = 5
"""By so much workers that AutoPlacement adds beside a trainer yield to it: they get a third of a CPU that both want."""
LOADING_S = 300.0
"""Frameworks are imported from slow disks: no loading that is shorter is taken for a hang."""
QUIET_CPU_PROCESS = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Accelerators belong to the trainer; and a worker's log is for what it has to say itself."""


class WorkerProcess:
    """Runs a job's plan; one process on one node.  Its methods are those of the actor, in which they are called."""

    def __init__(self, began: StartWorker, job: Job, controller: Any) -> None:
        self._name, self._job, self._controller, self._sharing = began.worker, job, controller, began.sharing
        prepare_process(job, began)
        self._outbox = Outbox(job.config.ring_bytes, job.spec.shape.world_size, began.number)
        self._slots = OwnedSlots(RingSlots(job.config.ring_bytes))
        self._heartbeat = heartbeat_of(job)
        asking = Asking(self._name, controller, self._heartbeat)
        fetch, ahead = (self._fetch_ahead, self._at_hand), not job.shape.serial
        self._leases = WorkerLeases(asking, *fetch, ahead=ahead, one_sequence=job.in_order)
        self._streams = WorkerStreams(self._name, job, self._outbox)
        self._progress = WorkerProgress()
        self._engine: Engine | None = None
        self._loading: float | None = None
        """Since when a version of the plan is made an engine of."""
        self._sources: tuple[Source, ...] = ()
        self._built = (0, 0)
        """For which version of the plan the engine was built, and behind how many of its first batches it begins."""
        self._elements_behind: tuple[int, ...] = ()
        """That went into these, of each source."""
        self._orders: RunOrders = {}
        """Those of the plan as the user wrote it."""
        self._users_order: UsersOrder | None = None
        """The user's order, while the engine runs another one."""
        self._use_users_order, self._arrays = False, MappedArrays(job, controller)
        self._telling = threading.Thread(target=self._keep_telling, name="pecan-heartbeat", daemon=True)
        self._sigterm = SigtermNotice()
        self._draining, self._over = threading.Event(), threading.Event()
        self._stages = StageWatch(lambda: self._engine, self._over)

    def set_up(self) -> None:
        """Load the plan and build its engine, which may import a framework; nothing to do a second time."""
        if not self._telling.ident:
            self._telling.start()
        if self._engine is None:
            keep_blocks(self._job)
            self._load(self._job.plan, 0)

    def _load(self, payload: bytes, version: int, behind: int = 0) -> None:
        """Unpickle a version of the plan and build its engine, for what lies `behind` so many batches."""
        job = self._job
        self._loading = time.monotonic()
        load_framework(job.engine)
        try:
            plan = self._arrays.loads(payload)
        except BaseException as error:
            raise WorkerStartError(
                f"worker {self._name} cannot load the pipeline: {told(error)}. Modules that its "
                "functions come from must be importable on every node: send them by `--working-dir` or a runtime "
                "environment."
            ) from error
        if global_generators.key is None:
            global_generators.begin((job.seed, self._name.rpartition(":")[2], job.batches_before))
        else:
            global_generators.seed_again()
        self._note_order(plan, version)
        left = left_behind(plan, behind)
        options = engine_options(job, self._sharing, self._users_order)
        if self._engine is not None:
            self._engine.close()
        self._sources = tuple(plan.sources())
        self._engine = build_engine(job.engine, left.plan, options, self._slots)
        self._built, self._elements_behind, self._loading = (version, behind), left.elements, None

    def _note_order(self, plan: Plan, version: int) -> None:
        """Keep the user's order ready for a plan in another one."""
        if version == 0:
            self._orders, self._users_order = orders_of(plan), None
            return
        self._users_order = UsersOrder(plan, self._orders, lambda: self._arrays.loads(self._job.plan))
        if self._use_users_order:  # another thread may have been told meanwhile, and is not undone
            self._users_order.taken = True

    def use_users_order(self) -> None:
        """Run the operators in the user's order from now on, also on what is under way."""
        self._use_users_order = True
        if self._users_order is not None:
            self._users_order.taken = True

    def leave_epochs(self, before: int) -> None:
        """Drop what there is of epochs before one, and stop working on it with the next batch: nobody wants it."""
        self._outbox.leave_epochs(before)

    def _fetch_ahead(self, branch: int, splits: Sequence[Split]) -> None:
        """Begin to fetch what splits of a source will read."""
        engine = self._engine
        fetch_files_ahead(self._sources[branch], [one for one in splits if engine is None or engine.reads(branch, one)])

    def _at_hand(self, branch: int, splits: Sequence[Split]) -> tuple[int, ...] | None:
        """Return which of some splits of a source had better go first; None where it does not matter."""
        return on_node(self._sources[branch], splits)

    def run(self) -> None:
        """Work until the job says stop; errors of the pipeline go to the controller.  Called again, wait for that."""
        if self._over.is_set():
            return
        try:
            while not self._draining.is_set():
                if self._job.look_again:  # what was counted in an epoch must be known when the next one begins
                    self._tell(self._engine, self._progress.threads)
                assigned = self._leases.ask_for_work(self._so_far())
                if assigned is None:
                    break
                version, behind = assigned.plan_version, assigned.assignment.behind
                if (version, behind) != self._built:
                    self._load(ask_again(self._controller.plan, version), version, behind)
                forget_ahead()  # what is left of the assignment before
                with self._stages.at_work():
                    self._work(self._leases.begin(assigned))
        except PecanError as error:
            ask_again(self._controller.failed, self._name, error)
        except BaseException as error:  # of any kind: one that Ray cannot send, or would end this process for
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            failed = PecanError(f"worker {self._name} failed: {told(error)}\n{trace}")
            ask_again(self._controller.failed, self._name, failed)
        finally:
            self._outbox.close()
            if self._engine is not None:
                self._engine.flush()  # what this node alone has may go with it
            self._over.set()

    def limit_remote_io(self, bytes_per_s: float | None, rooms: DatasetRooms = ()) -> None:
        """Read no more than so much of object stores from now on (None: as fast as it can), and keep no more of it."""
        limit_remote_io(bytes_per_s)
        bound_datasets(rooms)

    def flush(self) -> None:
        """Wait until what was kept is where other machines find it, for a few seconds at most."""
        if self._engine is not None:
            self._engine.flush()

    def _keep_telling(self) -> None:
        """Say now and then that this process lives, how it gets on, and what takes it long, until it is ended."""
        told: tuple[object, ...] | None = None
        retried, hung_s = 0.0, self._job.config.hung_after_s
        while True:
            engine, over, now = self._engine, self._over.is_set(), time.monotonic()  # no engine while it is built
            under_way = engine.under_way(now) if engine is not None else None  # asked every time, since it compares
            retrying = long_retry(now)
            retried = now if retrying else retried
            # What is being read while the storage fails begins anew once it does not.
            long = None if over else retrying or counted_from(loading(self._loading, now) or under_way, retried, now)
            threads, long_s = engine.threads if engine is not None else 0, now - long.since if long else 0.0
            news = (threads, long.text if long else "", self._fell_back(), over, self._sigterm.came, long_s > hung_s)
            if news != told or self._heartbeat.due(now, self._leases.lot_s):
                told, self._heartbeat.told = news, now
                self._tell(engine, threads, long, long_s)
            if over:
                time.sleep(NEWS_S)  # what it has made is yet to be fetched
            else:
                self._over.wait(NEWS_S)

    def _tell(self, engine: Engine | None, threads: int, long: UnderWay | None = None, long_s: float = 0.0) -> None:
        progress = replace(self._so_far(), threads=threads, told_to_end=self._sigterm.came)
        if long is not None:
            progress = replace(progress, stuck=long.text, stuck_s=long_s, at=long.at)
        counts = dict(engine.counts()) if engine is not None else {}
        self._controller.told.remote(self._name, progress, counts)

    def _so_far(self) -> WorkerProgress:
        return with_bytes_read(replace(self._progress, fell_back=self._fell_back(), stages=self._stages.seconds))

    def _fell_back(self) -> str:
        """Return why the user's order is run in place of another one; empty if no element has called for it."""
        return "" if self._users_order is None else self._users_order.said

    def _work(self, assignment: Assignment) -> None:
        leftovers: list[Produced] = []
        made, numbers = assignment.behind, assignment.numbers()
        assert self._engine is not None
        leases = AccountedLeases(leases_behind(self._leases, self._sources, self._elements_behind))
        batches = self._engine.batches(leases)
        for produced in batches:
            if self._draining.is_set() or assignment.epoch < self._outbox.left:
                batches.close()
                if not self._draining.is_set():
                    leases.close()  # for threads that have yet to see that this has ended
                    self._leases.drop()
                return
            leases.mention(produced.spans)
            if produced.partial:
                leftovers.append(produced)
            elif not produced.rows:
                self._end_data(produced)
            else:
                self._put_out(produced, assignment, next(numbers))
                made += 1
        spans: SpansByKey = {}
        for leftover in leftovers:
            for key, intervals in leftover.spans.items():
                spans.setdefault(key, []).extend(intervals)
        made += sum(is_batch(leftover, self._job.spec.shape) for leftover in leftovers)
        if not self._job.spec.shape.serial and (silent := leases.unmentioned()):
            self._leases.tell_end(silent, 0, [], keep=False)
        flush = self._leases.end(spans, made, sum(leftover.rows for leftover in leftovers))
        for leftover in leftovers:
            if not flush:
                release(leftover)
            elif is_batch(leftover, self._job.spec.shape):
                self._put_out(leftover, assignment, next(numbers))
            else:
                self._end_data(leftover)

    def _end_data(self, produced: Produced) -> None:
        """Tell the job about data that yields no batch."""
        release(produced)
        keep = self._job.options.on_error == "quarantine"
        self._leases.tell_end(produced.spans, produced.rows, produced.bad, keep=keep)

    def _put_out(self, produced: Produced, assignment: Assignment, number: int) -> None:
        """Put a batch out for the rank that it is for, unless that has it from a worker before this one."""
        rank = assignment.rank if produced.rank is None else produced.rank
        if assignment.delivered:
            if assignment.has(number):
                release(produced)
                return
            rank = number % len(assignment.delivered)
        produced.row = self._leases.first_row(produced)
        if isinstance(produced.slot, OwnedSlot):
            produced.slot = produced.slot.handed_on()
        nbytes = self._outbox.put(produced, rank)
        done, threads = self._progress, self._engine.threads if self._engine is not None else 0
        self._progress = WorkerProgress(done.elements + produced.rows, done.batches + 1, done.bytes + nbytes, threads)

    def offer(self, rank: int, node_id: str, sees_process: bool) -> Offer:
        """Say how batches will travel to a client."""
        return self._streams.offer(rank, node_id, sees_process)

    def attend(self, rank: int) -> None:
        """Wait until a client has received everything by Flight; its caller learns of this process's death."""
        self._streams.attend(rank)

    def send(self, rank: int) -> None:
        """Write messages with batches in shared memory into a client's pipe, until there are no more."""
        self._streams.send(rank)

    def stream(self, rank: int, received: dict[int, int] | None = None) -> Iterator[list[Message]]:
        """Yield messages with batches by value for a client; `received`: by Flight, which has failed."""
        yield from self._streams.stream(rank, received)

    def grant(self, rank: int, count: int) -> None:
        """Let so many more messages go to a client through Ray's object store."""
        self._streams.grant(rank, count)

    def drain(self) -> None:
        """Stop taking work; what is finished can still be fetched, what is not goes back to the job."""
        self._draining.set()
        self._leases.stopped.set()


def loading(since: float | None, now: float) -> UnderWay | None:
    """Return what to say of a pipeline that has been loading since then; None: it is not."""
    if since is None:
        return None
    at = AtWork("the loading of the pipeline") if now - since > LOADING_S else None
    return UnderWay("the pipeline has been loading for {seconds}", since, at)


def heartbeat_of(job: Job) -> Heartbeat:
    """Return when a worker of a job says how it gets on: often where shares of the cluster's pipe hang on that, or
    AutoPlacement does."""
    often = isinstance(job.config.remote_io, ClusterIo) or isinstance(job.options.workers, AutoWorkers)
    every_s = NEWS_S if often else HEARTBEAT_S
    return Heartbeat(min(job.config.worker_timeout_s, job.config.hung_after_s), every_s=every_s)


def prepare_process(job: Job, began: StartWorker) -> None:
    """Make a process one that works for a job, and reads no more than its share of object stores until it is told."""
    set_patience(job.config.storage_patience_s)
    hedge_reads(job.config.hedged_reads)
    tell_elsewhere()  # the heartbeat says what is tried again
    limit_remote_io(began.remote_io)
    bound_datasets(began.rooms)
    if began.placement == "local" and isinstance(job.options.workers, AutoWorkers):
        os.nice(NICE)  # the training loop keeps its core
    os.environ.update({name: value for name, value in QUIET_CPU_PROCESS.items() if name not in os.environ})
    keep_freed_memory()


def left_behind(plan: Plan, batches: int) -> PlanBehind:
    """Return what is left of a plan behind so many of its batches, as the job has found that it can be told."""
    left = plan_behind(plan, batches) if batches else PlanBehind(plan, ())
    if left is None:
        raise PecanError(f"the plan cannot begin behind its first {batches} batches: start the run again.")
    return left


def leases_behind(leases: WorkerLeases, sources: Sequence[Source], elements: Sequence[int]) -> Leases:
    """Return a worker's leases but for the first elements of each source."""
    if not any(elements):
        return leases
    return LeasesBehind(leases, sources, elements, take_unread=functools.partial(leases.take, unread=True))


def with_bytes_read(progress: WorkerProgress) -> WorkerProgress:
    """Add what this process has read of buckets, and of its node's disk instead, and what it took out of a cache."""
    kept, computed = kept_tally.sums
    hedged, won = reads_hedged()
    read = replace(progress, remote_bytes=remote_bytes(), node_bytes=bytes_from_node(), hedged=hedged, hedges_won=won)
    return replace(read, kept=kept, computed=computed)


def engine_options(job: Job, sharing: int, users_order: UsersOrder | None) -> EngineOptions:
    """Return how a worker's engine runs a job's plan; `users_order`: where it is another one than that."""
    fixed = job.config.threads_per_worker
    threads = fixed or usual_threads(job, sharing)
    return EngineOptions(
        seed=job.seed,
        threads=threads,
        most_threads=None if fixed else MOST_PER_CPU * threads,
        memory_bytes=job.config.ring_bytes,
        order="strict" if job.in_order else "relaxed",
        on_error=job.options.on_error,
        count_epoch=job.options.first_epoch if job.look_again else None,
        users_order=users_order,
        cache=job.config.cache,
        ranks=job.spec.shape.world_size if job.spec.shape.coordinated else None,
    )


def is_batch(leftover: Produced, shape: LedgerShape) -> bool:
    """Tell whether what is left at the end is a batch for somebody, if it is not returned."""
    return leftover.rows > 0 and not shape.drop_remainder and (leftover.rank is not None or not shape.coordinated)


def usual_threads(job: Job, sharing: int) -> int:
    """Return the threads of a worker: as Ray reserves where workers come and go, else all CPUs that it can have.

    `sharing`: so many workers share them, but where workers take turns: the one at work has them all.
    """
    if isinstance(job.options.workers, AutoWorkers):
        return max(1, round(job.config.cpus_per_worker))
    return max(1, whole_cpus() // (1 if job.spec.shape.one_at_a_time else sharing))
