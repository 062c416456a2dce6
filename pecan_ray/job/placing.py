"""The policy at work on a live job: windows in, decisions out, with what is told about them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pecan_ray.errors import PlanError
from pecan_ray.job.kept_share import is_other_work
from pecan_ray.job.room import Room
from pecan_ray.job.windows import StepTotals, WindowMeter
from pecan_ray.options import AutoWorkers, Visitation
from pecan_ray.placement import COST, NO_WAIT, AutoPlacement, expected_workers
from pecan_ray.placement.evidence import SHORTEST_STEP
from pecan_ray.plan.prices import GCP_TPU_V2
from pecan_ray.plan.windows import Decision, Deployment, Window

MOST_STEPS = 10_000
"""Newest windows and decisions of a job that are kept."""
LOCAL_PATIENCE_S = 30.0
"""How long a local worker may wait for CPUs of its node: no autoscaler can bring them."""
FIRST_STEPS = 3
"""Steps of each trainer that tell how long its own part of them takes, before the first window has ended."""
WORTH_IT = 2
"""So many times the present workers must be expected: a sample and a few steps tell no less."""
TRIES_BOTH_SIDES = ("auto", "pecan", "pecan-code")
"""Modes that may begin on the other side where the one they begin with has no room at all."""


@dataclass(frozen=True)
class PlacementStep:
    """A decision and what it was made from; the timeline of a job is a list of them."""

    seconds: float
    """Since the job began."""
    window: Window
    deployment: Deployment
    decision: Decision


@dataclass
class Placing:
    """Feeds AutoPlacement with the windows of a job."""

    policy: AutoPlacement
    meter: WindowMeter
    patience_s: float
    """How long a remote worker may wait for a node before the policy is told that it does not come."""
    target: Deployment
    """What was asked for last."""
    trainers: int = 1
    stopped: bool = False
    """The user has fixed the numbers of workers."""
    timeline: deque[PlacementStep] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    steps: int = 0
    """Windows so far, those included that the timeline has forgotten."""
    batch_s: float | None = None
    """Seconds of one worker for a batch, by AutoOrder's sample; None: not known, or used already."""
    failures: int = 0
    """How often the policy has failed: the decisions of phase "failed"."""
    kept: float | None = None
    """Share of the elements that came out of a cache when the search began, as far as was known first."""

    def patience(self, placement: str) -> float:
        """Return for how many seconds a worker may wait for a place before less is taken for an answer."""
        return self.patience_s if placement == "remote" else min(LOCAL_PATIENCE_S, self.patience_s)

    def report(self, rank: int, totals: StepTotals) -> None:
        """Take over a trainer's totals."""
        self.meter.add(rank, totals)

    @property
    def _hurries(self) -> bool:
        """Whether windows may be short: the modes of the papers have windows of their own."""
        return self.policy.mode == "auto" and not self.policy.converged

    def due(self) -> bool:
        """Tell whether a window has ended: else there is nothing to decide."""
        return not self.stopped and self.meter.due()

    def decide(
        self, running: Deployment, seconds: float, awaited: int = 0, kept: Callable[[], float | None] = lambda: None
    ) -> PlacementStep | None:
        """Return a decision if a window has ended; `kept`: gives the share of its elements that a cache had.

        While `awaited` workers may still come, the policy is not asked: nodes take minutes, windows seconds.
        """
        window = None if self.stopped else self.meter.close()
        if window is None:
            return None
        window = replace(window, kept=kept())
        spoilt_by = f"{awaited} of its workers are still awaited" if awaited else self.meter.spoilt_by
        if spoilt_by:
            window = replace(window, touched=True)
            why = f"keep {self.target}: the window is thrown away, {spoilt_by}."
            decision = Decision(self.target, "discarded", why)
        else:
            decision = self._ask(window, running)
        self.target = decision.target
        self.meter.hurried = self._hurries
        return self._noted(PlacementStep(seconds, window, running, decision))

    def warm_start(self, running: Deployment, seconds: float) -> PlacementStep | None:
        """Return a first decision before the first window has ended, where a sample has told how slow workers are.

        As many workers as the trainers' own steps leave waiting (Pecan §5.1); windows correct that as they come.
        """
        if self.batch_s is None or self.stopped or running != self.target:
            return None
        window = self.meter.so_far(FIRST_STEPS)
        if window is None or window.wait_time is None:
            return None
        own_s = max(window.batch_time - window.wait_time, SHORTEST_STEP * window.batch_time)
        workers = expected_workers(self.trainers / own_s, 1 / self.batch_s)
        if workers < WORTH_IT * running.workers:
            return None
        wanted = self.policy.expect(workers)
        why = (
            f"a batch takes a worker {self.batch_s:.3g} s by AutoOrder's sample, and the trainer {own_s:.3g} s: "
            f"begin with {wanted}."
        )
        self.batch_s, self.target = None, wanted
        return self._noted(PlacementStep(seconds, window, running, Decision(wanted, "warm_start", why)))

    def _noted(self, step: PlacementStep) -> PlacementStep:
        self.timeline.append(step)
        self.steps += 1
        return step

    def _ask(self, window: Window, running: Deployment) -> Decision:
        """Ask the policy; where it fails, what runs stays, and a new search begins: no training ends for a decision."""
        self.batch_s = None
        before, self.kept = self.kept, window.kept if self.kept is None else self.kept
        other_work = self.policy.mode == "auto" and is_other_work(before, window.kept)
        if other_work:
            self.kept = window.kept
            self.policy.start_anew()
        try:
            decision = self.policy.decide(window, running)
            if other_work:
                now = (
                    f"a cache gives {window.kept:.0%} of the elements, where it gave {before:.0%}: a new search begins"
                )
                decision = replace(decision, reason=f"{now}; {decision.reason}")
            return decision
        except Exception as error:  # whatever a policy does wrong
            self.failures += 1
            self.policy.start_anew()
            why = f"the policy failed on {window}: {type(error).__name__}: {error}"
            return Decision(self.target, "failed", f"keep {self.target}, and begin a new search: {why}.")


def begin(options: AutoWorkers, room: Room, cpus_per_worker: float, visitation: Visitation, trainers: int) -> Placing:
    """Return the placing of a new job; bounds that the user left open follow from the room that there is."""
    max_remote = fitting(room.remote_cpus, cpus_per_worker) if options.max_remote is None else options.max_remote
    check_room(options, max_remote)
    policy = AutoPlacement(
        options.mode,
        GCP_TPU_V2 if options.prices is None else options.prices,
        len(room.host_cpus),
        options.threshold,
        max_local=max(1, fitting(room.host_cpus, cpus_per_worker)) if options.max_local is None else options.max_local,
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
    meter = WindowMeter(trainers, options.window_batches or policy.window_batches, options.window_s)
    meter.hurried = options.mode == "auto"
    return Placing(policy, meter, options.patience_s, policy.start, trainers)


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


def fitting(nodes: Iterable[float], cpus_per_worker: float) -> int:
    """Return how many workers fit on nodes of so many CPUs."""
    return sum(math.floor(cpus / cpus_per_worker) for cpus in nodes)
