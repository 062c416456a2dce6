"""From the fields of a job's report, as JSON has them, to what a page shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pecan_ray.job.job_cost import cost_between
from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.dashboard.record import (
    JobLine,
    JobRecord,
    PastRun,
    SeenDecision,
    SeenWindow,
    SeenWorker,
)
from pecan_ray.placement import Prices
from pecan_ray.plan.windows import Deployment, Window

COST_POINTS = 60
"""Of the line of costs, which grows smoothly: more could not be told apart."""


def past_line(job: str, pipeline: str, report: Mapping[str, Any], past: PastRun, *, error: str = "") -> JobLine:
    """Return a past job as a line of the list."""
    seconds, cost = float(report.get("seconds", 0.0)), report.get("cost")
    deployments = report.get("deployments") or []
    last = deployments[-1][1] if deployments else {"local": 0, "remote": 0}
    batches = int(report.get("batches", 0))
    return JobLine(
        name=job,
        pipeline=pipeline,
        seconds=seconds,
        epoch=int(report.get("epochs", 0)),
        batches=batches,
        elements=int(report.get("elements", 0)),
        running=Deployment(**last),
        rate=batches / seconds if seconds else None,
        waited=float(report.get("waited_s", 0.0)) / seconds if seconds else None,
        bad_elements=int(report.get("bad_elements", 0)),
        dollars=None if cost is None else float(cost["host"]) + float(cost["remote"]),
        error=error,
        past=past,
    )


def record_of_report(line: JobLine, report: Mapping[str, Any], text: str) -> JobRecord:
    """Return what a page shows of a job by its report; `text`: the report as it is printed."""
    trainers = int(report.get("trainers", 1))
    steps = report.get("timeline") or []
    seen = [*steps, *(report.get("windows") or [])]
    return JobRecord(
        line=line,
        windows=seen_windows(((float(one["seconds"]), Window(**one["window"])) for one in seen), trainers),
        decision_history=_decision_history(steps),
        running=_deployments(report),
        cost=_cost(report),
        workers=tuple(
            SeenWorker(
                *(name, str(one["placement"]), "", ""),
                *(int(one["elements"]), int(one["batches"]), int(one["threads"]), int(one.get("remote_bytes", 0))),
            )
            for name, one in (report.get("workers") or {}).items()
        ),
        events=tuple(
            JobEvent(float(one["seconds"]), str(one["kind"]), str(one["text"])) for one in report.get("events") or []
        ),
        report=text,
    )


def _decision_history(steps: Sequence[Mapping[str, Any]]) -> tuple[SeenDecision, ...]:
    """Return the decisions that have changed something."""
    found: list[SeenDecision] = []
    for step in steps:
        decision = step["decision"]
        one = SeenDecision(
            float(step["seconds"]),
            str(decision["phase"]),
            str(Deployment(**decision["target"])),
            str(decision["reason"]),
        )
        before = found[-1] if found else None
        # A window that was thrown away has decided nothing.
        same_phase = before is not None and one.phase in (before.phase, "discarded")
        if before is None or one.target != before.target or not same_phase:
            found.append(one)
    return tuple(found)


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


def _deployments(report: Mapping[str, Any]) -> tuple[tuple[float, Deployment], ...]:
    return tuple((float(at), Deployment(**one)) for at, one in report.get("deployments") or [])


def _cost(report: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    """Return what the job had cost at some moments; empty where no prices were known."""
    seconds, prices = float(report.get("seconds", 0.0)), report.get("prices")
    if not prices or not seconds:
        return ()
    ran, rates, hosts = _deployments(report), tuple(report.get("remote_rates") or ()), int(report.get("hosts", 1))
    paid = Prices.of_fields(prices)
    moments = [seconds * number / COST_POINTS for number in range(COST_POINTS + 1)]
    return tuple((at, cost_between(ran, paid, hosts, rates, until=at).total) for at in moments)
