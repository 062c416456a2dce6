"""What a finished run would have taken with other workers: from its own profile, no simulation.

    batch time(l, r) = max( step, clients / (l * local rate + r * remote rate) )
    cost of an epoch = batches * batch time * (c_a n_a + c_w r)

The step is the trainer's own part of a batch, the rates are what workers produced while the trainer waited for them.
Where it never waited, the rates are only known to be at least so high, which `Forecast.certain` says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment

WAITING = 0.02
"""From this share of waiting on, workers set the pace."""
CHANGES = (Deployment(0, 1), Deployment(0, 2), Deployment(0, 4), Deployment(1, 0), Deployment(2, 0))


@dataclass(frozen=True)
class RunProfile:
    """What a run has shown of itself."""

    job: str
    deployment: Deployment
    """What ran at the end."""
    batches: int
    """Of each client, in the whole run."""
    step_s: float
    """The trainer's own time for a batch."""
    wait_share: float
    """Share of the run in which the trainer waited for input."""
    local_rate: float
    """Batches per second of one local worker; 0 where none ran."""
    remote_rate: float
    """Batches per second of one remote worker; 0 where none ran."""
    prices: Prices | None = None
    clients: int = 1
    batches_per_epoch: int | None = None
    """Of each client; None: the whole run counts as one."""
    rates_known: bool = True
    """The trainer waited for these workers; else the rates are lower bounds."""

    def __post_init__(self) -> None:
        for name in ("step_s", "wait_share", "local_rate", "remote_rate"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise PlanError(f"RunProfile({name}=...) must be a finite number >= 0, but got {value!r}.")
        if self.step_s <= 0 or self.clients < 1 or self.batches < 1:
            raise PlanError(
                f"job {self.job!r}: a profile needs a step, a client and a batch, but has step_s={self.step_s}, "
                f"clients={self.clients} and batches={self.batches}."
            )

    @property
    def epoch(self) -> int:
        """Batches of an epoch, of each client."""
        return self.batches_per_epoch or self.batches


@dataclass(frozen=True)
class Forecast:
    """A deployment and what it is expected to take."""

    deployment: Deployment
    batch_s: float
    speed: float
    """Rate of batches over that of the run as it was, less 1."""
    wait_share: float
    epoch_cost: float | None
    """$; None without prices."""
    more: float | None
    """$ per epoch more than the run as it was; None without prices."""
    certain: bool
    """Every rate that it depends on was measured while the trainer waited."""

    def __str__(self) -> str:
        sentence = f"{self.deployment}: {self.speed:+.0%}, {1 / self.batch_s:.3g} batches/s"
        if self.epoch_cost is not None and self.more is not None:
            sentence += f", {dollars(self.epoch_cost)} per epoch ({signed_dollars(self.more)})"
        return sentence if self.certain else f"{sentence}; at least, as the trainer never waited for these workers"


def signed_dollars(amount: float) -> str:
    """Write a difference in dollars."""
    return f"{'-' if amount < 0 else '+'}{dollars(abs(amount))}"


def dollars(amount: float) -> str:
    """Write an amount to the cent, a small one to three digits."""
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.3g}"


def batch_time(profile: RunProfile, deployment: Deployment) -> float:
    """Predict the time of a batch; infinite without a worker whose rate is known."""
    supply = deployment.local * profile.local_rate + deployment.remote * profile.remote_rate
    return max(profile.step_s, profile.clients / supply) if supply > 0 else math.inf


def epoch_cost(profile: RunProfile, deployment: Deployment, batch_s: float) -> float | None:
    """Return $ of an epoch; None without prices."""
    if profile.prices is None:
        return None
    return profile.epoch * batch_s / 3600 * profile.prices.per_hour(profile.clients, deployment.remote)


def what_if(profile: RunProfile, deployment: Deployment) -> Forecast:
    """Say what another deployment would have taken."""
    if not deployment.workers:
        raise PlanError("a job needs at least one worker: ask for one.")
    for kind, rate in (("local", profile.local_rate), ("remote", profile.remote_rate)):
        if getattr(deployment, kind) and rate <= 0:
            raise PlanError(
                f"job {profile.job!r} had no {kind} worker, so that the rate of one is not known: let a run use some."
            )
    now, then = batch_time(profile, profile.deployment), batch_time(profile, deployment)
    before, after = epoch_cost(profile, profile.deployment, now), epoch_cost(profile, deployment, then)
    return Forecast(
        deployment,
        then,
        speed=now / then - 1,
        wait_share=1 - profile.step_s / then,
        epoch_cost=after,
        more=None if after is None or before is None else after - before,
        certain=profile.rates_known or then <= profile.step_s,
    )


def suggestions(profile: RunProfile, changes: Sequence[Deployment] = CHANGES) -> list[Forecast]:
    """Forecast a few steps up and down from the run as it was, those that its profile can tell."""
    here, found = profile.deployment, []
    for change in changes:
        for sign in (1, -1):
            local, remote = here.local + sign * change.local, here.remote + sign * change.remote
            known = (profile.local_rate > 0 or not local) and (profile.remote_rate > 0 or not remote)
            if local >= 0 and remote >= 0 and local + remote and known:
                found.append(what_if(profile, Deployment(local, remote)))
    return sorted(found, key=lambda forecast: (forecast.deployment.workers, forecast.deployment))


def to_json(profile: RunProfile) -> str:
    """Write a profile."""
    return json.dumps({"profile": asdict(profile)}, indent=1)


def from_json(text: str) -> RunProfile:
    """Read a profile, or the report of a finished run (`Report.to_json`), of which it is made."""
    try:
        entry = json.loads(text)
        return _profile_of(entry["profile"]) if "profile" in entry else profile_of_report(entry)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            f"this is no report of a run ({type(error).__name__}: {error}): write one with "
            "open('report.json', 'w').write(batches.report().to_json())."
        ) from error


def _profile_of(entry: Mapping[str, Any]) -> RunProfile:
    values = dict(entry)
    values["deployment"] = Deployment(**values["deployment"])
    prices = values.get("prices")
    values["prices"] = Prices(prices["accelerator_host"], prices["remote_worker"]) if prices else None
    return RunProfile(**values)


def profile_of_report(report: Mapping[str, Any]) -> RunProfile:
    """Make a profile of the fields of a report."""
    seconds, batches = float(report["seconds"]), int(report["batches"])
    if seconds <= 0 or batches < 1:
        raise PlanError(f"job {report['job']!r} took no batch: there is nothing to learn from its report.")
    spans = spans_of(report)
    final = spans[-1][0]
    waited = min(float(report["waited_s"]), seconds)
    windows = [
        (Deployment(**step["deployment"]), step["window"])
        for step in report.get("timeline", ())
        if not step["window"].get("touched") and step["window"].get("wait_time") is not None
    ]
    if not windows:
        windows = [(final, {"batch_time": seconds / batches, "wait_time": waited / batches})]
    clients = int(report.get("clients", 1))
    local_rate, remote_rate, known = rates(windows, clients)
    epochs = int(report.get("epochs", 0))
    return RunProfile(
        job=str(report["job"]),
        deployment=final,
        batches=batches,
        step_s=float(np.median([window["batch_time"] - window["wait_time"] for _, window in windows])),
        wait_share=waited / seconds,
        local_rate=local_rate,
        remote_rate=remote_rate,
        prices=prices_of(report, spans, clients),
        clients=clients,
        batches_per_epoch=batches // epochs if epochs > 1 else None,
        rates_known=known,
    )


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


def rates(windows: Sequence[tuple[Deployment, Mapping[str, Any]]], clients: int) -> tuple[float, float, bool]:
    """Fit batches per second of a local and of a remote worker, by windows in which the trainer waited, if any."""
    waiting = [entry for entry in windows if entry[1]["wait_time"] > WAITING * entry[1]["batch_time"]]
    used = waiting or list(windows)
    counts = np.array([[running.local, running.remote] for running, _ in used], dtype=float)
    supply = np.array([clients / window["batch_time"] for _, window in used])
    both = counts.any(axis=0)
    fitted = np.zeros(2)
    fitted[both] = np.linalg.lstsq(counts[:, both], supply, rcond=None)[0]
    if both.all() and (np.linalg.matrix_rank(counts) < 2 or fitted.min() <= 0):
        # The two cannot be told apart: believe that a worker is a worker.
        fitted[:] = supply.sum() / counts.sum()
    return float(fitted[0]), float(fitted[1]), bool(waiting)


def prices_of(report: Mapping[str, Any], spans: Sequence[tuple[Deployment, float]], clients: int) -> Prices | None:
    """Return the prices of a report, or those that its costs imply; None if it has no costs."""
    if report.get("prices"):
        return Prices(report["prices"]["accelerator_host"], report["prices"]["remote_worker"])
    cost = report.get("cost")
    if not cost:
        return None
    hours = sum(length for _, length in spans) / 3600
    remote_hours = sum(running.remote * length for running, length in spans) / 3600
    return Prices(cost["host"] / (hours * clients), cost["remote"] / remote_hours if remote_hours else 0.0)
