"""What AutoPlacement does next, and why, as far as its newest decision tells."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.stats import JobStats
from pecan_ray.plan.windows import Decision, Deployment


@dataclass(frozen=True)
class NextStep:
    """An action that is announced; `str()` gives a sentence."""

    action: str
    reason: str
    changes_workers: bool
    """Whether it changes the numbers of workers, or may do so after the next window."""

    def __str__(self) -> str:
        return f"AutoPlacement {self.action}: {self.reason.rstrip('.')}"


def next_step(running: Deployment, last: Decision | None, *, decides: bool, stopped: bool = False) -> NextStep:
    """Return what comes next where so many workers run; `last`: what was decided last, None before that.

    `decides`: AutoPlacement looks for the numbers of workers; `stopped`: until somebody has fixed them.
    """
    if stopped:
        return NextStep("does nothing more", "scale() has fixed the numbers of workers", changes_workers=False)
    if not decides:
        why = f"the numbers of workers are fixed, {running}; workers=None lets it find them"
        return NextStep("does nothing", why, changes_workers=False)
    if last is None:
        return NextStep(f"measures {running} first", "no window of batches has ended yet", changes_workers=True)
    if last.target != running:
        return NextStep(f"goes from {running} to {last.target}", last.reason, changes_workers=True)
    if last.phase == "converged":
        return NextStep("does nothing as long as batches take as long as now", last.reason, changes_workers=False)
    if last.phase == "failed":
        return NextStep("does nothing", last.reason, changes_workers=False)
    again = "measures again what" if last.phase == "discarded" else "measures, before it decides, what"
    return NextStep(f"{again} {last.target} do", last.reason, changes_workers=True)


def next_step_of(facts: JobStats) -> NextStep:
    """Return what comes next in a job."""
    running = facts.deployments[-1][1] if facts.deployments else Deployment(0, 0)
    last, found = facts.timeline[-1].decision if facts.timeline else None, facts.comparison
    return next_step(running, last, decides=found is not None, stopped=found is not None and found.stopped)
