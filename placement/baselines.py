"""Modes that place workers on one side only, or not by search: Cachew, collocated, FastFlow."""

from __future__ import annotations

from functools import partial

from pecan_ray.autoscaler.policy import CACHEW, CACHEW_CODE, Scale, ScalingRule, cachew
from pecan_ray.autoscaler.search import Begin, DeploymentLimits, Probe, Search, hold
from pecan_ray.placement.setting import FIXED, Setting
from pecan_ray.plan.windows import Deployment


def cachew_paper(setting: Setting) -> Begin:
    """Remote workers only, by Cachew's autoscaler."""
    return partial(_remote_only, CACHEW.with_threshold(setting.threshold))


def cachew_code(_setting: Setting) -> Begin:
    """Remote workers only, by Cachew's autoscaler with the constants of its released code."""
    return partial(_remote_only, CACHEW_CODE)


def collocated(setting: Setting) -> Begin:
    """Local workers only, as many as shorten the batch time."""
    return partial(_local_only, CACHEW.with_threshold(setting.threshold))


def _local_only(rule: ScalingRule, start: Deployment, limits: DeploymentLimits) -> Search:
    scale = Scale("local", limits.min_remote, max(1, limits.min_local), max(1, limits.max_local))
    return cachew(scale, min(max(start.local, scale.least), scale.most), rule)


def _remote_only(rule: ScalingRule, start: Deployment, limits: DeploymentLimits) -> Search:
    # At least one, because Cachew runs remote workers alone.
    least = max(1, limits.min_remote)
    scale = Scale("remote", limits.min_local, least, max(least, limits.max_remote))
    return cachew(scale, min(max(start.remote, scale.least), scale.most), rule)


def fastflow(_setting: Setting) -> Begin:
    """A fixed number of remote workers, used if that is faster than the local ones alone (Pecan §4, §6.1).

    This is FastFlow as the Pecan paper describes and provisions it: the least time for workers that the user has
    fixed (two local, two remote), no scaling, no price.  FastFlow's own choice of a cut within the pipeline is not
    part of a placement policy.
    """
    return _accept_if_better


def _accept_if_better(_start: Deployment, limits: DeploymentLimits) -> Search:
    alone = limits.clamp(FIXED.local, 0)
    both = limits.clamp(FIXED.local, FIXED.remote)
    first = yield Probe(alone, "scale_local", f"measure {alone} first.")
    second = yield Probe(both, "scale_remote", f"{alone} take {first.batch_time:.4g} s a batch: try {both}.")
    at = both if second.batch_time < first.batch_time else alone
    why = f"{alone} take {first.batch_time:.4g} s a batch and {both} {second.batch_time:.4g} s: stay with {at}."
    yield from hold(at, why)
