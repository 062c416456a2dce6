"""Why AutoPlacement runs what it runs, in words: which deployments it has measured, and why the others lost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from pecan_ray.job.next_step import next_step_of
from pecan_ray.job.placement_comparison import DeploymentMeasurement, PlacementComparison
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobStats

HEAD = ("", "batch", "waits", "cost", "measured", "")
AS_DEAR = 0.01
"""Deployments whose costs differ by less are equally cheap: then the one with fewer workers is kept."""


def explain_placement(facts: JobStats) -> str:
    """Say what a running job has compared, what it chose, and why the others lost."""
    found = facts.comparison
    if facts.lost:
        return f"job {facts.job}: its placement is not known: {facts.lost}"
    running = str(facts.deployments[-1][1]) if facts.deployments else "no worker"
    if found is None:
        return f"job {facts.job}: {running} run; AutoPlacement decides nothing, as the numbers of workers are fixed."
    looks = "before, AutoPlacement looked" if found.stopped else "AutoPlacement looks"
    wanted = f"{looks} for {describe_objective(found)}."
    if found.stopped:
        wanted = f"{running} run, as scale() wants; {wanted}"
    if not facts.timeline or not found.others:
        return f"job {facts.job}: {wanted} Nothing was measured{'' if found.stopped else ' yet'}."
    last = facts.timeline[-1].decision
    lines = [f"job {facts.job}: {wanted}"]
    if not found.stopped:
        lines.append(f"  it wants {last.target} ({last.phase}{_decision_time(facts.timeline)}): {last.reason}")
    chosen = running if found.stopped else str(last.target)
    return "\n".join(lines + _comparison_table(found, facts.prices is not None, chosen))


def _comparison_table(found: PlacementComparison, priced: bool, chosen: str) -> list[str]:
    """Return the lines of a table of what was compared."""
    table = [HEAD, *(table_row(rival, found, priced, chosen) for rival in found.others)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEAD) - 1)]
    lines = []
    for row in table:
        padded = [cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    return lines


def explain_with_next_step(facts: JobStats) -> str:
    """Say the same of a job that runs, and what AutoPlacement does next."""
    return explain_placement(facts) if facts.lost else f"{explain_placement(facts)}\n  next: {next_step_of(facts)}"


def _decision_time(timeline: Sequence[PlacementStep]) -> str:
    """Say when the newest reason was given, if windows have come since: its figures are of that time."""
    newest = timeline[-1].decision
    told = newest.target, newest.phase, newest.reason
    same = list(
        itertools.takewhile(
            lambda step: (step.decision.target, step.decision.phase, step.decision.reason) == told, reversed(timeline)
        )
    )
    return f", decided at {same[-1].seconds:.0f} s" if len(same) > 1 else ""


def describe_objective(found: PlacementComparison) -> str:
    """Say what is looked for."""
    if found.longest_s < math.inf:
        return f"the cheapest deployment that ends in time, with at most {1000 * found.longest_s:.3g} ms a batch"
    if found.most_wait < 1:
        return f"the cheapest deployment beside which the trainer waits for less than {found.most_wait:.0%} of its time"
    return "the cheapest deployment"


def table_row(rival: DeploymentMeasurement, found: PlacementComparison, priced: bool, chosen: str) -> tuple[str, ...]:
    """Return a row about one deployment; `chosen`: the one that runs."""
    one = rival.comparison
    projected, waits = one.projected, one.wait_share
    cost = f"{one.cost_increase:+.0%}" if one.cost_increase else "least"
    if priced:
        # 1,000 batches, 3,600 s of an hour.
        cost += f", ${projected.batch_s * projected.per_hour / 3.6:.3g} per 1000 batches"
    return (
        str(projected.deployment),
        f"{1000 * projected.batch_s:.3g} ms",
        "" if waits is None else f"{waits:.1%}",
        cost,
        f"{projected.windows} windows, the last at {rival.seconds:.0f} s",
        "runs" if str(projected.deployment) == chosen else comparison_result(rival, found),
    )


def comparison_result(rival: DeploymentMeasurement, found: PlacementComparison) -> str:
    """Say why a deployment was not chosen."""
    one, waits = rival.comparison, rival.comparison.wait_share
    if one.miss == "late":
        return f"lost: a batch may take {1000 * found.longest_s:.3g} ms if the job is to end in time"
    if one.miss == "waits":
        return f"lost: the trainer waits for {waits or 0.0:.1%} of its time"
    if one.cost_increase > AS_DEAR:
        return f"lost: {one.cost_increase:.1%} dearer"
    if abs(one.cost_increase) <= max(AS_DEAR, 2 * one.projected.error):
        return "as cheap as can be told"
    return "cheaper when it was measured"
