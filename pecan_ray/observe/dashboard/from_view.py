"""From what a controller tells of its job to what a page shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pecan_ray.job.host_names import in_host_names
from pecan_ray.job.job_cost import cost_between
from pecan_ray.job.job_views import JobView, LiveJob, TrainerView, changes_something
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobStats
from pecan_ray.observe.dashboard.record import (
    JobLine,
    JobRecord,
    RunningWorkers,
    SeenDecision,
    SeenEvent,
    SeenTrainer,
    SeenWindow,
    SeenWorker,
)
from pecan_ray.observe.report import Report
from pecan_ray.placement import Prices
from pecan_ray.plan.windows import Deployment, Window

COST_POINTS = 60
"""Of the line of costs."""


def line_of(job: LiveJob) -> JobLine:
    """Return a live job as a line of the list."""
    wanted = "" if job.target == job.running else str(job.target)
    return JobLine(
        name=job.job,
        pipeline=job.pipeline,
        live=True,
        seconds=job.seconds,
        epoch=job.epoch,
        batches=job.batches,
        elements=job.elements,
        local=job.running.local,
        remote=job.running.remote,
        target=wanted,
        rate=job.rate,
        waited=job.waited,
        bad_elements=job.bad_elements,
        dollars=job.dollars,
        error=job.error,
    )


def record_of(view: JobView, nodes: Mapping[str, str]) -> JobRecord:
    """Return all that a page shows of a live job; `nodes`: names of nodes, by their ids."""
    facts = view.stats
    steps = facts.timeline
    progress = together(view.trainers)
    report = Report.of_job(facts, progress, None)
    windows = [*((step.seconds, step.window) for step in steps), *((one.seconds, one.window) for one in facts.windows)]
    return JobRecord(
        line=line_of(view.live),
        windows=seen_windows(windows, view.live.trainers),
        decision_history=decision_history(steps),
        running=tuple(RunningWorkers(at, one.local, one.remote) for at, one in facts.deployments),
        cost=_cost(facts, progress),
        workers=_workers_of(view, nodes),
        trainers=_trainers_of(view, nodes),
        events=tuple(
            SeenEvent(one.seconds, one.kind, in_host_names(one.text, lambda node: named(node, nodes)))
            for one in facts.events
        ),
        bad=report.bad_text() if facts.bad_elements else "",
        order_text=view.order_text,
        report=str(replace(report, events=())),
        lost=facts.lost,
    )


def named(node: str, nodes: Mapping[str, str]) -> str:
    """Return the name of a node's host."""
    # Of a node that is gone the id is all that is known.
    return nodes.get(node, node[:8])


def together(trainers: Iterable[TrainerView]) -> TrainerProgress:
    """Add up what all ranks have done; their waiting is a mean."""
    ranks = tuple(trainers)
    if not ranks:
        return TrainerProgress()
    return TrainerProgress(
        yielded=sum(one.batches for one in ranks),
        rows=sum(one.rows for one in ranks),
        waited_s=sum(one.waited_s for one in ranks) / len(ranks),
        elapsed_s=max(one.elapsed_s for one in ranks),
        queued=sum(one.queued for one in ranks),
    )


def seen_windows(windows: Iterable[tuple[float, Window]], trainers: int) -> tuple[SeenWindow, ...]:
    """Return the windows that can be used, in their order."""
    return tuple(
        SeenWindow(
            at,
            trainers / window.batch_time,
            None if window.wait_time is None else min(1.0, window.wait_time / window.batch_time),
            window.queue_size,
        )
        for at, window in sorted(windows, key=lambda one: one[0])
        if not window.invalid_reason()
    )


def decision_history(steps: tuple[PlacementStep, ...]) -> tuple[SeenDecision, ...]:
    """Return the decisions that have changed something."""
    return tuple(
        SeenDecision(step.seconds, step.decision.phase, str(step.decision.target), step.decision.reason)
        for number, step in enumerate(steps)
        if changes_something(steps, number)
    )


def cost_over_time(
    deployments: Sequence[tuple[float, Deployment]],
    prices: Prices,
    hosts: int,
    seconds: float,
    waiting: float = 0.0,
    rates: Sequence[float | None] = (),
) -> tuple[tuple[float, float], ...]:
    """Return what a job had cost at some moments of its time; `waiting`, `rates`: as `cost_between` takes them."""
    moments = [seconds * number / COST_POINTS for number in range(COST_POINTS + 1)]
    return tuple(
        (at, cost_between(deployments, prices, hosts, rates, until=at, waiting=waiting).total) for at in moments
    )


def _cost(facts: JobStats, progress: TrainerProgress) -> tuple[tuple[float, float], ...]:
    """Return what a live job had cost so far; empty where no prices are known."""
    if facts.prices is None or not facts.seconds:
        return ()
    waiting = min(1.0, progress.waited_s / progress.elapsed_s) if progress.elapsed_s > 0 else 0.0
    return cost_over_time(facts.deployments, facts.prices, facts.hosts, facts.seconds, waiting, facts.remote_rates)


def _workers_of(view: JobView, nodes: Mapping[str, str]) -> tuple[SeenWorker, ...]:
    """Return the workers that have told something, and behind them those that are yet to."""
    placed, told = {one.name: one for one in view.placed}, view.stats.workers
    seen = []
    for name, one in told.items():
        here = placed.get(name)
        node, state = ("", "gone") if here is None else (named(here.node, nodes), here.state)
        made = (one.elements, one.batches, one.threads, one.remote_bytes)
        seen.append(SeenWorker(name, one.placement, node, state, *made))
    for name, worker in placed.items():
        if name not in told:
            seen.append(SeenWorker(name, worker.placement, named(worker.node, nodes), worker.state, 0, 0, 0))
    return tuple(seen)


def _trainers_of(view: JobView, nodes: Mapping[str, str]) -> tuple[SeenTrainer, ...]:
    seen = []
    for one in view.trainers:
        wait_share = one.waited_s / one.elapsed_s if one.elapsed_s > 0 else 0.0
        seen.append(SeenTrainer(one.rank, named(one.node, nodes), one.batches, one.rows, wait_share, one.queued))
    return tuple(seen)
