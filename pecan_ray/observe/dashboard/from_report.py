"""From the report of a job that is over to what a page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pecan_ray.observe.dashboard.from_view import cost_over_time, seen_windows
from pecan_ray.observe.dashboard.record import (
    JobLine,
    JobRecord,
    RunningWorkers,
    SeenDecision,
    SeenEvent,
    SeenWorker,
)
from pecan_ray.placement import Prices
from pecan_ray.plan.windows import Deployment, Window


def past_line(
    job: str, pipeline: str, report: Mapping[str, Any], *, ended: str = "", error: str = "", key: str = ""
) -> JobLine:
    """Return a past job as a line of the list; `report`: the fields of its report, as JSON has them."""
    seconds, cost = float(report.get("seconds", 0.0)), report.get("cost")
    deployments = report.get("deployments") or []
    last = deployments[-1][1] if deployments else {"local": 0, "remote": 0}
    batches = int(report.get("batches", 0))
    return JobLine(
        name=job,
        pipeline=pipeline,
        live=False,
        seconds=seconds,
        epoch=int(report.get("epochs", 0)),
        batches=batches,
        elements=int(report.get("elements", 0)),
        local=int(last["local"]),
        remote=int(last["remote"]),
        rate=batches / seconds if seconds else None,
        waited=float(report.get("waited_s", 0.0)) / seconds if seconds else None,
        bad_elements=int(report.get("bad_elements", 0)),
        dollars=None if cost is None else float(cost["host"]) + float(cost["remote"]),
        error=error,
        key=key,
        ended=ended,
    )


def past_record(line: JobLine, report: Mapping[str, Any], text: str) -> JobRecord:
    """Return all that a page shows of a past job; `text`: its report as it is printed."""
    trainers = int(report.get("trainers", 1))
    steps = report.get("timeline") or []
    seen = [*steps, *(report.get("windows") or [])]
    return JobRecord(
        line=line,
        windows=seen_windows(((float(one["seconds"]), Window(**one["window"])) for one in seen), trainers),
        decision_history=_decision_history(steps),
        running=tuple(
            RunningWorkers(float(at), int(one["local"]), int(one["remote"]))
            for at, one in report.get("deployments") or []
        ),
        cost=_cost(report),
        workers=tuple(
            SeenWorker(
                *(name, str(one["placement"]), "", ""),
                *(int(one["elements"]), int(one["batches"]), int(one["threads"]), int(one.get("remote_bytes", 0))),
            )
            for name, one in (report.get("workers") or {}).items()
        ),
        events=tuple(
            SeenEvent(float(one["seconds"]), str(one["kind"]), str(one["text"])) for one in report.get("events") or []
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


def _cost(report: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    """Return what the job had cost at some moments; empty where no prices were known."""
    seconds, prices = float(report.get("seconds", 0.0)), report.get("prices")
    if not prices or not seconds:
        return ()
    deployments = [(float(at), Deployment(**one)) for at, one in report.get("deployments") or []]
    rates = tuple(report.get("remote_rates") or ())
    return cost_over_time(deployments, Prices.of_fields(prices), int(report.get("hosts", 1)), seconds, rates=rates)
