"""What a finished run has shown of itself: its trainer's step, and what its workers brought, deployment by deployment.

Only the steady part counts: what the trainer waited for until its first batches (workers that start, AutoOrder's
sample, compilation) is the start, not the pace.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.placement.objective import DeploymentEstimate
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment, Window

WAITING = 0.02
"""From this share of waiting on, workers set the pace."""
LEAST_ERROR = 0.01
"""Relative error of any pace: two runs of the same thing differ by as much."""
LEAST_OWN = 1e-3
"""A trainer that does nothing but wait has this share of the batch time to itself: no clock tells less apart."""


@dataclass(frozen=True)
class MeasuredSpeed:
    """What one deployment of a run has shown."""

    deployment: Deployment
    batch_s: float
    own_s: float
    """The trainer's own part of a batch."""
    error: float = LEAST_ERROR
    """Relative standard error of batch_s."""

    @property
    def is_waiting(self) -> bool:
        """Return whether the trainer waited, so that the workers set the pace."""
        return self.batch_s - self.own_s > WAITING * self.batch_s


@dataclass(frozen=True)
class RunProfile:
    """What a run has shown of itself."""

    job: str
    deployment: Deployment
    """What ran at the end."""
    batches: int
    """Of each trainer, in the whole run."""
    step_s: float
    """The trainer's own time for a batch."""
    wait_share: float
    """Share of the time in which the trainer waited for input, the start left out."""
    local_rate: float
    """Batches per second of one local worker; 0 where none ran."""
    remote_rate: float
    """Batches per second of one remote worker; 0 where none ran."""
    prices: Prices | None = None
    trainers: int = 1
    hosts: int = 1
    """Machines of the trainers, which are paid for."""
    batches_per_epoch: int | None = None
    """Of each trainer; None: the whole run counts as one."""
    start_s: float = 0.0
    """Until the first batch."""
    measured: tuple[MeasuredSpeed, ...] = ()
    """Empty: what ran at the end, at the rates above."""

    def __post_init__(self) -> None:
        for name in ("step_s", "wait_share", "local_rate", "remote_rate", "start_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise PlanError(f"RunProfile({name}=...) must be a finite number >= 0, but got {value!r}.")
        if self.step_s <= 0 or self.trainers < 1 or self.hosts < 1 or self.batches < 1:
            raise PlanError(
                f"job {self.job!r}: a profile needs a step, a trainer and a batch, but has step_s={self.step_s}, "
                f"trainers={self.trainers} on {self.hosts} hosts and batches={self.batches}."
            )

    @property
    def epoch(self) -> int:
        """Batches of an epoch, of each trainer."""
        return self.batches_per_epoch or self.batches

    @property
    def rate_values(self) -> tuple[MeasuredSpeed, ...]:
        """What was measured of every deployment that ran."""
        if self.measured:
            return self.measured
        here = self.deployment
        supply = here.local * self.local_rate + here.remote * self.remote_rate
        batch_s = max(self.step_s, self.trainers / supply) if supply > 0 else self.step_s
        return (MeasuredSpeed(here, batch_s, self.step_s),)


def from_json(text: str) -> RunProfile:
    """Make a profile of the report of a finished run (`Report.to_json`)."""
    try:
        return profile_of_report(json.loads(text))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            f"this is no report of a run ({type(error).__name__}: {error}): write one with "
            "open('report.json', 'w').write(batches.report().to_json())."
        ) from error


def profile_of_report(report: Mapping[str, Any]) -> RunProfile:
    """Make a profile of the fields of a report."""
    seconds, batches = float(report["seconds"]), int(report["batches"])
    if seconds <= 0 or batches < 1:
        raise PlanError(f"job {report['job']!r} took no batch: there is nothing to learn from its report.")
    spans = spans_of(report)
    start_s = min(float(report.get("first_batch_s") or 0.0), seconds)
    waited = max(0.0, min(float(report["waited_s"]), seconds) - start_s)
    trainers, hosts = int(report.get("trainers", 1)), int(report.get("hosts", 1))
    final = spans[-1][0]
    estimates = [DeploymentEstimate.of(at, windows, 0.0) for at, windows in windows_of(report).items()]
    rate_values = tuple(speed_of(estimate) for estimate in estimates) or (whole_run(report, final, start_s, waited),)
    local_rate, remote_rate = rates(rate_values, trainers)
    epochs = int(report.get("epochs", 0))
    return RunProfile(
        job=str(report["job"]),
        deployment=final,
        batches=batches,
        step_s=step_of(rate_values),
        wait_share=min(1.0, waited / max(seconds - start_s, 1e-9)),
        local_rate=local_rate,
        remote_rate=remote_rate,
        prices=Prices.of_fields(report["prices"])
        if report.get("prices")
        else unit_costs_from_report(report, spans, hosts),
        trainers=trainers,
        hosts=hosts,
        batches_per_epoch=batches // epochs if epochs > 1 else None,
        start_s=start_s,
        measured=rate_values,
    )


def windows_of(report: Mapping[str, Any]) -> dict[Deployment, list[Window]]:
    """Return the windows of a report that can be used, by what ran."""
    found: dict[Deployment, list[Window]] = {}
    for step in (*report.get("timeline", ()), *report.get("windows", ())):
        window = Window(**step["window"])
        if not window.invalid_reason() and window.wait_time is not None:
            found.setdefault(Deployment(**step["deployment"]), []).append(window)
    return found


def speed_of(found: DeploymentEstimate) -> MeasuredSpeed:
    """Return what windows say."""
    own = found.batch_s if found.own_s is None else found.own_s
    return MeasuredSpeed(
        found.deployment, found.batch_s, max(own, LEAST_OWN * found.batch_s), max(LEAST_ERROR, found.error)
    )


def whole_run(report: Mapping[str, Any], final: Deployment, start_s: float, waited: float) -> MeasuredSpeed:
    """Return the pace of a run without windows: that of its steps, else of all behind its first batch."""
    steps = report.get("steps") or {}
    if steps.get("batches", 0) >= 2:
        count = steps["batches"]
        batch_s, wait_s = steps["seconds"] / count, steps["waited"] / count
        variance = max(0.0, steps["squares"] / count - batch_s**2)
        error = math.sqrt(variance / count) / batch_s
    else:
        # The first batch belongs to the start. An error of a tenth: nothing is known of how the steps vary.
        count = max(1, int(report["batches"]) - (1 if start_s else 0))
        batch_s, wait_s, error = (float(report["seconds"]) - start_s) / count, waited / count, 0.1
    own_s = max(batch_s - wait_s, LEAST_OWN * batch_s)
    return MeasuredSpeed(final, batch_s, own_s, max(LEAST_ERROR, error))


def step_of(rate_values: Sequence[MeasuredSpeed]) -> float:
    """Return the trainer's own time of a batch: where it hardly waited, if it ever did so.

    Beside a wait, a program that runs ahead of its accelerators seems to step faster than it can.
    """
    calm = [pace.own_s for pace in rate_values if not pace.is_waiting]
    return median(calm or [pace.own_s for pace in rate_values])


def spans_of(report: Mapping[str, Any]) -> list[tuple[Deployment, float]]:
    """Return what ran and for how long; what the workers of a report say, where it has no deployments."""
    changes = [(float(start), Deployment(**running)) for start, running in report.get("deployments", ())]
    if not changes:
        places = [worker["placement"] for worker in report["workers"].values()]
        changes = [(0.0, Deployment(places.count("local"), places.count("remote")))]
    ends = [start for start, _ in changes[1:]] + [float(report["seconds"])]
    spans = [(running, max(0.0, end - start)) for (start, running), end in zip(changes, ends, strict=True)]
    busy = [(running, length) for running, length in spans if running.workers]
    if not busy:
        raise PlanError(f"job {report['job']!r} had no worker: there is nothing to learn from its report.")
    return busy


def rates(rate_values: Sequence[MeasuredSpeed], trainers: int) -> tuple[float, float]:
    """Fit batches per second of a local and of a remote worker, where the trainer waited for them, if anywhere."""
    used = [pace for pace in rate_values if pace.is_waiting] or list(rate_values)
    counts = np.array([[pace.deployment.local, pace.deployment.remote] for pace in used], dtype=float)
    supply = np.array([trainers / pace.batch_s for pace in used])
    # One over the absolute error of each, as least squares take it.
    weights = 1 / np.array([pace.error for pace in used]) / supply
    both = counts.any(axis=0)
    fitted = np.zeros(2)
    fitted[both] = np.linalg.lstsq(counts[:, both] * weights[:, None], supply * weights, rcond=None)[0]
    if both.all() and (np.linalg.matrix_rank(counts) < 2 or fitted.min() <= 0):
        # The two cannot be told apart: believe that a worker is a worker.
        fitted[:] = supply.sum() / counts.sum()
    return float(fitted[0]), float(fitted[1])


def unit_costs_from_report(
    report: Mapping[str, Any], spans: Sequence[tuple[Deployment, float]], hosts: int
) -> Prices | None:
    """Return the prices that a report's costs imply; None if it has no costs."""
    cost = report.get("cost")
    if not cost:
        return None
    hours = sum(length for _, length in spans) / 3600
    remote_hours = sum(running.remote * length for running, length in spans) / 3600
    return Prices(cost["host"] / (hours * hosts), cost["remote"] / remote_hours if remote_hours else 0.0)
