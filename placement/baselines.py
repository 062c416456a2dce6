"""Modes that place workers on one side only, or not by search: Cachew, collocated, FastFlow."""

from __future__ import annotations

from pecan_ray.autoscaler.policy import CACHEW, Scale, ScalingRule, cachew
from pecan_ray.autoscaler.search import DeploymentLimits, Probe, Search, hold
from pecan_ray.placement.setting import Setting
from pecan_ray.plan.windows import Deployment


def remote_only(
    setting: Setting, start: Deployment, limits: DeploymentLimits, rule: ScalingRule | None = None
) -> Search:
    """Remote workers only, by Cachew's autoscaler; `rule`: None is the paper's."""
    rule = rule or CACHEW.with_threshold(setting.threshold)
    # At least one, because Cachew runs remote workers alone.
    least = max(1, limits.min_remote)
    scale = Scale("remote", limits.min_local, least, max(least, limits.max_remote))
    return cachew(scale, min(max(start.remote, scale.least), scale.most), rule)


def collocated(setting: Setting, start: Deployment, limits: DeploymentLimits) -> Search:
    """Local workers only, as many as shorten the batch time."""
    scale = Scale("local", limits.min_remote, max(1, limits.min_local), max(1, limits.max_local))
    return cachew(scale, min(max(start.local, scale.least), scale.most), CACHEW.with_threshold(setting.threshold))


def fastflow(_setting: Setting, _start: Deployment, limits: DeploymentLimits) -> Search:
    """A fixed number of remote workers, used if that is faster than the local ones alone (Pecan §4, §6.1).

    This is FastFlow as the Pecan paper describes and provisions it: the least time for workers that the user has
    fixed (two local, two remote), no scaling, no price.  FastFlow's own choice of a cut within the pipeline is not
    part of a placement policy.
    """
    alone, both = limits.clamp(2, 0), limits.clamp(2, 2)
    first = yield Probe(alone, "scale_local", f"measure {alone} first.")
    second = yield Probe(both, "scale_remote", f"{alone} take {first.batch_time:.4g} s a batch: try {both}.")
    at = both if second.batch_time < first.batch_time else alone
    why = f"{alone} take {first.batch_time:.4g} s a batch and {both} {second.batch_time:.4g} s: stay with {at}."
    yield from hold(at, why)
