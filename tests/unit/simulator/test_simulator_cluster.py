"""The engine: seeds, nodes that come late, never, or die, jobs that share them, and what it all costs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.simulator import (
    LIVE,
    RELEASED,
    ClientRule,
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
from pecan_ray.simulator.workload import build, changed
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


@pytest.mark.parametrize("mode", ["auto", "pecan", "pecan-code", "cachew"])
def test_the_same_seed_gives_the_same_run_and_another_one_another(mode: str) -> None:
    noisy = small(noise__batch_cv=0.3, trainer__step_cv=0.1, noise__drift_sd=0.02, nodes__start_spread=0.5)
    first, again, other = run(noisy, mode, 1), run(noisy, mode, 1), run(noisy, mode, 2)
    assert first == again
    assert first.timeline != other.timeline


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


def test_windows_say_what_the_live_client_would_and_count_no_change_of_workers() -> None:
    outcome = simulate(SimulatedJob(small(), FixedDeployment(Deployment(0, 2)), after_convergence=1000))
    turn = outcome.timeline[-1]
    assert turn.window.batch_time == pytest.approx(0.1, rel=0.01)
    assert turn.window.wait_time == pytest.approx(0.05, rel=0.05)
    assert turn.window.cpu == pytest.approx(1.0, abs=0.02)
    assert turn.window.queue_size == 0.5, "two workers in step: every second batch is there when the trainer asks"
    assert turn.window.invalid_reason() == ""
    assert not any(turn.window.touched for turn in outcome.timeline), "nothing is measured before workers deliver"
    driver = Restless([Deployment(0, 3), Deployment(0, 5), Deployment(0, 2)])
    slow = small(nodes__start_s=20.0, split_batches=40.0)
    timeline = simulate(unending(slow, driver, 1500)).timeline
    assert any(turn.window.touched for turn in timeline)
    assert any(not turn.window.touched for turn in timeline)
    driver = Restless([Deployment(0, 4), Deployment(0, 5)])
    quick = small(nodes__start_s=0.5)
    outcome = simulate(unending(quick, driver, 1000, client=RELEASED))
    assert not any(turn.window.touched for turn in outcome.timeline)
    spans_between = [after.batches - before.batches for before, after in itertools.pairwise(outcome.timeline)]
    assert min(spans_between) >= 150 + 20


@pytest.mark.parametrize("pool", [PoolRule(workers=0), PoolRule(workers=100, lost_share=1.0)])
def test_where_no_node_ever_comes_local_workers_do_what_they_can(pool: PoolRule) -> None:
    outcome = run(small(max_local=2), "auto", batches=5000, pool=pool)
    assert outcome.running == Deployment(2, 0)
    assert outcome.end.remote_seconds == 0


def test_dead_workers_are_replaced_those_of_a_node_die_together_and_no_batch_is_lost_unnoticed() -> None:
    mortal = small(nodes__life_s=20.0, noise__batch_cv=0.2)
    outcome = simulate(unending(mortal, FixedDeployment(Deployment(0, 6)), 4000))
    assert outcome.killed > 5
    assert outcome.end.batches >= 4000
    flows = outcome.flows
    assert flows.lost > 0
    assert flows.produced == flows.consumed + flows.queued + flows.lost
    assert outcome.batch_s < 0.08
    spec = unending(small(), FixedDeployment(Deployment(0, 6)), 3000)
    outcome = Simulation([spec], PoolRule(workers=12, slots=3, life_s=30.0), 3).run().jobs[0]
    assert outcome.killed > 0
    assert outcome.killed % 3 == 0


def test_jobs_share_a_pool_and_a_later_one_is_served_when_another_ends() -> None:
    workload = changed(small(), max_local=0)
    four = FixedDeployment(Deployment(0, 4))
    specs = [unending(workload, four, 600, seed=n, starts_s=10.0 * n) for n in range(2)]
    both = Simulation(specs, PoolRule(workers=4)).run()
    assert both.most_workers == 4
    first, second = both.jobs
    assert min(first.flows.consumed, second.flows.consumed) >= 600
    assert second.timeline[0].seconds + 10.0 > first.end.seconds
    workload = small(nodes__start_s=3.0)
    one = unending(workload, FixedDeployment(Deployment(0, 5)), 400)
    two = unending(workload, FixedDeployment(Deployment(1, 3)), 4000, seed=1)
    first, second = Simulation([one, two], PoolRule(workers=5)).run().jobs
    grown = next(turn for turn in second.timeline if turn.deployment.remote == 3)
    assert first.end.seconds + 3.0 <= grown.seconds <= first.end.seconds + 3.0 + 10.0
    with pytest.raises(PlanError, match="at least one job"):
        Simulation([], PoolRule(1))


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_several_trainers_step_together_and_share_all_workers(clients: int) -> None:
    workload = small(clients=clients, max_local=4 * clients)
    outcome = simulate(SimulatedJob(workload, FixedDeployment(Deployment(0, 2)), after_convergence=500))
    assert outcome.batch_s == pytest.approx(0.1 * clients, rel=0.02)
    assert outcome.flows.consumed == clients * outcome.end.batches
    assert outcome.epoch_cost == pytest.approx(1000 * outcome.batch_s / 3600 * (10.0 * clients + 2), rel=0.01)


def test_the_host_is_shared_by_local_workers_loading_and_receiving() -> None:
    tight = small(host__cpus=12.0, host__load_cpu_s=0.02, host__receive_cpu_s=0.1, trainer__step_s=0.01)
    alone = simulate(SimulatedJob(tight, FixedDeployment(Deployment(4, 0)), after_convergence=800))
    beside = simulate(SimulatedJob(tight, FixedDeployment(Deployment(4, 8)), after_convergence=4000))
    # 12 CPUs less 0.02 s for every batch make 11.76 batches a second of one CPU second each.
    assert 1 / alone.batch_s == pytest.approx(12 / 1.02, rel=0.02)
    made_here = (1 - beside.received_share) / beside.batch_s
    assert made_here == pytest.approx(
        12 - 0.02 / beside.batch_s - 0.1 * beside.received_share / beside.batch_s, rel=0.02
    )


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


@pytest.mark.parametrize("client", [LIVE, RELEASED], ids=["live", "released"])
def test_many_jobs_use_no_more_nodes_than_there_are(client: ClientRule) -> None:
    workload = small(noise__batch_cv=0.2, noise__drift_sd=0.01)
    specs = [
        SimulatedJob(workload, placement(workload, mode), seed=n, client=client, starts_s=n, most_batches=1500)
        for n, mode in enumerate(["auto", "pecan-code", "cachew", "pecan"] * 5)
    ]
    found = Simulation(specs, PoolRule(workers=30, slots=2, life_s=200.0), 1).run()
    assert found.most_workers <= 30
    assert found.events > 3 * 20 * 1000
    for outcome in found.jobs:
        assert outcome.flows.produced == outcome.flows.consumed + outcome.flows.queued + outcome.flows.lost
        for moments in ([turn.seconds for turn in outcome.timeline], [turn.batches for turn in outcome.timeline]):
            assert moments == sorted(moments)
