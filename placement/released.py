"""Pecan's AutoPlacement as its released code does it: the search behind the traces of its authors.

It differs from Algorithm 1 in that every comparison is with the configuration before, so that small losses add up; a
local or remote worker is "worse" from 10 % on, not from T; no price enters; local workers are never removed (after one
that was worse, each removed remote worker is followed by another local one); and nothing is watched afterwards.

Mode "pecan-cost" is the same code with its option optimize_cost, which a later version has: a remote worker stays away
unless the time that it saved was worth more than its price.
"""

from __future__ import annotations

from pecan_ray.autoscaler.policy import Scale, ScalingRule, add_workers, measure_with_retry
from pecan_ray.autoscaler.search import DeploymentLimits, Probe, Search, Steps, hold
from pecan_ray.placement.setting import Setting
from pecan_ray.plan.windows import Deployment, Window

# Both are those of the released code.
WORSE = 0.10
"""Share by which a batch time must rise for a worker to be worse."""
IMPLAUSIBLE = 1.3
"""Share by which a batch time must change for its window to be measured again."""


def released(setting: Setting, start: Deployment, limits: DeploymentLimits, by_cost: bool = False) -> Search:
    """Return the released AutoPlacement as a search; `by_cost`: with optimize_cost."""
    return Released(setting, limits, by_cost).run(start)


class Released:
    """The state machine ONLY_REMOTE -> INCREASING_LOCAL <-> DECREASING_REMOTE -> STABLE."""

    def __init__(self, setting: Setting, limits: DeploymentLimits, by_cost: bool) -> None:
        self._setting, self._limits, self._by_cost = setting, limits, by_cost
        self._rule = ScalingRule(threshold=setting.threshold, max_time_change=IMPLAUSIBLE)
        self._at = Deployment(0, 1)
        self._before: Window
        self._why = ""

    def run(self, start: Deployment) -> Search:
        """Scale remote workers, then trade them for local ones until a round changes nothing."""
        yield from self._only_remote(start)
        while True:
            started = self._at
            unwanted = yield from self._increasing_local()
            if self._at.local == started.local or self._at.remote <= self._limits.least_remote(self._at.local):
                break
            yield from self._decreasing_remote(unwanted)
            if self._at.remote == started.remote or self._at.local >= self._limits.max_local:
                break
        yield from hold(self._at, f"stay with {self._at}: {self._why}.")

    def _only_remote(self, start: Deployment) -> Steps[None]:
        self._at = self._limits.clamp(0, max(1, start.remote))
        local = self._at.local
        first = yield Probe(self._at, "scale_remote", f"measure {self._at} first.")
        scale = Scale("remote", local, 1, self._limits.max_remote)
        level = yield from add_workers(scale, self._at.remote, first, self._rule)
        self._at, self._before, self._why = scale.place(level.count), level.last, level.why

    def _increasing_local(self) -> Steps[bool]:
        """Add local workers until one is worse than the configuration before; it stays all the same."""
        while self._at.local < self._limits.max_local:
            self._at = Deployment(self._at.local + 1, self._at.remote)
            move = Probe(self._at, "add_local", f"{self._why}: add local worker {self._at.local}.")
            if (yield from self._rise(move)) > WORSE:
                return True
        return False

    def _decreasing_remote(self, unwanted: bool) -> Steps[None]:
        """Remove remote workers until one is missed; after an unwanted local worker, only one."""
        while self._at.remote > self._limits.least_remote(self._at.local):
            less = Deployment(self._at.local, self._at.remote - 1)
            rise = yield from self._rise(Probe(less, "remove_remote", f"{self._why}: leave {less.remote} remote."))
            if rise > self._allowed_increase(less):
                self._why += f", so remote worker {self._at.remote} comes back"
                return
            self._at = less
            if unwanted and self._at.local < self._limits.max_local:
                return

    def _allowed_increase(self, less: Deployment) -> float:
        """Return by which share batches may become longer without a remote worker."""
        if not self._by_cost:
            return WORSE
        before = self._setting.per_hour(self._at)
        return (before - self._setting.per_hour(less)) / before

    def _rise(self, move: Probe) -> Steps[float]:
        now = yield from measure_with_retry(move, self._before, self._rule)
        rise = now.batch_time / self._before.batch_time - 1
        self._why = f"{move.target} take {now.batch_time:.4g} s a batch, {rise:+.1%} of the step before"
        # Compared with the step before, as the released code does it.
        self._before = now
        return rise
