"""Runs of the simulator as the papers ran their systems: policy, window, threshold, client, seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.client import LIVE, ClientRule, T, X, client_of, released
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.command import AFTER
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.outcome import Outcome, mean
from pecan_ray.simulator.policy_driver import Driver, FixedDeployment, driver_of
from pecan_ray.simulator.workload import Workload

SEEDS = tuple(range(20))
MOST_BATCHES = 100_000
COLLOCATED = Deployment(1, 0)
"""tf.data in the trainer's process."""
FASTFLOW = Deployment(2, 2)
"""FastFlow as Pecan §6.1 provisions it."""


@dataclass(frozen=True)
class Setup:
    """How a configuration is run."""

    mode: str
    """Mode of AutoPlacement, or "fixed"."""
    ordered: bool = False
    deployment: Deployment = COLLOCATED
    """What a fixed configuration runs."""


SETUPS = {
    "Cachew": Setup("cachew"),
    "Cachew + AutoOrder": Setup("cachew", ordered=True),
    "AutoPlacement": Setup("pecan-cost"),
    "AutoPlacement + AutoOrder": Setup("pecan-cost", ordered=True),
    "collocated": Setup("fixed"),
    "FastFlow": Setup("fixed", deployment=FASTFLOW),
}
"""`pecan-cost` is the released AutoPlacement with its option that weighs costs, as the paper describes it and as its
figures suggest; `pecan-code` is the same without, `pecan` is Algorithm 1 as printed."""


def repeat(
    workload: Workload,
    driver: Callable[[], Driver],
    *,
    ordered: bool = False,
    client: ClientRule = LIVE,
    seeds: Sequence[int] = SEEDS,
    after: int = AFTER,
) -> list[Outcome]:
    """Run a workload once for every seed, each time with a new policy."""
    return [
        simulate(
            SimulatedJob(
                workload,
                driver(),
                ordered=ordered,
                seed=seed,
                client=client,
                most_batches=MOST_BATCHES,
                after_convergence=after,
            )
        )
        for seed in seeds
    ]


def run_mode(
    workload: Workload,
    mode: str,
    *,
    ordered: bool = False,
    threshold: float = T,
    window: int = X,
    seeds: Sequence[int] = SEEDS,
    after: int = AFTER,
) -> list[Outcome]:
    """Run a mode of AutoPlacement, or the baseline "hpa"."""

    def driver() -> Driver:
        return driver_of(workload, mode, threshold)

    return repeat(workload, driver, ordered=ordered, client=client_of(mode, window), seeds=seeds, after=after)


def run_setup(workload: Workload, setup: Setup, seeds: Sequence[int] = SEEDS) -> list[Outcome]:
    """Run a configuration of Figure 6."""
    after = min(AFTER, 20 * workload.batches_per_epoch)
    if setup.mode == "fixed":
        return run_fixed(workload, setup.deployment, ordered=setup.ordered, seeds=seeds[:3])
    return run_mode(workload, setup.mode, ordered=setup.ordered, seeds=seeds, after=after)


def run_fixed(
    workload: Workload,
    deployment: Deployment,
    *,
    ordered: bool = False,
    seeds: Sequence[int] = SEEDS[:3],
    batches: int = 4000,
) -> list[Outcome]:
    """Run a deployment that stays; its first window is left out of the pace."""
    return repeat(
        workload, lambda: FixedDeployment(deployment), ordered=ordered, seeds=seeds, after=batches, client=released()
    )


def epoch_seconds(workload: Workload, outcomes: Sequence[Outcome]) -> float:
    """Return the mean time of an epoch."""
    return workload.batches_per_epoch * mean(outcomes, lambda outcome: outcome.batch_s)
