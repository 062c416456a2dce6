"""How good what-if forecasts are: random workloads run with one deployment (or under AutoPlacement), and forecast for
others, which are then simulated.

    python -m benchmarks.what_if [--workloads 60] [--family plain]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.grid_search import Evaluator
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.outcome import Outcome
from pecan_ray.simulator.policy_driver import Driver, FixedDeployment, placement
from pecan_ray.simulator.random_workloads import FAMILIES, TUNED, draw
from pecan_ray.simulator.run_profile import profile_of_report
from pecan_ray.simulator.what_if import what_if
from pecan_ray.simulator.workload import Workload, changed

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Workers of the deployments that are asked for, of those that ran."""


@dataclass(frozen=True)
class Forecasted:
    """A forecast beside the truth."""

    run: str
    """"fixed" or "auto"."""
    factor: float
    error: float
    """Time of a batch, forecast over true, less 1."""
    held: bool
    """Whether the truth lies in the interval."""
    is_reliable: bool
    width: float
    """Greatest over least time of the interval."""


def report_of(outcome: Outcome, workload: Workload) -> dict[str, Any]:
    """Return the fields that a live run's report would have."""
    end = outcome.end
    return {
        "job": workload.name,
        "seconds": end.seconds,
        "batches": end.batches,
        "waited_s": end.waited,
        "epochs": 1,
        "workers": {},
        "deployments": [[0.0, asdict(outcome.settled)]],
        "timeline": [
            {"deployment": asdict(turn.deployment), "window": asdict(turn.window)} for turn in outcome.timeline
        ],
        "trainers": workload.clients,
    }


def forecasts(seed: int, family: str = FAMILIES[0]) -> Iterator[Forecasted]:
    """Run a workload twice, and compare forecasts for other deployments with what these take."""
    # Nodes that come at once: a run that ends before its workers are there has not shown what they do.
    workload, chance = changed(draw(seed, family), nodes__start_s=1.0), random.Random(seed)
    fixed = Deployment(chance.randint(0, workload.max_local), chance.randint(0, 16))
    if not fixed.workers:
        fixed = Deployment(1, 0)
    evaluator = Evaluator(workload, seed=seed, measured=1500)
    drivers: dict[str, Driver] = {"fixed": FixedDeployment(fixed), "auto": placement(workload, "auto")}
    for run, driver in drivers.items():
        outcome = simulate(SimulatedJob(workload, driver, seed=seed, most_batches=12_000, after_convergence=1500))
        profile = profile_of_report(report_of(outcome, workload))
        here = profile.deployment
        for factor in FACTORS:
            asked = Deployment(
                min(workload.max_local, round(factor * here.local)),
                min(workload.max_remote, round(factor * here.remote)),
            )
            if not asked.workers or (factor != 1 and asked == here):
                continue
            try:
                told = what_if(profile, asked)
            except PlanError:  # no window has shown a worker of this kind
                continue
            true_s = evaluator.price(asked).batch_s
            yield Forecasted(
                run,
                factor,
                told.batch_s / true_s - 1,
                told.low_s * 0.98 <= true_s <= told.high_s * 1.02,
                told.is_reliable,
                told.high_s / told.low_s,
            )


def summary(found: Sequence[Forecasted]) -> str:
    """Return a table."""
    names = ("workers", 8), ("cases", 6), ("held", 6), ("median error", 13), ("worst", 7), ("sure", 6)
    lines = ["run    " + " ".join(name.rjust(width) for name, width in (*names, ("worst sure", 11)))]
    for run in ("fixed", "auto"):
        for factor in FACTORS:
            mine = [one for one in found if (one.run, one.factor) == (run, factor)]
            if not mine:
                continue
            errors, sure = [abs(one.error) for one in mine], [abs(one.error) for one in mine if one.is_reliable]
            lines.append(
                f"{run:6} {factor:>7g}x {len(mine):>6} {sum(one.held for one in mine) / len(mine):>6.0%} "
                f"{median(errors):>13.1%} {max(errors):>7.0%} {len(sure) / len(mine):>6.0%} "
                f"{max(sure, default=0.0):>11.1%}"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.what_if", description=__doc__)
    parser.add_argument("--workloads", type=int, default=60)
    parser.add_argument("--family", choices=FAMILIES, default=FAMILIES[0])
    options = parser.parse_args(arguments)
    seeds = range(TUNED, TUNED + options.workloads)
    print(summary([one for seed in seeds for one in forecasts(seed, options.family)]))


if __name__ == "__main__":
    main()
