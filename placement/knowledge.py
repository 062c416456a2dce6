"""What is known of a job: its measurements, the models that explain them, and what deployments are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pecan_ray.autoscaler.search import DeploymentLimits
from pecan_ray.placement.candidates import LEAST_STEP, LEAST_SUPPLY, Candidates, ladder
from pecan_ray.placement.evidence import Evidence, Reading, pooled
from pecan_ray.placement.model import WAITING, Model, Prior, explanations
from pecan_ray.placement.running_ahead import may_be_one_step, shows_its_step
from pecan_ray.placement.setting import Setting
from pecan_ray.plan.windows import Deployment, Window

MISTAKEN = 3
"""So many deployments after a change may show that there was none."""


@dataclass(frozen=True)
class Choice:
    """What the model advises."""

    deployment: Deployment
    why: str
    done: bool = False


@dataclass(frozen=True)
class Outlook:
    """What the model expects of a deployment, in seconds."""

    own: float
    """The trainer's own time of a batch (the whole one, where waiting is not measured);"""
    own_sd: float
    whole: float
    """and the whole one."""
    whole_sd: float


@dataclass(frozen=True)
class Past:
    """What was known before a job seemed to have changed."""

    evidence: Evidence
    prior: Prior | None
    model: Model
    at: Deployment
    """Where it seemed to change."""
    workers: bool
    """It is the workers that seemed to have changed, and not the trainer."""
    changed: bool
    """It seemed so indeed: this was no audit."""


class Knowledge:
    """The evidence of one job, and what follows from it."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.settings = setting, setting.auto
        self.prior: Prior | None = None
        self._evidence = Evidence()
        self._past: Past | None = None
        self._taken_back: Deployment | None = None
        """Where a change was seen that was none: if it is seen there again, it is one."""
        self._doubts_left = 0
        """How many deployments may still show that the job has not changed."""
        self._explained: list[Model] | None = None
        self.shows_its_step = False
        """The trainer does not run ahead of its accelerators: that never changes."""

    # --- what was measured ---------------------------------------------------------------------------------

    def note(self, at: Deployment, window: Window) -> None:
        """Add a window."""
        self._evidence.add(at, window)
        self._explained = None
        self.shows_its_step = self.shows_its_step or shows_its_step(self._evidence.all_windows())

    def renew(self, at: Deployment, windows: Sequence[Window]) -> None:
        """Let newer windows stand for a deployment, in place of older ones."""
        self._evidence.renew(at, windows)
        self._explained = None

    def retract(self, at: Deployment, windows: Sequence[Window]) -> None:
        """Take back windows that were noted last: they are no evidence of the job that was known until then."""
        older = self.windows(at)[: -len(windows)]
        if older:
            self._evidence.renew(at, older)
        else:
            self._evidence.drop(at)
        self._explained = None

    def settle(self, at: Deployment, windows: Sequence[Window]) -> None:
        """Note what a deployment does in the long run: no change that was taken back there has come to stay."""
        self.renew(at, windows)
        self._taken_back = None

    def start_over(self, at: Deployment, recent: Sequence[Window], spread: float, *, changed: bool = True) -> None:
        """Keep what was learned as a prior with that relative deviation, and forget all but the newest windows.

        `changed`: the job seems to have, and was not merely measured long ago.
        """
        model, prior = self.explanations()[0], self.prior
        before = self.reading(at) if at in self else None
        then = self.expected(at, model).own if before is None else own_of(before)
        self.prior = model.learned(at, spread)
        evidence = self._evidence.forget()
        self.renew(at, recent)
        now = self.reading(at)
        one_step = before is not None and self.may_be_one_step(before, now)
        workers = one_step or apart(own_of(now), then) < self.settings.surprise
        self._past = Past(evidence, prior, model, at, workers, changed) if at != self._taken_back else None
        self._taken_back, self._doubts_left = None, MISTAKEN

    def recall(self, at: Deployment, foreseen: Outlook | None) -> bool:
        """Take back that the job has changed, if what was measured now is rather what was foreseen before; say so.

        What does not wait for workers tells nothing about them.
        """
        past, now = self._past, self.reading(at)
        if past is None or foreseen is None or (past.workers and now.wait_share <= self.setting.threshold):
            return False
        then = self.foreseen(at, past.model)
        if then is None:
            return False
        if past.workers:
            misses = apart(now.batch_time, then.whole), apart(now.batch_time, foreseen.whole)
            vague = then.whole_sd / then.whole
        else:
            misses = apart(own_of(now), then.own), apart(own_of(now), foreseen.own)
            vague = then.own_sd / then.own
        self._doubts_left -= 1
        recalled = misses[0] < min(max(self.settings.surprise, 2 * vague), misses[1] / 2)
        if recalled:
            windows, since = self.windows(at), self._evidence
            self._evidence, self.prior = past.evidence, past.prior
            self._taken_back = past.at if past.changed else None
            self._evidence.complete(since)
            self.renew(at, windows)
        if recalled or not self._doubts_left:
            self._past = None
        return recalled

    def may_be_one_step(self, one: Reading, other: Reading) -> bool:
        """Say whether the same trainer explains two steps, since a wait hides those of one that runs ahead."""
        return not self.shows_its_step and may_be_one_step(one, other, 2 * (one.error + other.error))

    def told_by_others(self, at: Deployment) -> Outlook | None:
        """Predict a deployment that was measured from what was measured of all others; None where there is nothing."""
        others = [reading for reading in self.readings() if reading.deployment != at]
        if at not in self or not others:
            return None
        return self.foreseen(at, explanations(others, self.prior)[0])

    def rehabilitate(self, at: Deployment, seen: Sequence[Window], told: Outlook | None) -> None:
        """Drop older windows of a deployment that are refuted: by new ones, and by all other deployments."""
        older = [window for window in self.windows(at) if window not in seen]
        if told is None or not older:
            return
        now, then = pooled(at, seen).batch_time, pooled(at, older).batch_time
        if apart(now, told.whole) < min(apart(then, told.whole), apart(now, then)) / 2:
            self.renew(at, seen)

    def __contains__(self, at: object) -> bool:
        return at in self._evidence

    def windows(self, at: Deployment) -> list[Window]:
        """Return the windows of a deployment."""
        return self._evidence.windows(at)

    def reading(self, at: Deployment) -> Reading:
        """Pool the windows of one deployment."""
        return self._evidence.reading(at)

    def readings(self) -> list[Reading]:
        """Pool the windows of each deployment, in order of first measurement."""
        return self._evidence.readings()

    # --- what follows from it ------------------------------------------------------------------------------

    def explanations(self) -> list[Model]:
        """Return the models that explain the measurements, the likeliest first."""
        if self._explained is None:
            self._explained = explanations(self.readings(), self.prior)
        return self._explained

    def foreseen(self, at: Deployment, model: Model | None = None) -> Outlook | None:
        """Predict a deployment; None where nothing was measured."""
        return self.expected(at, model or self.explanations()[0]) if self.readings() else None

    def expected(self, at: Deployment, model: Model) -> Outlook:
        """Predict a deployment from a model of what was measured."""
        place = np.array([float(at.local)]), np.array([float(at.remote)])
        step, step_sd, supply, supply_sd = (float(value[0]) for value in model.predict(*place))
        step = max(step, LEAST_STEP)
        supply, supply_sd = min((max(supply, LEAST_SUPPLY), supply_sd), (model.source, 0.0))
        whole, whole_sd = max((step, step_sd), (1 / supply, supply_sd / supply**2))
        own, own_sd = step, step_sd
        if self.readings()[-1].wait is None and supply * step < 1:
            own, own_sd = 1 / supply, supply_sd / supply**2
        return Outlook(own * model.unit, own_sd * model.unit, whole * model.unit, whole_sd * model.unit)

    def cost(self, reading: Reading) -> float:
        """Return what a measured deployment is ranked by."""
        return self.score(reading.deployment, reading.batch_time, own_of(reading))

    def score(self, at: Deployment, batch_s: float, own_s: float) -> float:
        """Return what a deployment with such times is ranked by."""
        return float(self.setting.score(batch_s, own_s, self.setting.per_hour(at)))

    def distance(self, reading: Reading) -> float:
        """Return by which share the cost of a reading differs from the nearest other one."""
        cost = self.cost(reading)
        others = [self.cost(other) for other in self.readings() if other.deployment != reading.deployment]
        return min((abs(cost / other - 1) for other in others), default=0.0)

    def can_be_no_less(self, reading: Reading) -> bool:
        """Say whether a job began with a single worker beside which its trainer does not wait: nothing is cheaper.

        However little of it was measured; whether that is so in the long run, the windows after it say.
        """
        first = self.prior is None and len(self.readings()) == 1
        enough = reading.wait is not None and reading.wait_share <= WAITING
        return first and enough and reading.deployment.workers == 1

    def cheapest(self, limits: DeploymentLimits) -> Reading:
        """Return the best of what was measured and is allowed; of nearly equal ones, that with the fewest workers."""
        readings = self.readings()
        allowed = [r for r in readings if limits.clamp(r.deployment.local, r.deployment.remote) == r.deployment]
        cost = {r: self.cost(r) for r in allowed}
        least = min(cost.values())
        return min(
            (r for r in allowed if cost[r] <= least * (1 + self.settings.tie)),
            key=lambda r: (r.deployment.workers, r.deployment.remote, cost[r]),
        )

    def candidates(self, at: Deployment, limits: DeploymentLimits) -> Candidates:
        """Return the deployments that may be asked for."""
        readings = self.readings()
        most = max(
            self.settings.least_jump,
            self.settings.jump * at.workers,
            *(reading.deployment.workers for reading in readings),
        )
        remotes = ladder(limits.min_remote, limits.max_remote, at.remote)
        pairs = [
            (local, remote)
            for local in ladder(limits.min_local, limits.max_local, at.local)
            for remote in remotes
            if 0 < local + remote <= most
        ]
        price = {remote: self.setting.per_hour(Deployment(0, remote)) for remote in remotes}
        local, remote = np.array(pairs, dtype=float).T
        fresh = np.ones(len(pairs), dtype=bool)
        for reading in readings:
            place = reading.deployment
            fresh &= (local != place.local) | (remote != place.remote)
            if reading.windows >= self.settings.certain and reading.wait is not None and reading.wait_share <= WAITING:
                # More workers do not serve a trainer better that does not wait.
                fresh &= (local < place.local) | (remote < place.remote)
        return Candidates(local, remote, np.array([price[count] for _, count in pairs]), fresh)


def own_of(reading: Reading) -> float:
    """Return the trainer's own time, or the whole one where waiting was not measured."""
    return reading.batch_time if reading.own_time is None else reading.own_time


def apart(one: float, other: float) -> float:
    """Return by which share, about, two times differ."""
    return abs(math.log(one / other))
