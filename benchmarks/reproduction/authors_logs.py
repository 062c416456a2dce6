"""The logs that Pecan's authors published with their artifact: their windows through our policies, and our simulator
beside their windows.

A trace holds every window of a search: local and remote workers, and the mean time of a batch (for ResNet50 one of the
eight replicas' batches of 128 images), to a tenth of a millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import fmean

import numpy as np

from benchmarks.reproduction.experiments import SEEDS, repeat
from benchmarks.reproduction.tables import Comparison, Section, Status, comparison_table
from pecan_ray.placement import AutoPlacement
from pecan_ray.plan.windows import Deployment, Window
from pecan_ray.simulator.client import X, released
from pecan_ray.simulator.outcome import Outcome
from pecan_ray.simulator.text_tables import table
from pecan_ray.simulator.workload import changed, load

FIXED = {
    "local": "simulated local workers always come to what is allowed",
    "remote": "one local worker keeps up with the trainer",
}
"""Why a search could hardly have ended otherwise, by side."""
TRACES = ("resnet_pecan", "resnet_cachew", "retina_pecan")


@dataclass(frozen=True)
class Trace:
    """One search of a published log."""

    name: str
    source: str
    workload: str
    ordered: bool
    mode: str
    threshold: float
    max_local: int
    max_remote: int
    final: Deployment
    minutes: float | None
    """From the beginning to convergence, where the log shows both."""
    first_500_steps_s: float | None
    """What the trainer itself reported, of a program whose step takes eight of the client's batches."""
    note: str
    windows: tuple[tuple[Deployment, float], ...]
    """(what ran, seconds per batch)"""

    def policy(self) -> AutoPlacement:
        """Return the policy that the authors ran."""
        workload = load(self.workload)
        return AutoPlacement(
            self.mode,
            workload.prices,
            threshold=self.threshold,
            max_local=self.max_local,
            max_remote=self.max_remote,
        )


@dataclass(frozen=True)
class ReplayedWindow:
    """A recorded window, what the authors' system did, and what our policy decides."""

    ran: Deployment
    batch_s: float
    theirs: Deployment
    ours: Deployment
    phase: str


def load_trace(name: str) -> Trace:
    """Read a trace of the package."""
    text = (resources.files("benchmarks.reproduction") / "traces" / f"{name}.json").read_text()
    entry = json.loads(text)
    windows = tuple((Deployment(local, remote), ms / 1000) for local, remote, ms in entry.pop("windows"))
    return Trace(name=name, final=Deployment(*entry.pop("final")), windows=windows, **entry)


def replay_decisions(trace: Trace) -> list[ReplayedWindow]:
    """Show the recorded windows to the policy, one after another, whatever it decides."""
    policy = trace.policy()
    following = [ran for ran, _ in trace.windows[1:]] + [trace.final]
    steps = []
    for (ran, batch_s), theirs in zip(trace.windows, following, strict=True):
        decision = policy.decide(Window(batch_s, 0.0, X), ran)
        steps.append(ReplayedWindow(ran, batch_s, theirs, decision.target, decision.phase))
    return steps


def run_trace(trace: Trace, seeds: Sequence[int] = SEEDS) -> list[Outcome]:
    """Run the same search in the simulator."""
    workload = changed(load(trace.workload), max_local=trace.max_local, max_remote=trace.max_remote)
    return repeat(workload, trace.policy, ordered=trace.ordered, client=released(), seeds=seeds, after=3000)


def by_deployment(outcomes: Sequence[Outcome]) -> dict[Deployment, list[float]]:
    """Collect the batch times of the windows of each deployment, before convergence."""
    found: dict[Deployment, list[float]] = {}
    for outcome in outcomes:
        until = outcome.converged.seconds if outcome.converged else float("inf")
        for turn in outcome.timeline:
            if turn.seconds <= until:
                found.setdefault(turn.deployment, []).append(turn.window.batch_time)
    return found


def rows_of(trace: Trace, outcomes: Sequence[Outcome]) -> list[Comparison]:
    """Compare batch times by number of remote workers, and where the search ended."""
    found = by_deployment(outcomes)
    rows = []
    status: Status
    for ran, batch_s in trace.windows:
        times = found.get(ran)
        if ran.local or not times or batch_s <= 0:
            continue
        status = "fitted" if ran.remote == 1 else "follows"
        low, high = 1000 * min(times), 1000 * max(times)
        rows.append(
            Comparison(f"{ran.remote} remote workers", 1000 * batch_s, 1000 * fmean(times), status, "ms", low, high)
        )
    # One local worker of RetinaNet keeps up with its trainer: whatever the noise, the search goes the same way.
    certain = trace.workload == "retinanet"
    for side in ("local", "remote"):
        counts = [float(getattr(run.converged_to, side)) for run in outcomes]
        paper = float(getattr(trace.final, side))
        why = FIXED[side] if side == "local" or certain else ""
        status = "follows" if why else "predicted"
        rows.append(
            Comparison(f"{side} workers in the end", paper, fmean(counts), status, "", min(counts), max(counts), why)
        )
    if trace.minutes is not None:
        times = [(run.converged or run.end).seconds for run in outcomes]
        status, why = ("follows", "a path that is certain, at fitted times") if certain else ("predicted", "")
        rows.append(
            Comparison("time to converge", 60 * trace.minutes, fmean(times), status, "s", min(times), max(times), why)
        )
    if trace.first_500_steps_s is not None:
        times = [seconds_until(run, 8 * 500) for run in outcomes]
        paper, why = trace.first_500_steps_s, "the sum of batch times above"
        rows.append(Comparison("first 500 steps", paper, fmean(times), "follows", "s", min(times), max(times), why))
    return rows


def seconds_until(outcome: Outcome, batches: int) -> float:
    """Return when so many batches had been taken, interpolated between windows."""
    taken = [0.0, *(float(turn.batches) for turn in outcome.timeline)]
    return float(np.interp(batches, taken, [0.0, *(turn.seconds for turn in outcome.timeline)]))


def section(trace: Trace, outcomes: Sequence[Outcome]) -> Section:
    """Compare a trace."""
    steps = replay_decisions(trace)
    same = sum(step.ours == step.theirs for step in steps)
    rows = rows_of(trace, outcomes)
    path = [
        [str(place + 1), str(step.ran), f"{1000 * step.batch_s:.1f}", str(step.theirs), str(step.ours), step.phase]
        for place, step in enumerate(steps)
        if step.ours != step.theirs
    ]
    text = (
        f"{trace.source}. {trace.note} Shown to `{trace.mode}` (T = {trace.threshold}), its windows lead to the "
        f"recorded decision in {same} of {len(steps)} cases. Below: the simulator with `{trace.workload}`."
    )
    blocks = [comparison_table(rows, trace.name)]
    if path:
        blocks.insert(0, table(["window", "ran", "ms", "theirs", "ours", "phase"], path))
    return Section(
        f"The authors' log {trace.name}", text, tuple(blocks), ((f"trace-{trace.name}", trace.name),), tuple(rows)
    )
