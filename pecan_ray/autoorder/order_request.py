"""What AutoOrder is asked, and how long it may take."""

from __future__ import annotations

import glob
import math
import time
from dataclasses import dataclass

from pecan_ray.engines.available_cpus import whole_cpus
from pecan_ray.engines.thread_times import cpu_times
from pecan_ray.errors import PlanError
from pecan_ray.options import AutoWorkers, Config, EngineName, IterOptions
from pecan_ray.plan.operators import FixedSizeBatchingOp, Plan, Take
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Source
from pecan_ray.reorder import Mode
from pecan_ray.sources.listing import list_splits

ELEMENTS = 300
"""Most elements of the usual sample."""
SECONDS = 40.0
"""Most CPU time of the usual sample: most looks end in a third of it, so that a slow machine finds the same."""


@dataclass(frozen=True)
class JobSize:
    """How often a job passes over its data, and with how much."""

    passes: float
    """Infinity for a job without an end."""
    cpus: float
    workers: int = 1
    """Processes that these are divided among, as far as it is known."""
    continues: bool = False
    """Whether it may begin in the user's order, and be told of another one while it runs."""


def job_size(options: IterOptions, config: Config, *, debug: bool = False) -> JobSize:
    """Return the size of a job as far as its options tell.

    Where AutoPlacement finds the number of workers, it counts as the CPUs of this machine.
    """
    passes = math.inf if options.epochs is None else float(options.epochs)
    here = whole_cpus()
    if debug:
        return JobSize(passes, 1)
    if isinstance(options.workers, AutoWorkers):
        return JobSize(passes, here, continues=True)
    each = config.threads_per_worker or here
    local = min(here, each * options.workers.local)
    workers = max(1, options.workers.local + options.workers.remote)
    return JobSize(passes, max(1, local + each * options.workers.remote), workers, continues=True)


@dataclass(frozen=True)
class OrderRequest:
    """A plan whose order is asked for, how it is run, and how large a sample of it may become."""

    plan: Plan
    engine: EngineName = "python"
    mode: Mode = "safe"
    seed: int = 0
    """What its random numbers are derived from."""
    elements: int = ELEMENTS
    """The most elements of the sample."""
    seconds: float = SECONDS
    """The longest time for the sample and the trials on it."""
    skip_bad: bool = False
    """Elements that operators cannot take are left out of the sample; else they end it."""
    sample_all: bool = False
    """Sample stretches in which nothing can move too."""
    job: JobSize | None = None
    """The job that the order is for, where the look may take but a share of it."""
    exchanges: bool = True
    """Whether operators may be exchanged."""
    rewrites: bool = True
    """Whether operators may be rewritten."""
    in_subprocess: bool | None = None
    """Whether the sample runs in a process of its own, as far as that is known before."""
    runs: float = math.inf
    """The look may take so many times as long as one element takes."""

    def __post_init__(self) -> None:
        if not isinstance(self.elements, int) or isinstance(self.elements, bool) or self.elements < 1:
            raise PlanError(f"a sample needs at least 1 element, but got elements={self.elements!r}.")
        if not self.seconds > 0:
            raise PlanError(f"a sample needs some time, but got seconds={self.seconds!r}.")


# --- how long a look may take, given the job that it is for: in times that one element takes ------------------

# docs/decisions/autoorder.md#24-kept-orders-and-reverting, as the next one.
SHARE_OF_JOB = 0.02
"""A look may take so much of a job's time."""
LEAST_RUNS = 128
"""In less than the time of so many elements nothing can be found."""
RUNS_OF_AN_ELEMENT = 4
"""Times that an element of the sample is run at least."""


def runs_allowed(plan: Plan, job: JobSize | None) -> float:
    """Return the times of one element that a look may take; infinity where the job's length is not known.

    An element takes as long in the job as in the look, on each of the job's CPUs: of their number it does not depend
    how much of the whole work the look is.
    """
    elements = None if job is None else num_elements(plan)
    if job is None or elements is None:
        return math.inf
    return SHARE_OF_JOB * elements * job.passes / job.cpus


def num_elements(plan: Plan) -> float | None:
    """Return how many elements a plan reads in one epoch; None where that is not known at once."""
    counts = [_count(source) for source in plan.sources()]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    total = float(sum(known))
    num_passes = plan_shape(plan, order=False).num_passes
    # Nothing is nothing, however often it is repeated.
    total *= math.inf if num_passes is None and total else num_passes or 1
    # Behind `batch`, `take` counts batches.
    size = 1
    for op in plan.ops:
        if isinstance(op, FixedSizeBatchingOp):
            size = op.size
        elif isinstance(op, Take):
            total = min(total, op.count * size)
    return total


def _count(source: Source) -> int | None:
    # A source that computes its data to have splits knows how many elements there are once it has.
    return source.num_elements() if hasattr(source, "first") else list_splits(source).elements


# docs/decisions/autoorder.md#143-waiting-and-queueing, as the next one.
WALL_PER_CPU = 15.0
"""A look may take so many times its seconds by the wall clock.  What it finds must not depend on the load of a machine:
beside forty other programs on two CPUs it takes ten times as long."""
WAITING_PER_CPU = 1.5
"""Seconds of waiting that count as one of the CPU: a look whose functions wait (for a file, a lock, a server) ends
after a minute, and one whose storage is slow still reads its sample."""
STEP_S = 0.1
"""Waiting is counted in steps that are long beside the time that reading the counters takes."""


class LookClock:
    """Seconds that a look has taken: those of the CPUs, and two thirds of those in which it waited.

    It does not wait while other programs have the CPU that it wants, as far as the system tells.
    """

    def __init__(self) -> None:
        self._started = self._wall = time.perf_counter()
        self._cpu_start = self._cpu = time.process_time()
        self._queued = _queued_s()
        self.waited_s = 0.0
        """Seconds in which nothing of this process wanted a CPU."""

    def __call__(self) -> float:
        """Return the seconds since it was made."""
        if time.perf_counter() - self._wall >= STEP_S:
            self._count_waiting()
        wall, cpu = time.perf_counter() - self._started, time.process_time() - self._cpu_start
        return max(cpu + self.waited_s / WAITING_PER_CPU, wall / WALL_PER_CPU)

    def _count_waiting(self) -> None:
        wall, cpu, queued = time.perf_counter(), time.process_time(), _queued_s()
        # Decision 143: time in line for a CPU is the machine's load, and what a look finds must not depend on that.
        busy = cpu - self._cpu + max(queued - self._queued, 0.0)  # threads that have ended are not counted any more
        self.waited_s += max(wall - self._wall - busy, 0.0)
        self._wall, self._cpu, self._queued = wall, cpu, queued


def _queued_s() -> float:
    """Return the seconds in which threads of this process were ready to run; 0 where the system does not tell."""
    return sum(cpu_times(thread)[1] for thread in glob.glob("/proc/self/task/*"))
