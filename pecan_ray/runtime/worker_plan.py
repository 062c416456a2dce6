"""The plan that a worker runs: its version of now, and the engine that was built for it."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

from pecan_ray.engines.autotune import MOST_PER_CPU
from pecan_ray.engines.available_cpus import whole_cpus
from pecan_ray.engines.contract import Engine, EngineOptions, Leases, Produced, UnderWay, Unfinished
from pecan_ray.engines.global_generators import global_generators
from pecan_ray.engines.leases_behind import LeasesBehind
from pecan_ray.engines.registry import build_engine, load_framework
from pecan_ray.engines.users_order import RunOrders, UsersOrder, run_order_of
from pecan_ray.errors import CutError, PecanError, WorkerStartError, describe_error
from pecan_ray.options import AutoWorkers
from pecan_ray.plan.behind import PlanBehind, plan_behind
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import AtWork, Source, Split
from pecan_ray.runtime.job_arrays import MappedArrays
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.pipeline_split import PipelineSplit
from pecan_ray.runtime.worker_requests import EngineLeases
from pecan_ray.sources.files import on_node, prefetch_files
from pecan_ray.transport.owned_slots import OwnedSlots
from pecan_ray.transport.ring import RingSlots

LOADING_S = 300.0
"""Frameworks are imported from slow disks: no loading that is shorter is taken for a hang."""


class WorkerPlan:
    """A version of a job's plan in a worker's process."""

    def __init__(
        self, worker: str, job: Job, sharing: int, arrays: MappedArrays, split: PipelineSplit | None = None
    ) -> None:
        """`sharing`: so many workers share the CPUs of the node; `split`: what leaves operators to the trainer."""
        self._worker, self._job, self._sharing, self._arrays = worker, job, sharing, arrays
        self._split = split or PipelineSplit()
        self._ring = RingSlots(job.config.ring_bytes)
        self._slots = OwnedSlots(self._ring)
        self.engine: Engine | None = None
        self._sources: tuple[Source, ...] = ()
        self._elements_behind: tuple[int, ...] = ()
        """Of each source, how many elements go into the batches that the plan begins behind."""
        self._loading: float | None = None
        """Since when a version of the plan is made an engine of."""
        self._run_order: RunOrders = {}
        """Those of the plan as the user wrote it."""
        self._users_order: UsersOrder | None = None
        """The user's order, while the engine runs another one."""
        self._use_users_order = False

    def load(self, payload: bytes, version: int, behind: int = 0) -> None:
        """Unpickle a version of the plan and build its engine, for what lies `behind` so many batches."""
        job = self._job
        self._loading = time.monotonic()
        # Before functions are unpickled, which may import all of the framework.
        load_framework(job.engine)
        try:
            plan = self._arrays.loads(payload)
        except BaseException as error:
            raise WorkerStartError(
                f"worker {self._worker} cannot load the pipeline: {describe_error(error)}. Modules that its "
                "functions come from must be importable on every node: send them by `--working-dir` or a runtime "
                "environment."
            ) from error
        # Decision 96: behind the loading of the functions, whose modules may seed generators when they are imported.
        if self.engine is None:
            global_generators.begin((job.seed, self._worker.rpartition(":")[2], job.batches_before))
        else:
            global_generators.reset_seeds()
        self._note_order(plan, version)
        left = left_behind(plan, behind)
        self._sources, self._elements_behind = tuple(plan.sources()), left.elements
        self._build(self._split.begin(left.plan))
        self._loading = None

    def _build(self, plan: Plan) -> None:
        # The one before ends first, so that never two have their threads and memory.
        if self.engine is not None:
            self.engine.close()
        options = engine_options(self._job, self._sharing, self._users_order)
        self.engine = build_engine(self._job.engine, plan, options, self._slots)

    def begin_assignment(self) -> None:
        """Look again whether the last operators had better run where batches arrive; nothing is under way."""
        if (plan := self._split.other_plan()) is not None:
            self._build(plan)

    def unfinished(self, produced: Produced) -> Unfinished | None:
        """Return what the trainer has to do to a batch; raises `CutError` where it must not leave this worker."""
        if why := self.cut_refused:
            raise CutError(why)
        return self._split.unfinished(produced.columns)

    @property
    def cut_refused(self) -> str:
        """Why what has been made with operators left to the trainer is of no use; empty where it is."""
        users = self._use_users_order or (self._users_order is not None and self._users_order.taken)
        # Elements that went through the user's order are finished, and others of their batch are not.
        return self._split.refused(users)

    def end(self) -> None:
        """Give back what it has: batches that the trainer holds stay valid."""
        if self.engine is not None:
            self.engine.close()
        self._ring.close()

    def _note_order(self, plan: Plan, version: int) -> None:
        """Keep the user's order ready for a plan in another one."""
        if version == 0:
            self._run_order, self._users_order = run_order_of(plan), None
            return
        self._users_order = UsersOrder(plan, self._run_order, lambda: self._arrays.loads(self._job.plan))
        if self._use_users_order:  # another thread may have been told meanwhile, and is not undone
            self._users_order.taken = True

    def use_users_order(self) -> None:
        """Run the operators in the user's order from now on, also on what is under way."""
        self._use_users_order = True
        if self._users_order is not None:
            self._users_order.taken = True

    @property
    def fallback_reason(self) -> str:
        """Why the user's order is run in place of another one; empty if no element has called for it."""
        return "" if self._users_order is None else self._users_order.reason

    def threads(self) -> int:
        """Return how many threads of the engine work now."""
        return 1 if self.engine is None else self.engine.threads

    def ends_runs(self) -> bool:
        """Tell whether the engine gives up what fills no batch at the end of a run, and goes on."""
        return self.engine is not None and self.engine.ends_runs

    def behind(self, leases: EngineLeases) -> Leases:
        """Return a worker's leases but for the elements that the plan begins behind."""
        if not any(self._elements_behind):
            return leases
        take_unread = functools.partial(leases.take, unread=True)
        return LeasesBehind(leases, self._sources, self._elements_behind, take_unread=take_unread)

    def prefetch(self, branch: int, splits: Sequence[Split]) -> None:
        """Begin to fetch what splits of a source will read."""
        engine = self.engine
        prefetch_files(self._sources[branch], [one for one in splits if engine is None or engine.reads(branch, one)])

    def local_splits(self, branch: int, splits: Sequence[Split]) -> tuple[int, ...] | None:
        """Return which of some splits of a source had better go first; None where it does not matter."""
        return on_node(self._sources[branch], splits)

    def under_way(self, now: float) -> UnderWay | None:
        """Return what has been under way for long; to be asked about every second."""
        engine = self.engine  # None while the first one is built
        asked = engine.under_way(now) if engine is not None else None  # every time, since it compares
        return loading(self._loading, now) or asked


def loading(since: float | None, now: float) -> UnderWay | None:
    """Return what to say of a pipeline that has been loading since then; None: it is not."""
    if since is None:
        return None
    at = AtWork("the loading of the pipeline") if now - since > LOADING_S else None
    return UnderWay("the pipeline has been loading for {seconds}", since, at)


def left_behind(plan: Plan, batches: int) -> PlanBehind:
    """Return what is left of a plan behind so many of its batches, as the job has found that it can be told."""
    left = plan_behind(plan, batches) if batches else PlanBehind(plan, ())
    if left is None:
        raise PecanError(f"the plan cannot begin behind its first {batches} batches: start the run again.")
    return left


def engine_options(job: Job, sharing: int, users_order: UsersOrder | None) -> EngineOptions:
    """Return how a worker's engine runs a job's plan; `users_order`: where it is another one than that."""
    fixed = job.config.threads_per_worker
    threads = fixed or default_threads(job, sharing)
    return EngineOptions(
        seed=job.seed,
        threads=threads,
        # Decision 12: functions that wait need far more threads than there are CPUs.  The engine looks for the number.
        most_threads=None if fixed else MOST_PER_CPU * threads,
        memory_bytes=job.config.ring_bytes,
        order="strict" if job.in_order else "relaxed",
        on_error=job.options.on_error,
        count_epoch=job.options.first_epoch if job.check_order_later else None,
        users_order=users_order,
        cache=job.config.cache,
        ranks=job.spec.shape.world_size if job.spec.shape.coordinated else None,
        tail_ranks=job.spec.shape.tail_ranks,
    )


def default_threads(job: Job, sharing: int) -> int:
    """Return the threads of a worker: as Ray reserves where workers come and go, else all CPUs that it can have.

    `sharing`: so many workers share them, but where workers take turns: the one at work has them all.
    """
    if isinstance(job.options.workers, AutoWorkers):
        return max(1, round(job.config.cpus_per_worker))
    return max(1, whole_cpus() // (1 if job.spec.shape.one_at_a_time else sharing))
