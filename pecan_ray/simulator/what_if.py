"""What a finished run would have taken with other workers: from its own profile, no simulation.

    batch time(d)    = max( step, trainers / supply(d) )
    cost of an epoch = batches * batch time * (c_a n_a + c_w r)

Of supply(d) it is only certain that it grows with the workers, and that twice the workers bring at most twice as much.
So, with t the largest share of a measured deployment m that d holds, and T the smallest multiple of m that holds d,

    share(t) * supply(m)  <=  supply(d)  <=  max(1, T) * supply(m)        share(t) = t for t <= 1,
                                                                          1 + WORTH * (t - 1) beyond

the upper bound only where the trainer waited at m: else its workers could have brought more.  The tightest of all
bounds is the interval, and the forecast is what a straight line through what was measured says, within it; halfway
between the bounds where the trainer never waited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pecan_ray.errors import PlanError
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.run_profile import MeasuredSpeed, RunProfile

CHANGES = (Deployment(0, 1), Deployment(0, 2), Deployment(0, 4), Deployment(1, 0), Deployment(2, 0))
WORTH = 0.4
"""Beyond what was measured a worker brings at least this share of what the others bring."""
SURE = 2.0
"""Standard errors of the interval: 95 % of what chance brings."""
DISTURBED = 0.01
"""One more local worker may make the trainer's step longer by this share than it was measured."""
PEERS = 0.5
"""Of several trainers that wait for each other, at least so much of what seems to be their own step is."""
WIDE = 1.25
"""An interval whose ends differ by more is told as uncertain."""


@dataclass(frozen=True)
class WhatIfEstimate:
    """A deployment and what it is expected to take."""

    deployment: Deployment
    batch_s: float
    low_s: float
    """Least time of a batch that the run leaves open."""
    high_s: float
    """Greatest time of a batch that the run leaves open."""
    now_s: float
    """Time of a batch in the run as it was."""
    wait_share: float
    epoch_cost: float | None
    """$; None without prices."""
    more: float | None
    """$ per epoch more than the run as it was; None without prices."""
    why: str = ""
    """What makes it uncertain."""

    @property
    def speed(self) -> float:
        """Rate of batches over that of the run as it was, less 1."""
        return self.now_s / self.batch_s - 1

    @property
    def is_reliable(self) -> bool:
        """Return whether the interval is narrow."""
        return self.high_s <= WIDE * self.low_s

    def __str__(self) -> str:
        sentence = f"{self.deployment}: {self.speed:+.0%}"
        slow, fast = self.now_s / self.high_s - 1, self.now_s / self.low_s - 1
        if f"{slow:+.0%}" != f"{fast:+.0%}":
            sentence += f" ({slow:+.0%} to {fast:+.0%})"
        sentence += f", {1 / self.batch_s:.3g} batches/s"
        if self.epoch_cost is not None and self.more is not None:
            sentence += f", {dollars(self.epoch_cost)} per epoch ({signed_dollars(self.more)})"
        return sentence if self.is_reliable else f"{sentence}; uncertain: {self.why}"


def signed_dollars(amount: float) -> str:
    """Write a difference in dollars."""
    return f"{'-' if amount < 0 else '+'}{dollars(abs(amount))}"


def dollars(amount: float) -> str:
    """Write an amount to the cent, a small one to three digits."""
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.3g}"


def measured_at(profile: RunProfile, deployment: Deployment) -> MeasuredSpeed | None:
    """Return what the run has measured of a deployment."""
    return next((pace for pace in profile.rate_values if pace.deployment == deployment), None)


def batch_time(profile: RunProfile, deployment: Deployment) -> float:
    """Return the time of a batch as it was measured, else predict it; infinite without a worker of a known rate."""
    known = measured_at(profile, deployment)
    if known is not None:
        return known.batch_s
    supply = deployment.local * profile.local_rate + deployment.remote * profile.remote_rate
    return max(profile.step_s, profile.trainers / supply) if supply > 0 else math.inf


def interval(profile: RunProfile, deployment: Deployment) -> tuple[float, float]:
    """Return the least and the greatest time of a batch that the run leaves open."""
    known = measured_at(profile, deployment)
    if known is not None:
        return known.batch_s * (1 - SURE * known.error), known.batch_s * (1 + SURE * known.error)
    least, most = 0.0, math.inf
    for pace in profile.rate_values:
        supply, held, needed = profile.trainers / pace.batch_s, *multiple_bounds(pace.deployment, deployment)
        share = held if held <= 1 else 1 + WORTH * (held - 1)
        least = max(least, share * supply * (1 - SURE * pace.error))
        if pace.is_waiting:
            most = min(most, max(1.0, needed) * supply * (1 + SURE * pace.error))
    steps = [pace.own_s for pace in profile.rate_values if not pace.is_waiting] or own_steps(profile)
    error = SURE * max(pace.error for pace in profile.rate_values)
    extra = max(0, deployment.local - max(pace.deployment.local for pace in profile.rate_values))
    low_step, high_step = min(steps) * (1 - error), max(steps) * (1 + error) * (1 + DISTURBED * extra)
    low = max(low_step, profile.trainers / most) if most > 0 else low_step
    high = max(high_step, profile.trainers / least) if least > 0 else math.inf
    return low, max(low, high)


def own_steps(profile: RunProfile) -> list[float]:
    """Return bounds on the trainer's own step where it always waited: of several, each waits for the others as well."""
    return [profile.step_s] if profile.trainers == 1 else [PEERS * profile.step_s, profile.step_s]


def multiple_bounds(measured: Deployment, asked: Deployment) -> tuple[float, float]:
    """Return the largest multiple of a deployment that another one holds, and the smallest that holds that one."""
    pairs = ((asked.local, measured.local), (asked.remote, measured.remote))
    held = min((mine / theirs for mine, theirs in pairs if theirs), default=0.0)
    needed = max((mine / theirs if theirs else math.inf for mine, theirs in pairs if mine), default=0.0)
    return held, needed


def why_uncertain(profile: RunProfile, deployment: Deployment) -> str:
    """Say what keeps a forecast from being sure."""
    if not any(pace.is_waiting for pace in profile.rate_values):
        return "the trainer never waited for these workers, so that fewer may do as well"
    here = [multiple_bounds(pace.deployment, deployment) for pace in profile.rate_values]
    if all(held < 1 for held, _ in here):
        return "so few workers were never measured, and each may bring more when it has less company"
    if all(needed > 1 for _, needed in here):
        if profile.trainers > 1 and all(pace.is_waiting for pace in profile.rate_values):
            return "the trainers always waited, so that their own step is not known"
        return "so many workers were never measured, and they may be in each other's way"
    return "it lies between what was measured"


def epoch_cost(profile: RunProfile, deployment: Deployment, batch_s: float) -> float | None:
    """Return $ of an epoch; None without prices."""
    if profile.prices is None:
        return None
    return profile.epoch * batch_s / 3600 * profile.prices.per_hour(profile.hosts, deployment.remote)


def what_if(profile: RunProfile, deployment: Deployment) -> WhatIfEstimate:
    """Say what another deployment would have taken."""
    if not deployment.workers:
        raise PlanError("a job needs at least one worker: ask for one.")
    for kind, rate in (("local", profile.local_rate), ("remote", profile.remote_rate)):
        if getattr(deployment, kind) and rate <= 0:
            raise PlanError(
                f"job {profile.job!r} had no {kind} worker, so that the rate of one is not known: let a run use some."
            )
    low, high = interval(profile, deployment)
    now, then = batch_time(profile, profile.deployment), min(max(batch_time(profile, deployment), low), high)
    if not any(pace.is_waiting for pace in profile.rate_values) and then > profile.step_s and high < math.inf:
        # The line is the worst that may be: how much workers can do that nobody waited for is not known.
        then = math.sqrt(low * then)
    before, after = epoch_cost(profile, profile.deployment, now), epoch_cost(profile, deployment, then)
    return WhatIfEstimate(
        deployment,
        then,
        low,
        high,
        now,
        wait_share=max(0.0, 1 - profile.step_s / then),
        epoch_cost=after,
        more=None if after is None or before is None else after - before,
        why=why_uncertain(profile, deployment),
    )


def suggestions(profile: RunProfile) -> list[WhatIfEstimate]:
    """Forecast a few steps up and down from the run as it was, those that its profile can tell."""
    here, found = profile.deployment, []
    for change in CHANGES:
        for sign in (1, -1):
            local, remote = here.local + sign * change.local, here.remote + sign * change.remote
            known = (profile.local_rate > 0 or not local) and (profile.remote_rate > 0 or not remote)
            if local >= 0 and remote >= 0 and local + remote and known:
                found.append(what_if(profile, Deployment(local, remote)))
    return sorted(found, key=lambda forecast: (forecast.deployment.workers, forecast.deployment))
