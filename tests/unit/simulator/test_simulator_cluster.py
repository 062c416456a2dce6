"""The engine: seeds, nodes that come late, never, or die, jobs that share them, and what it all costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.simulator import (
    Driver,
    FixedDeployment,
    Outcome,
    PoolRule,
    SimulatedJob,
    Simulation,
    Workload,
    placement,
    simulate,
)
from pecan_ray.simulator.workload import build
from tests.long_form import examples


def small(**entries: float) -> Workload:
    """A trainer of 50 ms that one local and two remote workers cannot feed, without noise."""
    values: dict[str, float] = {
        "trainer.step_s": 0.05,
        "local.cpu_s": 1.0,
        "local.cpus": 5.0,
        "remote.cpu_s": 1.0,
        "remote.cpus": 5.0,
        "noise.batch_cv": 0.0,
        "nodes.start_s": 2.0,
        "batches_per_epoch": 1000,
        "max_local": 4,
        "max_remote": 10,
    }
    named = {path.replace("__", "."): value for path, value in entries.items()}
    return build("small", "", Prices(10.0, 1.0), values | named)


def run(
    workload: Workload, mode: str = "auto", seed: int = 0, batches: int = 2000, pool: PoolRule | None = None
) -> Outcome:
    """Run one job for so many batches."""
    return simulate(unending(workload, placement(workload, mode), batches, seed=seed), pool)


def unending(workload: Workload, driver: Driver, batches: int, **more: Any) -> SimulatedJob:
    """Return a job of so many batches that does not end when its policy has converged."""
    return SimulatedJob(workload, driver, most_batches=batches, after_convergence=None, **more)


class Restless:
    """Asks for another deployment after every window, in a fixed sequence."""

    window_batches = 20
    converged = False

    def __init__(self, targets: list[Deployment], removal: str = "drain") -> None:
        self.start = targets[0]
        self._targets, self._turn, self._removal = targets, 0, removal

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        self._turn += 1
        target = self._targets[self._turn % len(self._targets)]
        return Decision(target, "measure", "on and on", "fast" if self._removal == "fast" else "drain")


@pytest.mark.parametrize("mode", ["auto", "pecan"])
def test_the_same_seed_gives_the_same_run_and_another_one_another(mode: str) -> None:
    noisy = small(noise__batch_cv=0.3, trainer__step_cv=0.1, noise__drift_sd=0.02, nodes__start_spread=0.5)
    assert run(noisy, mode, 1) == run(noisy, mode, 1)
    assert run(noisy, mode, 1).timeline != run(noisy, mode, 2).timeline


@pytest.mark.parametrize(
    ("deployment", "batch_s"),
    [(Deployment(1, 0), 0.2), (Deployment(0, 2), 0.1), (Deployment(2, 2), 0.05), (Deployment(4, 4), 0.05)],
)
def test_a_fixed_deployment_takes_what_the_closed_form_says(deployment: Deployment, batch_s: float) -> None:
    workload = small()
    outcome = simulate(SimulatedJob(workload, FixedDeployment(deployment), after_convergence=1000))
    assert outcome.batch_s == pytest.approx(batch_s, rel=0.01)
    per_hour = 10.0 + deployment.remote
    assert outcome.epoch_cost == pytest.approx(1000 * batch_s / 3600 * per_hour, rel=0.01)
    assert outcome.running == outcome.final == deployment


@pytest.mark.parametrize("pool", [PoolRule(workers=0), PoolRule(workers=100, lost_share=1.0)])
def test_where_no_node_ever_comes_local_workers_do_what_they_can(pool: PoolRule) -> None:
    outcome = run(small(max_local=2), "auto", batches=5000, pool=pool)
    assert outcome.running == Deployment(2, 0)
    assert outcome.end.remote_seconds == 0


def test_dead_workers_are_replaced_and_those_of_a_node_die_together() -> None:
    outcome = simulate(unending(small(nodes__life_s=20.0), FixedDeployment(Deployment(0, 6)), 4000))
    assert outcome.killed > 5 and outcome.flows.lost > 0 and outcome.batch_s < 0.08
    spec = unending(small(), FixedDeployment(Deployment(0, 6)), 3000)
    outcome = Simulation([spec], PoolRule(workers=12, slots=3, life_s=30.0), 3).run().jobs[0]
    assert outcome.killed > 0 and outcome.killed % 3 == 0


@given(
    targets=st.lists(st.builds(Deployment, st.integers(0, 4), st.integers(1, 10)), min_size=2, max_size=6),
    removal=st.sampled_from(["drain", "fast"]),
    life_s=st.sampled_from([0.0, 15.0]),
    clients=st.integers(1, 2),
    seed=st.integers(0, 50),
)
@examples(25)
def test_whatever_a_policy_asks_for_batches_are_conserved(
    targets: list[Deployment], removal: str, life_s: float, clients: int, seed: int
) -> None:
    workload = small(noise__batch_cv=0.3, nodes__life_s=life_s, clients=clients, max_local=8, split_batches=4.0)
    flows = simulate(unending(workload, Restless(targets, removal), 600, seed=seed)).flows
    assert flows.produced == flows.consumed + flows.queued + flows.lost
    assert flows.consumed >= 600 * clients
