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
from pecan_ray.job.windows import ObservedWindow, WindowMeter
from pecan_ray.job.worker_table import WorkerTable
from pecan_ray.options import AutoWorkers, Visitation
from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.objective import COST, NO_WAIT
from pecan_ray.placement.trial_history import MAX_QUIET_S
from pecan_ray.placement.trials import SETTLED_S
from pecan_ray.plan.prices import GCP_TPU_V2
from pecan_ray.plan.windows import Decision, Deployment, Window

MOST_STEPS = 10_000
"""Newest windows and decisions of a job that are kept."""
DISCARDED = 150
"""Batches that the papers' modes do not measure after workers came or went (Cachew §4.3)."""

NO_NODE = (
    " No node but the trainers' own holds a worker: where the job needs one there, add nodes to the cluster (or lower "
    "cpus_per_worker, if theirs are too few), or give max_remote=N where an autoscaler brings nodes up."
)


@dataclass(frozen=True)
class PlacementStep(ObservedWindow):
    """A decision and what it was made from; the timeline of a job is a list of them."""

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
    timeline: deque[PlacementStep] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    steps: int = 0
    """Windows and changes so far, those included that the timeline has forgotten."""
    failures: int = 0
    """How often the policy has failed: the decisions of phase "failed"."""
    offers_accelerator: bool = False
    """Workers may leave images to the trainer's accelerator."""
    given_up: dict[Placement, tuple[int, float]] = field(default_factory=dict)
    """Sides of which no more workers than these came, or may stay, and until when this holds."""

    def patience(self, placement: str) -> float:
        """Return for how many seconds a worker may wait for a place before less is taken for an answer."""
        # No autoscaler can bring CPUs of the trainer's node: after that long, a start of a local worker is over.
        return self.patience_s if placement == "remote" else min(SETTLED_S, self.patience_s)

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
        if self.policy.mode != "auto" or self.steps or row_s is None or batch is None:
            return self.target
        room = self.job_sampler.room(trainers, worker_table, cpus_per_worker)
        # `row_s` is of one thread, and a worker has a thread for each of its CPUs.
        rows = batch * self.job_sampler.trainers / max(1.0, cpus_per_worker)
        self.target = self.policy.first(row_s, math.ceil(rows), room)
        return self.target

    def pause_requests(self, placement: Placement, count: int, seconds: float) -> None:
        """Ask for no more workers of a side for a while."""
        self.given_up[placement] = count, seconds + MAX_QUIET_S

    def fails_first(self, decision: Decision) -> bool:
        """Tell whether a decision stands in the place of one that the policy has failed to make, for the first time."""
        return decision.phase == "failed" and self.failures == 1

    def switches_accelerator(self, decision: Decision, worker_table: WorkerTable) -> bool:
        """Tell whether images are to be decoded somewhere else than workers that are started now would have it."""
        return self.offers_accelerator and decision.accelerator != worker_table.accelerator

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
        asked = _that_may_come(wanted, running, awaited)
        o = self.job_sampler.look(trainers, worker_table, asked)
        if o is None:
            return None
        self._pause_missing(asked, wanted, seconds)
        local = min(self.job_sampler.room(trainers, worker_table, cpus_per_worker), self._most("local", seconds))
        remote = min(self.policy.limits.max_remote, self._most("remote", seconds))
        pace = math.inf if longest_s is None else self.job_sampler.trainers * o.grain / longest_s
        decoding = worker_table.uses_accelerator() if self.offers_accelerator else None
        o = replace(o, room=Deployment(int(local), int(remote)), required_rate=pace, accelerator=decoding)
        decision = self._within_budget(self._safely(lambda: self.policy.look(o, seconds)), seconds)
        changed = self.switches_accelerator(decision, worker_table) or decision.target != wanted
        if decision.target == asked != wanted:
            decision = replace(decision, reason=f"no more than {asked} of {wanted} came in time: {decision.reason}")
        # A change ends the window, which belongs to the deployment before it.
        window = self.meter.cut() if changed else self.meter.close()
        self.target = decision.target
        # A policy that fails at each look would fill the timeline. Only its first failure is noted by itself.
        if window is None and not changed and not self.fails_first(decision):
            return None
        return self._note(PlacementStep(seconds, window or Window(0.0, 0.0, 0), running, decision))

    def _pause_missing(self, asked: Deployment, wanted: Deployment, seconds: float) -> None:
        """Ask for no workers that have not come within their patience: else each look would ask again."""
        if asked.local < wanted.local:
            self.pause_requests("local", asked.local, seconds)
        if asked.remote < wanted.remote:
            self.pause_requests("remote", asked.remote, seconds)

    def _within_budget(self, decision: Decision, seconds: float) -> Decision:
        """Let remote workers go that the budget does not pay for: they are on dearer nodes than was forecast."""
        target, affordable = decision.target, self.policy.affordable_remote()
        if target.remote <= affordable:
            return decision
        # The nodes that were forecast may have room again later.
        self.pause_requests("remote", affordable, seconds)
        why = f"the budget pays for {affordable} remote workers on the nodes that have room"
        fewer = Deployment(target.local, affordable)
        return replace(decision, target=fewer, phase="budget", reason=f"{why}, in place of {target.remote}.")

    def _most(self, placement: Placement, seconds: float) -> float:
        count, until = self.given_up.get(placement, (0, -math.inf))
        return count if seconds < until else math.inf

    def decide(self, running: Deployment, seconds: float, awaited: int = 0) -> PlacementStep | None:
        """Return a decision of a paper's mode if a window has ended.

        While `awaited` workers may still come, the policy is not asked: nodes take minutes, windows seconds.
        """
        window = self.meter.close()
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
    no_node = options.max_remote is None and not worker_capacity(room.remote_cpus, cpus_per_worker)
    try:
        policy = _policy(options, room, cpus_per_worker, visitation)
    except PlanError as error:
        raise PlanError(f"{error}{NO_NODE if no_node else ''}") from None
    batches = options.window_batches or policy.window_batches
    # Decision 9: mode "auto" decides without windows, which are for its reports alone.
    seconds, discarded = (options.window_s, 0) if options.mode == "auto" else (math.inf, DISCARDED)
    meter = WindowMeter(trainers, batches, seconds, discarded)
    return PolicyRunner(policy, meter, options.patience_s, policy.start, JobSampler(trainers, batch))


def _policy(options: AutoWorkers, room: Room, cpus_per_worker: float, visitation: Visitation) -> AutoPlacement:
    most_local, most_remote = (worker_capacity(cpus, cpus_per_worker) for cpus in (room.host_cpus, room.remote_cpus))
    return AutoPlacement(
        options.mode,
        GCP_TPU_V2 if options.prices is None else options.prices,
        len(room.host_cpus),
        options.threshold,
        # A host with too few CPUs for a worker runs one all the same: see `StartWorker.reserve`.
        max_local=max(1, most_local) if options.max_local is None else options.max_local,
        max_remote=most_remote if options.max_remote is None else options.max_remote,
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


def worker_capacity(nodes: Iterable[float], cpus_per_worker: float) -> int:
    """Return how many workers fit on nodes of so many CPUs."""
    return sum(math.floor(cpus / cpus_per_worker) for cpus in nodes)


def _that_may_come(wanted: Deployment, running: Deployment, awaited: Deployment) -> Deployment:
    """Return the workers that run or may still come, of those that are wanted: the policy waits for no others."""
    local, remote = running.local + awaited.local, running.remote + awaited.remote
    coming = Deployment(min(wanted.local, local), min(wanted.remote, remote))
    return coming if coming.workers else wanted  # a job needs one, however long it takes
