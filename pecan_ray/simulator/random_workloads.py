"""Workloads drawn from ranges, and how near a policy comes to the cheapest deployment of each.

Ranges: see `draw`.  Every range is wider than what the papers' workloads span; seeds below TUNED are for tuning, the
others for judging.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.client import client_of
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.grid_search import Evaluator
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.noise import generator
from pecan_ray.simulator.policy_driver import driver_of
from pecan_ray.simulator.workload import Workload, build

TUNED = 10_000
"""Seeds from here on judge; those below may be tuned on."""
DRAWN_LATER = 20_000
"""Seeds from here on judge as well: those from TUNED on had been scored once before the search was changed last."""
NEAR = 0.05
"""A policy must end within this share of the cheapest deployment's cost nearly always,"""
FAR = 0.15
"""and within this one always."""
# Batches for which a converged deployment is watched.
AFTER = 10000


FAMILIES = ("plain", "several trainers", "running ahead")
"""One trainer that asks for a batch when it is done with the last one; two to eight that step together; one whose
program hands batches over before the accelerators are done with them."""


def draw(seed: int, family: str = "plain") -> Workload:
    """Draw a workload of a family."""
    if family not in FAMILIES:
        raise PlanError(f"there is no family {family!r} of random workloads: choose one of {', '.join(FAMILIES)}.")
    rng = generator(seed, "workload")
    run_ahead = family == "running ahead"

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    step = between(0.01, 1.0)
    needed = between(0.5, 30.0)
    cpus_local, cpus_remote = float(rng.integers(2, 17)), float(rng.integers(4, 17))
    work = needed * step * cpus_remote
    host = float(rng.choice([16, 32, 64, 96, 128]))
    clients = int(rng.integers(2, 9)) if family == "several trainers" else 1
    # What the host itself does for a batch leaves some of its CPUs for local workers in every case.
    own = host * step * rng.uniform(0.02, 0.3)
    entries = {
        "trainer.step_s": step,
        "trainer.step_cv": rng.uniform(0.0, 0.15),
        "trainer.disturbance": float(rng.choice([0.0, rng.uniform(0.0, 0.02)])),
        "trainer.overload": rng.uniform(0.0, 0.3),
        "trainer.run_ahead": int(rng.integers(2, 17)) if run_ahead else 0,
        "trainer.dispatch_s": 0.02 * step if run_ahead else 0.0,
        "trainer.sync_every": int(rng.choice([0, 200, 1000])) if run_ahead else 0,
        "trainer.pause_every": int(rng.choice([0, 250])),
        "trainer.pause_s": 8 * step,
        "host.cpus": host,
        "host.load_cpu_s": own / 3,
        "host.receive_cpu_s": own * 2 / 3,
        "local.cpu_s": work * rng.uniform(0.6, 1.3),
        "local.cpus": cpus_local,
        "local.crowding": float(rng.choice([0.0, rng.uniform(0.0, 0.05)])),
        "remote.cpu_s": work,
        "remote.cpus": cpus_remote,
        "nodes.start_s": between(1.0, 120.0),
        "nodes.start_spread": 0.3,
        "nodes.speed_cv": float(rng.choice([0.0, 0.05])),
        "noise.batch_cv": rng.uniform(0.05, 0.4),
        "noise.drift_sd": rng.uniform(0.0, 0.03),
        "clients": clients,
        "batches_per_epoch": 5000,
        "split_batches": between(1.0, 20.0),
        "client_buffer": int(rng.integers(4, 33)),
        "max_local": clients * max(2, min(16, int(host // cpus_local))),
        "max_remote": 64,
    }
    entries["local.ordered_cpu_s"], entries["remote.ordered_cpu_s"] = entries["local.cpu_s"], entries["remote.cpu_s"]
    host_price = between(0.5, 40.0)
    return build(f"random-{seed}", "", Prices(host_price, host_price * between(0.01, 0.3)), entries)


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
