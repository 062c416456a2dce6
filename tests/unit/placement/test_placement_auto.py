"""Our own search: against exhaustive search on random plants, and each of its promises by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from pecan_ray.placement import AutoPlacement, Decision, Deployment, Prices, PriceTier, Window, expected_workers
from tests.long_form import some_later
from tests.unit.placement.plants import Drive, Meter, Plant, crowded_plant, drive, random_plant

SEEDS = range(200)
FEW = SEEDS[:40]


def placed(plant: Plant, mode: str = "auto") -> AutoPlacement:
    return AutoPlacement(mode, plant.prices, max_local=plant.max_local, max_remote=plant.max_remote)


def search(plant: Plant, seed: int, *, noise: float = 0.0, waits: bool = True, stalls: float = 0.0) -> Drive:
    meter = Meter(plant, seed=seed, noise=noise, stalls=stalls, waits=waits)
    return drive(placed(plant), meter, Deployment(0, 1), after=10)


def excesses(
    make: Callable[[int], Plant], seeds: range, *, noise: float = 0.0, waits: bool = True, stalls: float = 0.0
) -> list[float]:
    """Return by which share the deployments found cost more than the cheapest ones, sorted."""
    found = []
    for seed in seeds:
        plant = make(seed)
        run = search(plant, seed, noise=noise, waits=waits, stalls=stalls)
        assert run.converged, f"seed {seed} has not converged"
        found.append(plant.excess(run.final))
    return sorted(found)


def share_within(found: list[float], limit: float) -> float:
    return sum(excess <= limit for excess in found) / len(found)


@pytest.mark.parametrize("make", some_later([random_plant, crowded_plant], crowded_plant))
@pytest.mark.parametrize(("noise", "stalls"), [pytest.param(0.0, 0.0, marks=pytest.mark.slow), (0.02, 0.05)])
@pytest.mark.parametrize("seeds", some_later([FEW, SEEDS], SEEDS))
def test_it_ends_within_5_percent_of_the_cheapest_deployment(
    make: Callable[[int], Plant], noise: float, stalls: float, seeds: range
) -> None:
    """Random jobs; in the crowded ones the model's form is wrong."""
    found = excesses(make, seeds, noise=noise, stalls=stalls)
    assert share_within(found, 0.05) >= 0.95
    assert found[-1] <= 0.15


@pytest.mark.parametrize("waits", [1.0, 1.0005])
def test_a_trainer_that_only_counts_its_batches_is_placed(waits: float) -> None:
    """Its own step takes no time, and by another clock it even waits for longer than a batch takes."""
    policy, at = placed(Plant(max_local=4, max_remote=4)), Deployment(0, 1)
    for _ in range(200):
        batch_time = 1 / at.workers
        window = Window(batch_time, queue_size=0.0, batches=100, wait_time=batch_time * waits)
        at = policy.decide(window, at).target
    assert policy.converged
    assert at.local == 4


@pytest.mark.parametrize(
    ("make", "noise", "share"),
    [
        (random_plant, 0.0, 0.9),
        pytest.param(random_plant, 0.02, 0.9, marks=pytest.mark.slow),
        pytest.param(crowded_plant, 0.0, 0.9, marks=pytest.mark.slow),
        pytest.param(crowded_plant, 0.02, 0.8, marks=pytest.mark.slow),
    ],
)
def test_it_does_without_a_measured_wait(make: Callable[[int], Plant], noise: float, share: float) -> None:
    """Our clients measure it; batch times alone, with noise and a model of the wrong form, find a little less."""
    found = excesses(make, range(5), noise=noise, waits=False)
    assert share_within(found, 0.05) >= share
    assert found[-1] <= 0.15


def test_it_converges_in_half_the_windows_of_algorithm_1_and_ends_cheaper() -> None:
    """Windows of 100 batches against windows of 500: the batches are a tenth."""
    batches, costs = {}, {}
    for mode, per_window in (("auto", 100), ("pecan", 500)):
        plants = [random_plant(seed) for seed in FEW]
        runs = [
            drive(placed(plant, mode), Meter(plant, batches=per_window), Deployment(0, 1), longest=2000)
            for plant in plants
        ]
        assert all(run.converged for run in runs)
        batches[mode] = sum(run.windows for run in runs) * per_window
        costs[mode] = sum(plant.excess(run.final) for plant, run in zip(plants, runs, strict=True))
    assert batches["auto"] <= batches["pecan"] / 10
    assert costs["auto"] <= costs["pecan"] / 10


def resnet50() -> Plant:
    """ResNet50 v2-8 with AutoOrder in the authors' windows of per-replica batches: an epoch is 10,008 of them.

    Fitted: epoch time 395 s, 13 remote workers alone, 9 local ones (Pecan §6.4).
    """
    step = 395 / 10_008
    return Plant(
        t_model=step,
        t_work=1.0,
        speed_r=1 / step / 12.5,
        speed_l=1 / step / 9.0 * 0.93,
        slowdown=lambda local, _remote: 1 + 0.1 * max(0, local - 9),
    )


def test_converging_costs_less_than_half_of_what_it_costs_pecan_on_resnet50() -> None:
    """Table 4, middle cell: $0.59 an epoch, $3.34 to converge."""
    plant = resnet50()
    runs = {
        mode: drive(placed(plant, mode), Meter(plant, batches=batches), Deployment(0, 1))
        for mode, batches in (("pecan", 500), ("auto", 100))
    }
    epoch = {mode: 10_008 * plant.cost(run.final) / 3600 for mode, run in runs.items()}
    assert epoch["pecan"] == pytest.approx(0.59, abs=0.02)
    assert runs["pecan"].dollars == pytest.approx(3.34, rel=0.15)
    assert runs["auto"].dollars <= runs["pecan"].dollars / 2
    assert epoch["auto"] <= epoch["pecan"]


# --- the promises ------------------------------------------------------------------------------------------


def test_a_trainer_that_does_not_wait_is_given_no_more_workers() -> None:
    plant = Plant(t_model=1.0, t_work=0.5)
    for start in (Deployment(0, 1), Deployment(1, 0), Deployment(2, 3)):
        run = drive(placed(plant), Meter(plant), start, after=100)
        assert all(at.workers <= start.workers for at in run.moves)
        assert run.final.workers == 1, "and those that it does not need are taken away"


def test_a_trainer_that_stalls_itself_is_given_no_more_workers() -> None:
    """The batch time rises by half now and then, the wait does not: nothing to gain."""
    plant = Plant(t_model=0.1, t_work=0.05)
    policy = placed(plant)
    for number in range(200):
        own = 0.15 if number % 7 == 3 else 0.1
        decision = policy.decide(Window(own, 4.0, 100, wait_time=0.0), Deployment(1, 0))
        assert decision.target == Deployment(1, 0)
    assert policy.converged


def test_a_trainer_that_pauses_for_minutes_is_forgiven() -> None:
    """An evaluation makes one window fifty times as long, while searching and while watching."""
    plant = Plant(t_model=0.1, t_work=1.2, max_local=4)
    undisturbed = drive(placed(plant), Meter(plant), Deployment(0, 1)).final
    for paused in range(12):
        policy, meter, at = placed(plant), Meter(plant), Deployment(0, 1)
        for number in range(60):
            window = meter.window(at)
            if number == paused + 1:
                window = replace(window, batch_time=window.batch_time + 5.0)
            at = policy.decide(window, at).target
        assert plant.excess(at) <= 0.05, f"window {paused + 1} paused: {at} instead of {undisturbed}"


def test_local_workers_that_disturb_the_trainer_more_than_they_save_go() -> None:
    plant = Plant(t_model=0.1, t_work=0.4, interference=0.3)
    run = drive(placed(plant), Meter(plant), Deployment(4, 0))
    assert run.final == plant.cheapest() == Deployment(0, 4)


def test_local_workers_that_disturb_less_than_they_save_stay() -> None:
    plant = Plant(t_model=0.1, t_work=0.4, interference=0.01)
    run = drive(placed(plant), Meter(plant), Deployment(0, 4))
    assert run.final == plant.cheapest() == Deployment(4, 0)


def test_of_equally_cheap_deployments_the_one_with_the_fewest_workers_is_kept() -> None:
    """Local workers are free here; Pecan adds all sixteen."""
    plant = Plant(t_model=0.1, t_work=0.3)
    assert drive(placed(plant), Meter(plant), Deployment(0, 1)).final == Deployment(3, 0)
    assert drive(placed(plant), Meter(plant), Deployment(16, 0)).final.local <= 4
    assert drive(placed(plant, "pecan"), Meter(plant), Deployment(0, 1)).final == Deployment(16, 0)


def test_a_hint_starts_the_search_near_the_answer() -> None:
    plant = Plant(t_model=0.1, t_work=2.4, max_local=8)
    workers = expected_workers(trainer_rate=10.0, worker_rate=10 / 24)
    policy = AutoPlacement(max_local=8, expected_workers=workers)
    assert policy.start == Deployment(8, 16)
    run = drive(policy, Meter(plant), policy.start)
    assert run.final == plant.cheapest() == Deployment(8, 16)
    cold = drive(placed(plant), Meter(plant), Deployment(0, 1))
    assert plant.excess(cold.final) <= 0.03
    assert run.dollars < cold.dollars / 3


def test_a_wrong_hint_is_corrected() -> None:
    plant = Plant(t_model=0.1, t_work=2.4, max_local=8)
    for wrong in (1, 4, 60):
        policy = AutoPlacement(max_local=8, expected_workers=wrong)
        assert plant.excess(drive(policy, Meter(plant), policy.start).final) <= 0.05
    policy = AutoPlacement(max_local=8, expected_remote=50)
    assert policy.start == Deployment(0, 50)
    assert plant.excess(drive(policy, Meter(plant), policy.start).final) <= 0.05


def test_a_job_that_already_runs_is_sent_to_where_it_is_expected_to_end() -> None:
    policy = AutoPlacement(max_local=8, expected_workers=12)
    decision = policy.decide(Window(1.0, 0.0, 100, wait_time=0.9), Deployment(0, 1))
    assert decision.target == Deployment(8, 4)


def test_noisy_windows_are_put_together_until_they_suffice() -> None:
    plant = Plant(t_model=0.1, t_work=0.5)
    windows = {
        noise: sum(drive(placed(plant), Meter(plant, seed, noise), Deployment(0, 1)).windows for seed in range(20))
        for noise in (0.0, 0.05)
    }
    assert windows[0.0] < windows[0.05] < 8 * windows[0.0]


def test_it_stays_once_it_has_converged_although_windows_are_noisy() -> None:
    """Audits try something else now and then, one in these windows: it costs less than a percent."""
    changes, dearer, jobs = 0, 0.0, 2
    for seed in range(jobs):
        plant = random_plant(seed)
        run = drive(placed(plant), Meter(plant, seed, noise=0.05), Deployment(0, 1), after=400)
        tail = [decision.target for decision in run.decisions[-300:]]
        changes += sum(before != after for before, after in pairwise(tail))
        dearer += sum(plant.excess(at) for at in tail) / len(tail)
    assert changes <= 3 * jobs, "300 windows each"
    assert dearer / jobs <= 0.01


@pytest.mark.parametrize("faster", [0.5, 2.0])
def test_it_follows_a_trainer_that_becomes_faster_or_slower(faster: float) -> None:
    for seed in range(10):
        plant = random_plant(seed)
        policy = placed(plant)
        first = drive(policy, Meter(plant, seed), Deployment(0, 1), after=20)
        changed = replace(plant, t_model=plant.t_model / faster)
        second = drive(policy, Meter(changed, seed), first.final, after=60)
        assert changed.excess(second.final) <= 0.06, f"seed {seed}: {second.final}, not {changed.cheapest()}"


def test_it_follows_workers_that_become_slower() -> None:
    for seed in range(10):
        plant = random_plant(seed)
        policy = placed(plant)
        first = drive(policy, Meter(plant, seed), Deployment(0, 1), after=20)
        changed = replace(plant, t_work=plant.t_work * 1.7)
        second = drive(policy, Meter(changed, seed), first.final, after=60)
        assert changed.excess(second.final) <= 0.06, f"seed {seed}: {second.final}, not {changed.cheapest()}"


def test_a_longer_queue_tells_of_workers_that_became_faster() -> None:
    plant = Plant(t_model=0.1, t_work=1.2, max_local=4)
    policy = placed(plant)
    first = drive(policy, Meter(plant), Deployment(0, 1), after=20)
    assert first.final == Deployment(4, 8)
    changed = replace(plant, t_work=0.7)
    assert changed.batch_time(first.final) == plant.batch_time(first.final), "the batch time tells nothing"
    assert drive(policy, Meter(changed), first.final, after=60).final == changed.cheapest() == Deployment(4, 3)


def test_the_budget_of_an_hour_is_kept() -> None:
    plant = Plant(t_model=0.1, t_work=3.0, max_local=4)
    policy = AutoPlacement(max_local=4, max_per_hour=4.96 + 10.5 * 0.42)
    run = drive(policy, Meter(plant), Deployment(0, 1))
    assert run.final == Deployment(4, 10)
    assert all(plant.prices.per_hour(1, at.remote) <= 4.96 + 10.5 * 0.42 for at in run.moves)


def test_cheap_nodes_are_used_where_dear_ones_do_not_pay() -> None:
    """Twelve workers would be needed; more than the four spot nodes do not pay."""
    prices = Prices(1.0, 2.0, (PriceTier("spot", 0.05, 4),))
    plant = Plant(t_model=0.1, t_work=1.2, max_local=2, prices=prices)
    run = drive(placed(plant), Meter(plant), Deployment(0, 1))
    assert run.final == plant.cheapest() == Deployment(2, 4)
    assert prices.fill(run.final.remote) == {"spot": 4}


def test_the_cpus_of_the_trainers_hosts_are_shared() -> None:
    policy = AutoPlacement(max_local=64, clients=2, max_local_cpu_fraction=0.5, host_cpus=96, cpus_per_worker=8)
    assert policy.limits.max_local == 2 * 6
    run = drive(policy, Meter(Plant(t_model=0.1, t_work=5.0)), Deployment(0, 1))
    assert max(at.local for at in run.moves) == 12


def test_a_host_without_a_price_is_not_left_to_starve() -> None:
    for prices in (Prices(0.0, 0.42), Prices(0.0, 0.0)):
        plant = Plant(t_model=0.1, t_work=1.2, max_local=4, prices=prices)
        run = drive(placed(plant), Meter(plant), Deployment(0, 1))
        assert plant.batch_time(run.final) <= 1.05 * plant.t_model
        assert run.final.workers <= 13


def test_what_never_comes_is_done_without_and_said() -> None:
    plant = Plant(t_model=0.1, t_work=1.2, max_local=4)
    policy = AutoPlacement(max_local=4, patience=5)
    meter, at, told = Meter(plant), Deployment(0, 1), list[Decision]()
    for _ in range(40):
        decision = policy.decide(meter.window(at), at)
        at = Deployment(decision.target.local, min(decision.target.remote, 3))
        told += [decision] if decision.phase == "settle_for_less" else []
    assert at == Deployment(4, 3) and policy.converged
    assert len(told) == 1
    assert "so settle for what there is" in told[0].reason


def test_equal_windows_give_equal_decisions() -> None:
    def decisions() -> list[Decision]:
        plant = crowded_plant(7)
        return drive(placed(plant), Meter(plant, 7, noise=0.05, stalls=0.1), Deployment(0, 1), after=50).decisions

    assert decisions() == decisions()


def test_every_reason_is_a_sentence_with_numbers() -> None:
    plant = random_plant(3)
    run = drive(placed(plant), Meter(plant, 3, noise=0.03), Deployment(0, 1), after=5)
    for decision in run.decisions:
        assert decision.reason.endswith(".") and any(letter.isdigit() for letter in decision.reason)
        assert "nan" not in decision.reason and not math.isnan(float(decision.target.workers))
