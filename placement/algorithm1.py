"""Pecan's AutoPlacement as published (Pecan §5.1, Algorithm 1), one function a line.

bpt is the batch time of a window, bpc = bpt * (c_a n_a + c_w n_w) what a batch costs.  All comparisons are with
bpt_conv, the batch time that remote workers alone have reached.

Two readings of the text.  RemoveRemoteUntilWorse compares the bpc without a worker with what a batch would cost with
it at bpt_conv.  Runtime metrics after convergence: every 10 windows their mean is compared with the reference; if
it moved by T, the search starts again at line 2 from what is running (ResetLocal would stop the trainer), by
Cachew's rule.
"""

from __future__ import annotations

from pecan_ray.autoscaler.policy import Level, Scale, ScalingRule, add_workers, longer_queue
from pecan_ray.autoscaler.search import DeploymentLimits, Probe, Search, Steps, mean_window
from pecan_ray.placement.setting import Setting
from pecan_ray.plan.windows import Deployment, Window


def pecan(setting: Setting, start: Deployment, limits: DeploymentLimits) -> Search:
    """Return Algorithm 1 as a search."""
    return Algorithm1(setting, limits).run(start)


class Algorithm1:
    """The state of Algorithm 1: where it is and what it compares with."""

    def __init__(self, setting: Setting, limits: DeploymentLimits) -> None:
        self._setting, self._limits = setting, limits
        self._at = Deployment(0, 1)
        self._bpt_conv = 0.0
        self._why = ""

    def run(self, start: Deployment) -> Search:
        """Algorithm 1, then monitoring."""
        self._at = self._limits.clamp(0, max(1, start.remote))  # line 1: ResetLocal
        first = yield Probe(self._at, "scale_remote", f"measure {self._at} first.")
        while True:
            yield from self._cachew_autoscale(first)  # line 2
            while True:  # line 5: repeat
                started = self._at
                worse = yield from self._add_local_until_time_increases()  # line 8
                if worse:
                    self._remove_local()  # line 10
                costlier = yield from self._remove_remote_until_cost_increases()  # line 12
                if costlier:
                    self._add_remote()  # line 14
                if self._at == started:  # line 15
                    break
            first = yield from self._monitor()

    def _cachew_autoscale(self, first: Window) -> Steps[None]:
        local = self._at.local
        scale = Scale("remote", local, self._limits.least_remote(local), self._limits.max_remote)
        rule = ScalingRule().with_threshold(self._setting.threshold)
        level: Level = yield from add_workers(scale, self._at.remote, first, rule)
        # All comparisons are with this batch time and not with the step before, so small losses do not add up.
        self._at, self._bpt_conv = scale.place(level.count), level.reference.batch_time
        self._why = f"{level.why}, so {level.count} remote workers reach {self._bpt_conv:.4g} s"

    def _add_local_until_time_increases(self) -> Steps[bool]:
        while self._at.local < self._limits.max_local:
            self._at = Deployment(self._at.local + 1, self._at.remote)
            now = yield Probe(self._at, "add_local", f"{self._why}: add local worker {self._at.local}.")
            rise = now.batch_time / self._bpt_conv - 1
            self._why = f"{self._at} take {now.batch_time:.4g} s a batch, {rise:+.1%} of {self._bpt_conv:.4g} s"
            if rise >= self._setting.threshold:
                return True
        return False

    def _remove_local(self) -> None:
        self._why += f", so local worker {self._at.local} goes"
        self._at = Deployment(self._at.local - 1, self._at.remote)

    def _remove_remote_until_cost_increases(self) -> Steps[bool]:
        while self._at.remote > self._limits.least_remote(self._at.local):
            with_it = self._bpt_conv * self._setting.per_hour(self._at)
            self._at = Deployment(self._at.local, self._at.remote - 1)
            left = f"leave {self._at.remote} of {self._at.remote + 1} remote workers"
            now = yield Probe(self._at, "remove_remote", f"{self._why}: {left}.")
            without = now.batch_time * self._setting.per_hour(self._at)
            self._why = f"{self._at} take {now.batch_time:.4g} s, and a batch costs {without / with_it - 1:+.1%}"
            # Not the batch time alone: a remote worker may go although batches become slower, if a batch costs less.
            if without > with_it:
                return True
        return False

    def _add_remote(self) -> None:
        self._at = Deployment(self._at.local, self._at.remote + 1)
        self._why += f", so remote worker {self._at.remote} comes back"

    def _monitor(self) -> Steps[Window]:
        """Watch until the mean of ten windows has moved; return it.

        The first ten set the reference: the batch time that was reached here, not the one that was aimed at.
        """
        stay = Probe(self._at, "converged", f"stay with {self._at}: {self._why}.", settled=True)
        reference: Window | None = None
        while True:
            seen: list[Window] = []
            while len(seen) < ScalingRule().look_every:
                seen.append((yield stay))
            now = mean_window(seen)
            # Not bpt_conv: what runs after the trade of workers has another batch time, and would look
            # changed at once.
            if reference is None:
                reference = now
                continue
            moved = now.batch_time / reference.batch_time - 1
            queue = longer_queue(now, reference, ScalingRule().queue_increase)
            if abs(moved) > self._setting.threshold or queue:
                self._why = f"{now.batch_time:.4g} s a batch, {moved:+.1%} of {reference.batch_time:.4g} s, queue "
                self._why += f"{reference.queue_size:.3g} to {now.queue_size:.3g}"
                return now
