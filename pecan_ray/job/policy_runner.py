"""The policy at work on a live job: what was measured in, decisions out, with what is told about them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pecan_ray.errors import PlanError
from pecan_ray.job.job_sampler import JobSampler
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.room import Placement, Room
from pecan_ray.job.windows import StepTotals, WindowMeter
from pecan_ray.job.worker_table import WorkerTable
from pecan_ray.options import AutoWorkers, Visitation
from pecan_ray.placement import COST, NO_WAIT, AutoPlacement
from pecan_ray.placement.trial_history import MAX_QUIET_S
from pecan_ray.plan.prices import GCP_TPU_V2
from pecan_ray.plan.windows import Decision, Deployment, Window

MOST_STEPS = 10_000
"""Newest windows and decisions of a job that are kept."""
LOCAL_PATIENCE_S = 30.0
"""How long a local worker may wait for CPUs of its node: no autoscaler can bring them."""
TRIES_BOTH_SIDES = ("auto", "pecan", "pecan-code")
"""Modes that may begin on the other side where the one they begin with has no room at all."""
DISCARDED = 150
"""Batches that the papers' modes do not measure after workers came or went (Cachew §4.3)."""


@dataclass(frozen=True)
class PlacementStep:
    """A decision and what it was made from; the timeline of a job is a list of them."""

    seconds: float
    """Since the job began."""
    window: Window
    deployment: Deployment
    decision: Decision


@dataclass
class PolicyRunner:
    """Asks AutoPlacement about a job: mode "auto" twice a second, the papers' modes at the end of each window."""

    policy: AutoPlacement
    meter: WindowMeter
    patience_s: float
    """How long a remote worker may wait for a node before the policy is told that it does not come."""
    target: Deployment
    """What was asked for last."""
    job_sampler: JobSampler
    stopped: bool = False
    """The user has fixed the numbers of workers."""
    timeline: deque[PlacementStep] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    steps: int = 0
    """Windows and changes so far, those included that the timeline has forgotten."""
    failures: int = 0
    """How often the policy has failed: the decisions of phase "failed"."""
    given_up: dict[Placement, tuple[int, float]] = field(default_factory=dict)
    """Sides of which no more workers than these came, or may stay, and until when this holds."""

    def patience(self, placement: str) -> float:
        """Return for how many seconds a worker may wait for a place before less is taken for an answer."""
        return self.patience_s if placement == "remote" else min(LOCAL_PATIENCE_S, self.patience_s)

    def report(self, rank: int, totals: StepTotals) -> None:
        """Take over a trainer's totals."""
        self.meter.add(rank, totals)

    def begin_with_sample(
        self,
        row_s: float | None,
        trainers: Sequence[TrainerProgress],
        worker_table: WorkerTable,
        cpus_per_worker: float,
    ) -> Deployment:
        """Return what to begin with once a sample is there, if nothing was measured yet."""
        # Infinity is a sample that has not ended in time. It says that elements are slow, and not how slow.
        self.job_sampler.row_s = None if row_s == math.inf else row_s
        batch = self.job_sampler.batch
        if self.policy.mode != "auto" or self.stopped or self.steps or row_s is None or batch is None:
            return self.target
        room = self.job_sampler.room(trainers, worker_table, cpus_per_worker)
        # `row_s` is of one thread, and a worker has a thread for each of its CPUs.
        rows = batch * self.job_sampler.trainers / max(1.0, cpus_per_worker)
        self.target = self.policy.first(row_s, math.ceil(rows), room)
        return self.target

    def pause_requests(self, placement: Placement, count: int, seconds: float) -> None:
        """Ask for no more workers of a side for a while."""
        self.given_up[placement] = count, seconds + MAX_QUIET_S

    def look(
        self,
        trainers: Sequence[TrainerProgress],
        worker_table: WorkerTable,
        awaited: Deployment,
        seconds: float,
        cpus_per_worker: float,
        longest_s: float | None,
    ) -> PlacementStep | None:
        """Return what has changed or was measured by mode "auto"; None: nothing."""
        running, wanted = worker_table.running(), worker_table.target
        # The policy waits only for what may still come, and not for workers that find no place.
        asked = Deployment(
            min(wanted.local, running.local + awaited.local), min(wanted.remote, running.remote + awaited.remote)
        )
        if not asked.workers:  # a job needs one, however long it takes
            asked = wanted
        o = self.job_sampler.look(trainers, worker_table, asked)
        if o is None:
            return None
        # What has not come within its patience is not asked for again for a while: else each look
        # would ask for it.
        if asked.local < wanted.local:
            self.pause_requests("local", asked.local, seconds)
        if asked.remote < wanted.remote:
            self.pause_requests("remote", asked.remote, seconds)
        local = min(self.job_sampler.room(trainers, worker_table, cpus_per_worker), self._most("local", seconds))
        remote = min(self.policy.limits.max_remote, self._most("remote", seconds))
        pace = math.inf if longest_s is None else self.job_sampler.trainers * o.grain / longest_s
        o = replace(o, room=Deployment(int(local), int(remote)), required_rate=pace)
        decision = self._safely(lambda: self.policy.look(o, seconds))
        changed = decision.target != wanted
        # A change ends the window, which belongs to the deployment before it.
        window = self.meter.cut() if changed else self.meter.close()
        self.target = decision.target
        # A policy that fails at each look would fill the timeline. Only its first failure is noted by itself.
        fails_first = decision.phase == "failed" and self.failures == 1
        if window is None and not changed and not fails_first:
            return None
        return self._note(PlacementStep(seconds, window or Window(0.0, 0.0, 0), running, decision))

    def _most(self, placement: Placement, seconds: float) -> float:
        count, until = self.given_up.get(placement, (0, -math.inf))
        return count if seconds < until else math.inf

    def decide(self, running: Deployment, seconds: float, awaited: int = 0) -> PlacementStep | None:
        """Return a decision of a paper's mode if a window has ended.

        While `awaited` workers may still come, the policy is not asked: nodes take minutes, windows seconds.
        """
        window = None if self.stopped else self.meter.close()
        if window is None:
            return None
        if awaited:
            window = replace(window, touched=True)
            why = f"keep {self.target}: the window is thrown away, {awaited} of its workers are still awaited."
            decision = Decision(self.target, "discarded", why)
        else:
            decision = self._safely(lambda: self.policy.decide(window, running))
        self.target = decision.target
        return self._note(PlacementStep(seconds, window, running, decision))

    def _note(self, step: PlacementStep) -> PlacementStep:
        self.timeline.append(step)
        self.steps += 1
        return step

    def _safely(self, ask: Callable[[], Decision]) -> Decision:
        """Ask the policy; if it fails, what runs stays, and it begins anew: no training ends for a decision."""
        try:
            return ask()
        except Exception as error:  # whatever a policy does wrong
            self.failures += 1
            self.policy.restart_search()
            why = f"the policy failed: {type(error).__name__}: {error}"
            return Decision(self.target, "failed", f"keep {self.target}, and begin anew: {why}.")


def begin(
    options: AutoWorkers,
    room: Room,
    cpus_per_worker: float,
    visitation: Visitation,
    trainers: int,
    batch: int | None = None,
) -> PolicyRunner:
    """Return the placing of a new job; bounds that the user left open follow from the room that there is."""
    max_remote = (
        worker_capacity(room.remote_cpus, cpus_per_worker) if options.max_remote is None else options.max_remote
    )
    check_room(options, max_remote)
    policy = AutoPlacement(
        options.mode,
        GCP_TPU_V2 if options.prices is None else options.prices,
        len(room.host_cpus),
        options.threshold,
        # A host with too few CPUs for a worker runs one all the same: see `StartWorker.reserve`.
        max_local=max(1, worker_capacity(room.host_cpus, cpus_per_worker))
        if options.max_local is None
        else options.max_local,
        max_remote=max_remote,
        min_local=options.min_local,
        min_remote=options.min_remote,
        max_per_hour=options.max_per_hour,
        max_local_cpu_fraction=options.max_local_cpu_fraction,
        host_cpus=min(room.host_cpus),
        cpus_per_worker=cpus_per_worker,
        visitation=visitation,
        fast_removal=options.fast_removal,
        objective=NO_WAIT if options.objective == "no_wait" else COST,
        priced=options.prices is not None,
        patience=1,  # the wait is over when the policy first sees less than it asked for
    )
    batches = options.window_batches or policy.window_batches
    # Decision 9: mode "auto" decides without windows, which are for its reports alone.
    if options.mode == "auto":
        meter = WindowMeter(trainers, batches, options.window_s)
    else:
        meter = WindowMeter(trainers, batches, discarded=DISCARDED)
    return PolicyRunner(policy, meter, options.patience_s, policy.start, JobSampler(trainers, batch))


def check_room(options: AutoWorkers, max_remote: int) -> None:
    """Refuse at once a job that needs workers on other nodes, where none has a place: it would wait for ever."""
    if max_remote or options.mode == "collocated":
        return
    needs = {
        f"mode={options.mode!r} runs remote workers only": options.mode.startswith("cachew"),
        "max_local=0 allows remote workers only": options.max_local == 0,
        "max_local_cpu_fraction=0 allows remote workers only": options.max_local_cpu_fraction == 0,
        f"min_remote={options.min_remote} asks for remote workers": options.min_remote > 0,
    }
    why = next((need for need, there in needs.items() if there), "")
    if why:
        where = (
            "max_remote=0 allows none" if options.max_remote == 0 else "no node but the trainers' own holds a worker"
        )
        raise PlanError(
            f"{why}, and {where}: change that, add nodes to the cluster (or lower cpus_per_worker, if theirs are too "
            "few), or give max_remote=N where an autoscaler brings nodes up."
        )


def worker_capacity(nodes: Iterable[float], cpus_per_worker: float) -> int:
    """Return how many workers fit on nodes of so many CPUs."""
    return sum(math.floor(cpus / cpus_per_worker) for cpus in nodes)
