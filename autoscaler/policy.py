"""Cachew's autoscaling policy (Cachew §4.3): add workers while the batch time falls by more than T.

With t(n) the mean batch time of n workers: go from n to n + 1 while 1 - t(n + 1) / t(n) > T, then fall back to n and
keep t(n) as the reference.  Every `look_every` windows look again: add when t is above the reference by T, remove
while the queue had grown by more than 40 % and t stays within T of the reference, undo the removal that does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pecan_ray.autoscaler.search import PATIENCE, DeploymentLimits, Probe, Search, SearchDriver, Steps, mean_window
from pecan_ray.errors import PlanError
from pecan_ray.plan.windows import Decision, Deployment, Window


@dataclass(frozen=True)
class ScalingRule:
    """Constants of the policy; the defaults are the paper's."""

    # Cachew §4.3: 3 % is above the noise of metrics over 100 batches; each ten of them it looks again; a
    # queue that is 40 % longer means a worker too many.
    threshold: float = 0.03
    """A worker stays if it shortens the batch time by more than this share."""
    rescale_threshold: float = 0.03
    """Look again: add when the batch time is above the reference by more than this share."""
    max_rise: float = 0.03
    """A removal is undone when the batch time rises by this share or more."""
    look_every: int = 10
    """Windows between two looks at a converged deployment."""
    queue_increase: float = 0.40
    """Look again: remove when the queue is longer than the reference by more than this share."""
    mean_values: bool = True
    """Look at the mean of the windows since the last look; False: at the last one alone."""
    fixed_reference: bool = True
    """A removal is compared with the reference; False: with the step before, so that small losses add up."""
    max_time_change: float | None = None
    """While scaling, windows whose time changed by more than this share are measured again; None: none are."""

    def __post_init__(self) -> None:
        for name in ("threshold", "rescale_threshold", "max_rise", "queue_increase"):
            value = getattr(self, name)
            if not 0 <= value < 10:
                raise PlanError(f"{name} must be a share, at least 0, but got {value!r}.")
        if self.threshold >= 1:
            raise PlanError(f"threshold must be a share below 1, but got {self.threshold}.")
        if self.look_every < 1:
            raise PlanError(f"look_every must be at least 1 window, but got {self.look_every}.")

    def with_threshold(self, threshold: float | None) -> ScalingRule:
        """Return the rule with another T, in all of its places; None: as it is."""
        return (
            self
            if threshold is None
            else replace(self, threshold=threshold, rescale_threshold=threshold, max_rise=threshold)
        )


CACHEW = ScalingRule()
CACHEW_CODE = ScalingRule(
    # Of the authors' released code, which differs from the paper in every value.
    threshold=0.07,
    rescale_threshold=0.50,
    look_every=20,
    queue_increase=0.50,
    mean_values=False,
    fixed_reference=False,
    max_time_change=1.2,
)
"""As released: 7 %, 20 windows, 50 %, one sample decides."""


@dataclass(frozen=True)
class Scale:
    """What is counted: workers of one kind, least <= n <= most of them."""

    kind: Literal["local", "remote"]
    others: int
    """Workers of the other kind, whose number stays."""
    least: int
    most: int

    def place(self, count: int) -> Deployment:
        """Return the deployment of so many workers."""
        return Deployment(count, self.others) if self.kind == "local" else Deployment(self.others, count)

    @property
    def phase_names(self) -> tuple[str, str]:
        """Name the phases in which workers are added and removed."""
        return f"scale_{self.kind}", f"remove_{self.kind}"


@dataclass(frozen=True)
class Level:
    """Where scaling has arrived."""

    count: int
    reference: Window
    """What was measured with so many workers."""
    why: str
    last: Window
    """What was measured last, there or one step beyond."""


def measure_with_retry(move: Probe, before: Window, rule: ScalingRule) -> Steps[Window]:
    """Deploy and measure, again for as long as the time is implausible beside the one before."""
    now = yield move
    while rule.max_time_change is not None and abs(1 - now.batch_time / before.batch_time) > rule.max_time_change:
        why = f"{now.batch_time:.4g} s a batch after {before.batch_time:.4g} s is implausible: measure again."
        now = yield replace(move, phase="discarded", reason=why)
    return now


def add_workers(scale: Scale, count: int, before: Window, rule: ScalingRule, why: str = "") -> Steps[Level]:
    """Add one worker at a time until one does not shorten the batch time by more than T; leave that one out."""
    why = why or f"{count} workers take {before.batch_time:.4g} s a batch: try one more."
    while count < scale.most:
        now = yield from measure_with_retry(Probe(scale.place(count + 1), scale.phase_names[0], why), before, rule)
        gain = 1 - now.batch_time / before.batch_time
        times = f"from {before.batch_time:.4g} to {now.batch_time:.4g} s a batch ({-gain:+.1%})"
        if not gain > rule.threshold:
            return Level(count, before, f"worker {count + 1} brought it {times}, not below -{rule.threshold:.0%}", now)
        count, before, why = count + 1, now, f"worker {count + 1} brought it {times}: try one more."
    return Level(count, before, f"{count} workers are the most allowed, at {before.batch_time:.4g} s a batch", before)


def shrink(scale: Scale, count: int, before: Window, rule: ScalingRule, why: str) -> Steps[Level]:
    """Remove one worker at a time while the batch time rises by less than T; put back the one that hurts."""
    # The reference is kept beside the step before: small losses of several removals would otherwise add up.
    reference = before
    while count > scale.least:
        now = yield from measure_with_retry(Probe(scale.place(count - 1), scale.phase_names[1], why), before, rule)
        base = reference if rule.fixed_reference else before
        rise = now.batch_time / base.batch_time - 1
        times = f"from {base.batch_time:.4g} to {now.batch_time:.4g} s a batch ({rise:+.1%})"
        if rise >= rule.max_rise:
            return Level(count, before, f"without worker {count} it went {times}: put it back", now)
        count, before, why = count - 1, now, f"without worker {count} it went {times}: try one less."
    return Level(count, before, f"{count} workers are the fewest allowed, at {before.batch_time:.4g} s a batch", before)


def watch(scale: Scale, level: Level, rule: ScalingRule) -> Steps[Window]:
    """Stay for `look_every` windows and return what they say."""
    why = f"stay with {level.count} workers: {level.why}."
    stay = Probe(scale.place(level.count), "converged", why, settled=True)
    seen: list[Window] = []
    while len(seen) < rule.look_every:
        seen.append((yield stay))
    return mean_window(seen) if rule.mean_values else seen[-1]


def longer_queue(now: Window, reference: Window, growth: float) -> bool:
    """Say whether the queue has grown by more than the share; from an empty one, to a batch at least."""
    return now.queue_size > (1 + growth) * reference.queue_size and (reference.queue_size > 0 or now.queue_size >= 1)


def rescale(scale: Scale, level: Level, now: Window, rule: ScalingRule) -> Steps[Level]:
    """Scale again if the batch time or the queue has left the reference."""
    count, reference = level.count, level.reference
    # Time before queue: a job that is too slow gets workers even if its queue is longer.
    if now.batch_time > (1 + rule.rescale_threshold) * reference.batch_time and count < scale.most:
        why = f"{now.batch_time:.4g} s a batch where {reference.batch_time:.4g} s were reached: add a worker."
        return (yield from add_workers(scale, count, now, rule, why))
    if longer_queue(now, reference, rule.queue_increase) and count > scale.least:
        why = f"the queue grew from {reference.queue_size:.3g} to {now.queue_size:.3g} batches: remove a worker."
        return (yield from shrink(scale, count, now, rule, why))
    return level


def cachew(scale: Scale, count: int, rule: ScalingRule) -> Search:
    """Scale up from `count` workers, then watch and scale again, for ever."""
    first = yield Probe(scale.place(count), scale.phase_names[0], f"measure {count} workers first.")
    level = yield from add_workers(scale, count, first, rule)
    while True:
        # Without end: a job's speed may change at any time, by a cache that fills or by neighbours.
        now = yield from watch(scale, level, rule)
        level = yield from rescale(scale, level, now, rule)


class Autoscaler:
    """Decides how many workers run, by the batch time that the trainers see.

    One worker is where the paper starts; a job that already runs more is scaled from there.
    `threshold` replaces T in every place of the rule.
    """

    def __init__(
        self,
        *,
        threshold: float | None = None,
        max_workers: int = 64,
        min_workers: int = 1,
        rule: ScalingRule = CACHEW,
        patience: int = PATIENCE,
    ) -> None:
        rule = rule.with_threshold(threshold)
        if min_workers < 1:
            raise PlanError(f"min_workers must be at least 1, but got {min_workers!r}.")
        self._driver = SearchDriver(
            lambda start, limits: cachew(_remote_scale(limits), start.remote, rule),
            DeploymentLimits(0, max_workers, 0, min_workers),
            patience=patience,
        )
        self.start = min_workers

    @property
    def converged(self) -> bool:
        """Return whether scaling is over; it goes on watching."""
        return self._driver.converged

    def decide(self, window: Window, workers: int) -> Decision:
        """Return how many workers shall run (`Decision.workers`); `workers` ran during the window."""
        return self._driver.decide(window, Deployment(0, workers))


def _remote_scale(limits: DeploymentLimits) -> Scale:
    least = max(1, limits.min_remote)
    return Scale("remote", 0, least, max(least, limits.max_remote))
