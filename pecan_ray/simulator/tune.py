"""Settings of the papers' placement policies, searched with Optuna against random workloads.

What is minimized is the cost of a training of EPOCHS epochs over that with the cheapest deployment from the beginning:

    ( convergence cost + (EPOCHS - epochs until convergence) * cost of an epoch after it ) / ( EPOCHS * cheapest epoch )

as a geometric mean over workloads, so that no single one decides.  Judging is done elsewhere, with other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from pecan_ray.errors import MissingExtraError, PlanError
from pecan_ray.simulator.client import T, X, released
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.grid_search import Evaluator
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.policy_driver import placement
from pecan_ray.simulator.random_workloads import AFTER, TUNED, draw
from pecan_ray.simulator.text_tables import table
from pecan_ray.simulator.workload import Workload

if TYPE_CHECKING:
    from optuna import Trial

# Of a training, in the quotient above: what a search costs counts little in a long one.
EPOCHS = 20
Settings = Mapping[str, float]

DEFAULTS: dict[str, dict[str, float]] = {
    "pecan": {"threshold": T, "window_batches": X},
    "pecan-code": {"threshold": T, "window_batches": X},
    "cachew": {"threshold": T, "window_batches": 100},
}
"""What is tuned of each mode, and its default.  Mode "auto" looks at no windows, and has nothing to tune."""


@dataclass(frozen=True)
class Attempt:
    """Settings and what they cost."""

    settings: Settings
    cost: float
    """Of a training, over that with the cheapest deployment from the beginning; 1 is perfect."""


@dataclass(frozen=True)
class TuneResult:
    """The outcome of a study."""

    mode: str
    workloads: int
    default: Attempt
    attempts: tuple[Attempt, ...]
    """Best first."""
    alone: tuple[tuple[str, float, Attempt], ...]
    """(setting, value, what it costs with all others at their defaults)."""


@dataclass(frozen=True)
class TuneTask:
    """A workload to tune on, and what its cheapest deployment costs."""

    seed: int
    workload: Workload
    min_cost: float


def tasks(count: int) -> list[TuneTask]:
    """Draw the workloads to tune on."""
    if not 1 <= count < TUNED:
        raise PlanError(f"between 1 and {TUNED - 1} workloads may be tuned on, but {count} were asked for.")
    found = []
    for seed in range(count):
        workload = draw(seed)
        found.append(TuneTask(seed, workload, Evaluator(workload, seed=seed).optimal().epoch_cost))
    return found


def training_cost(mode: str, settings: Settings, task: TuneTask) -> float:
    """Return what a training costs with some settings, over the least possible."""
    outcome = simulate(
        SimulatedJob(
            task.workload,
            placement(task.workload, mode, settings["threshold"]),
            seed=task.seed,
            client=released(int(settings["window_batches"])),
            most_batches=60_000,
            after_convergence=AFTER,
        )
    )
    done = (outcome.converged or outcome.end).batches / task.workload.batches_per_epoch
    rest = max(0.0, EPOCHS - done) * outcome.epoch_cost
    return (outcome.convergence_cost + rest) / (EPOCHS * task.min_cost)


def attempt(mode: str, settings: Settings, on: Sequence[TuneTask]) -> Attempt:
    """Try settings on all workloads."""
    return Attempt(dict(settings), math.exp(fmean(math.log(training_cost(mode, settings, task)) for task in on)))


def suggest(trial: Trial) -> dict[str, float]:
    """Let Optuna choose settings."""
    return {
        "threshold": trial.suggest_float("threshold", 0.005, 0.12, log=True),
        "window_batches": trial.suggest_int("window_batches", 25, 1600, log=True),
    }


def tune(
    mode: str,
    *,
    trials: int = 40,
    workloads: int = 20,
    seed: int = 0,
    ladder: Mapping[str, Sequence[float]] | None = None,
) -> TuneResult:
    """Search settings of a mode; `ladder`: values to try of one setting at a time."""
    if mode not in DEFAULTS:
        raise PlanError(f"there is nothing to tune of mode {mode!r}: choose one of {', '.join(DEFAULTS)}.")
    if trials < 1:
        raise PlanError(f"at least one setting must be tried, but trials={trials}.")
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError('tuning needs Optuna: run pip install "pecan_ray[tune]".') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    on = tasks(workloads)
    default = attempt(mode, DEFAULTS[mode], on)
    attempts: list[Attempt] = []

    def objective(trial: Trial) -> float:
        attempts.append(attempt(mode, suggest(trial), on))
        return attempts[-1].cost

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    # So that what is found is never worse than the default.
    study.enqueue_trial(dict(DEFAULTS[mode]))
    study.optimize(objective, n_trials=trials)
    alone = tuple(
        (name, value, attempt(mode, {**DEFAULTS[mode], name: value}, on))
        for name, values in (ladder or {}).items()
        for value in values
    )
    return TuneResult(mode, workloads, default, tuple(sorted(attempts, key=lambda one: one.cost)), alone)


def report(tuned: TuneResult, best: int = 5) -> str:
    """Write a study as Markdown."""
    head = [tuned.mode, *DEFAULTS[tuned.mode], "cost of a training"]
    rows = [row_of("default", tuned.default)]
    rows += [row_of(str(place + 1), one) for place, one in enumerate(tuned.attempts[:best])]
    rows.append(row_of("worst", tuned.attempts[-1]))
    parts = [
        f"{len(tuned.attempts)} settings on {tuned.workloads} random workloads, {EPOCHS} epochs; 1 is the cheapest "
        "deployment from the first batch on.",
        table(head, rows),
    ]
    if tuned.alone:
        lines = [[f"{name} = {value:g}", f"{one.cost:.3f}"] for name, value, one in tuned.alone]
        parts.append(table(["one setting changed", "cost of a training"], lines))
    return "\n\n".join(parts)


def row_of(label: str, one: Attempt) -> list[str]:
    """Write an attempt."""
    return [label, *(f"{value:.3g}" for value in one.settings.values()), f"{one.cost:.3f}"]
