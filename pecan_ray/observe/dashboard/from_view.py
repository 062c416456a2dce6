"""From what a controller tells of its job to what a page shows: the job's report, and beside it where things run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from pecan_ray.job.host_names import in_host_names
from pecan_ray.job.job_views import JobView, LiveJob, TrainerView
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.observe.dashboard.from_report import record_of_report
from pecan_ray.observe.dashboard.record import JobLine, JobRecord, SeenTrainer, SeenWorker
from pecan_ray.observe.report import Report


def line_of(job: LiveJob) -> JobLine:
    """Return a live job as a line of the list."""
    wanted = "" if job.target == job.running else str(job.target)
    return JobLine(
        name=job.job,
        pipeline=job.pipeline,
        seconds=job.seconds,
        epoch=job.epoch,
        batches=job.batches,
        elements=job.elements,
        running=job.running,
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
    report = Report.of_job(facts, together(view.trainers), None)
    record = record_of_report(line_of(view.live), asdict(report), str(replace(report, events=())))
    return replace(
        record,
        workers=_workers_of(view, nodes),
        trainers=_trainers_of(view, nodes),
        events=tuple(
            replace(one, text=in_host_names(one.text, lambda node: named(node, nodes))) for one in record.events
        ),
        bad=report.bad_text() if facts.bad_elements else "",
        order_text=view.order_text,
        lost=facts.lost,
    )


def named(node: str, nodes: Mapping[str, str]) -> str:
    """Return the name of a node's host."""
    # Of a node that is gone the id is all that is known.
    return nodes.get(node, node[:8])


def together(trainers: Iterable[TrainerView]) -> TrainerProgress:
    """Add up what all ranks have done; their waiting is a mean."""
    ranks = [one.progress for one in trainers]
    if not ranks:
        return TrainerProgress()
    return TrainerProgress(
        yielded=sum(one.yielded for one in ranks),
        rows=sum(one.rows for one in ranks),
        waited_s=sum(one.waited_s for one in ranks) / len(ranks),
        elapsed_s=max(one.elapsed_s for one in ranks),
        queued=sum(one.queued for one in ranks),
    )


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
        told = one.progress
        wait_share = told.waited_s / told.elapsed_s if told.elapsed_s > 0 else 0.0
        seen.append(SeenTrainer(one.rank, named(one.node, nodes), told.yielded, told.rows, wait_share, told.queued))
    return tuple(seen)
