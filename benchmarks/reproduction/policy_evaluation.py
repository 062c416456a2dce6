"""How near a policy comes to the cheapest deployment of random workloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.client import client_of
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.grid_search import Evaluator
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.policy_driver import driver_of
from pecan_ray.simulator.random_workloads import AFTER
from pecan_ray.simulator.workload import Workload

DRAWN_LATER = 20_000
"""Seeds from here on judge as well: those from TUNED on had been scored once before the search was changed last."""
NEAR = 0.05
"""A policy must end within this share of the cheapest deployment's cost nearly always,"""
FAR = 0.15
"""and within this one always."""


@dataclass(frozen=True)
class PolicyEvaluation:
    """One policy on one workload."""

    seed: int
    mode: str
    final: Deployment
    optimal: Deployment
    excess: float
    """Cost of an epoch with the deployment that it settled on last over that with the cheapest one, less 1."""
    cost: float
    """What an epoch did cost after convergence, with all that the policy still tried, over the cheapest, less 1."""
    converged: bool
    convergence_epochs: float
    """Cost until convergence, in epochs of the cheapest deployment."""
    batches: int
    """Until convergence."""


def evaluate_policies(
    workload: Workload, modes: Iterable[str], seed: int, threshold: float = 0.03
) -> list[PolicyEvaluation]:
    """Run policies on a workload, and compare each with exhaustive search."""
    evaluator = Evaluator(workload, seed=seed)
    best = evaluator.optimal()
    verdicts = []
    for mode in modes:
        spec = SimulatedJob(
            workload,
            driver_of(workload, mode, threshold),
            seed=seed,
            client=client_of(mode),
            most_batches=60_000,
            after_convergence=AFTER,
        )
        outcome = simulate(spec)
        final = evaluator.price(outcome.settled)
        verdicts.append(
            PolicyEvaluation(
                seed,
                mode,
                outcome.settled,
                best.deployment,
                final.epoch_cost / best.epoch_cost - 1,
                outcome.epoch_cost / best.epoch_cost - 1,
                outcome.converged is not None,
                outcome.convergence_cost / best.epoch_cost,
                (outcome.converged or outcome.end).batches,
            )
        )
    return verdicts


@dataclass(frozen=True)
class Score:
    """A policy over many workloads."""

    mode: str
    workloads: int
    near: float
    """Share within NEAR of the cheapest."""
    far: float
    """Share within FAR of it."""
    mean_excess: float
    worst_excess: float
    mean_paid: float
    unconverged: int
    convergence_epochs: float
    """Mean cost until convergence, in epochs of the cheapest deployment."""


def score(verdicts: Sequence[PolicyEvaluation]) -> dict[str, Score]:
    """Sum verdicts up by mode."""
    scores = {}
    for mode in dict.fromkeys(comparison_result.mode for comparison_result in verdicts):
        mine = [comparison_result for comparison_result in verdicts if comparison_result.mode == mode]
        scores[mode] = Score(
            mode,
            len(mine),
            fmean(comparison_result.excess <= NEAR for comparison_result in mine),
            fmean(comparison_result.excess <= FAR for comparison_result in mine),
            fmean(comparison_result.excess for comparison_result in mine),
            max(comparison_result.excess for comparison_result in mine),
            fmean(comparison_result.cost for comparison_result in mine),
            sum(not comparison_result.converged for comparison_result in mine),
            fmean(comparison_result.convergence_epochs for comparison_result in mine),
        )
    return scores
