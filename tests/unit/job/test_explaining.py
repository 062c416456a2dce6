"""Deadlines as paces, what jobs have cost, why AutoPlacement runs what it runs, and what it does next."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest

from pecan_ray.job import events
from pecan_ray.job.deadline_budget import FEWEST_LEFT, RESERVE, SHORTEST_S, DeadlineBudget
from pecan_ray.job.job_cost import cost_between, cost_by_epoch, cost_by_operator
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.next_step import next_step, next_step_of
from pecan_ray.job.placement_comparison import compare
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobStats
from pecan_ray.job.windows import StepTotals
from pecan_ray.observe.placement import explain_placement, explain_with_next_step
from pecan_ray.observe.report import Report, placement_so_far
from pecan_ray.options import AutoWorkers
from pecan_ray.placement import AutoPlacement, Prices
from pecan_ray.placement.objective import COST, NO_WAIT, Objective
from pecan_ray.plan.prices import PriceTier
from pecan_ray.plan.windows import Decision, Deployment, Window
from tests.unit.job.job_rig import JobRig
from tests.unit.placement.plants import ROWS, Plant, seen

PRICES = Prices(3.6, 0.36)
HOUR_LONG = [(0.0, Deployment(1, 0)), (1800.0, Deployment(1, 2))]
"""Half an hour without remote workers, half an hour with two."""


# --- deadlines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reports", "now", "longest_s"),
    [
        ([(0, StepTotals(1, 1.0), 100.0), (0, StepTotals(200, 300.0), 399.0)], 399.0, 601 / 800),
        ([(0, StepTotals(1, 0.0), 0.0), (0, StepTotals(400, 200.0), 400.0)], 400.0, 600 * 0.5 / 600),
        ([(0, StepTotals(400, 0.0), 0.0), (1, StepTotals(200, 0.0), 0.0)], 200.0, 800 / 800),
    ],
    ids=[
        "by the time that is left",
        "a trainer evaluates half of its time",
        "by the slowest trainer",
    ],
)
def test_a_pace_is_what_is_left_of_the_time_for_each_batch_that_is_left(
    reports: list[tuple[int, StepTotals, float]], now: float, longest_s: float
) -> None:
    deadline_budget = DeadlineBudget(1000.0, epochs=2, epoch_batches=500)
    for rank, totals, at in reports:
        deadline_budget.report(rank, totals, at)
    assert deadline_budget.longest_s(now, 0) == pytest.approx((1 - RESERVE) * longest_s, rel=0.01)
    assert not deadline_budget.take_messages()


@pytest.mark.parametrize(("epochs", "counts"), [(2, True), (None, False)])
def test_a_deadline_counts_for_a_job_whose_epochs_are_told(epochs: int | None, counts: bool) -> None:
    rig = JobRig(LedgerShape(epochs=epochs), AutoWorkers(), deadline_s=60.0)
    rig.come()
    assert (rig.job.placement.deadline_budget is not None) is counts


def test_a_deadline_that_is_over_is_said_once_and_at_the_very_end_the_pace_stays() -> None:
    deadline_budget = DeadlineBudget(10.0, epochs=1, epoch_batches=1000)
    assert [deadline_budget.longest_s(20.0, 0), deadline_budget.longest_s(21.0, 0)] == [SHORTEST_S, SHORTEST_S]
    assert len(deadline_budget.take_messages()) == 1, "nothing is fast enough"
    deadline_budget = DeadlineBudget(10.0, epochs=1, epoch_batches=100)
    before = deadline_budget.longest_s(1.0, 0)
    deadline_budget.report(0, StepTotals(101 - FEWEST_LEFT, 1.0), 9.0)
    assert deadline_budget.longest_s(9.0, 0) == before


def test_a_length_that_is_not_known_is_said_and_learned_from_a_part_of_the_first_epoch() -> None:
    deadline_budget = DeadlineBudget(100.0, epochs=4, epoch_batches=None)
    assert "is not known yet" in deadline_budget.take_messages()[0]
    deadline_budget.report(0, StepTotals(9, 0.9), 1.0)
    assert deadline_budget.longest_s(1.0, 0.09) is None
    deadline_budget.report(0, StepTotals(50, 5.0), 5.1)
    assert deadline_budget.longest_s(5.1, 0.5) == pytest.approx((1 - RESERVE) * 94.9 / 350, rel=0.01)
    assert "about 100 batches" in deadline_budget.take_messages()[0]


# --- money -------------------------------------------------------------------------------------------------


def test_a_job_costs_what_ran_and_when_and_epochs_and_operators_have_their_parts_of_that() -> None:
    cost = cost_between(HOUR_LONG, PRICES, 1, until=3600.0, waiting=0.5)
    assert (cost.host, cost.remote, cost.wasted_share) == pytest.approx((3.6, 0.36, 0.5))
    parts = cost_by_epoch(HOUR_LONG, PRICES, 1, (1000.0, 2700.0, 3600.0))
    assert [part.remote for part in parts] == pytest.approx([0.0, 0.18, 0.18])
    assert sum(part.total for part in parts) == pytest.approx(cost.total)
    assert cost_by_epoch(HOUR_LONG, PRICES, 1, ()) == ()
    shares = cost_by_operator(cost, [("decode", 0.3), ("crop", 0.1)])
    assert shares == pytest.approx({"decode": 0.75 * 2.16, "crop": 0.25 * 2.16})
    assert cost_by_operator(cost, []) == {}
    dear = cost_between(HOUR_LONG, PRICES, 1, [0.0, 10.0], until=3600.0)
    assert dear.remote == pytest.approx(10.0 / 2), "by the nodes that its workers were on"


def test_a_jobs_controller_knows_what_epochs_and_operators_have_cost() -> None:
    """Two trainers, one of which waits half of its time: operators and waiting are known where metrics are counted."""
    rig = JobRig(LedgerShape(epochs=None, world_size=2), AutoWorkers(max_remote=0, prices=PRICES), ordered=False)
    rig.begin()
    rig.handle(events.OrderKnown(changed=False, op_seconds=(("decode", 3.0), ("crop", 1.0))), after=1800.0)
    rig.handle(events.OrderKnown(changed=False, op_seconds=(("other", 1.0),)))
    for rank, waited_s in enumerate((0.0, 900.0)):
        rig.report(rank, progress=TrainerProgress(elapsed_s=1800.0, waited_s=waited_s))
    assert rig.job.placement.op_seconds == rig.job.stats(rig.now).op_seconds == (("decode", 3.0), ("crop", 1.0))
    cost, late = rig.job.cost(1800.0), rig.job.cost(1800.0, since=1350.0)
    assert cost is not None and late is not None
    assert (cost.host, cost.wasted_share) == pytest.approx((1.8, 0.25))
    assert late.host == pytest.approx(0.45)
    assert cost_by_operator(cost, rig.job.placement.op_seconds) == pytest.approx({"decode": 0.3375, "crop": 0.1125})


# --- why -----------------------------------------------------------------------------------------------------


def step(local: int, remote: int, batch_s: float, wait_s: float, at_s: float, phase: str = "measure") -> PlacementStep:
    ran = Deployment(local, remote)
    window = Window(batch_s, 0.0, 100, wait_s)
    return PlacementStep(at_s, window, ran, Decision(Deployment(1, 2), phase, "it is cheap enough."))


TIMELINE = (
    step(1, 0, 0.3, 0.2, 5.0),
    step(1, 1, 0.15, 0.05, 10.0),
    step(9, 9, 1.0, 0.9, 12.0, "discarded"),
    step(1, 2, 0.1, 0.0, 15.0),
    step(1, 2, 0.1, 0.0, 20.0, "converged"),
)


def facts(objective: Objective = COST, prices: Prices | None = None) -> JobStats:
    policy = AutoPlacement(prices=PRICES, objective=objective)
    return JobStats(
        "job",
        seconds=20.0,
        deployments=((0.0, Deployment(1, 2)),),
        timeline=TIMELINE,
        comparison=compare(TIMELINE, policy),
        prices=prices,
        epoch_ends=(10.0, 20.0),
    )


def test_it_is_said_which_deployments_were_compared_and_why_the_others_lost() -> None:
    assert "; in the newest 4 of the others the trainer waited 38%" in placement_so_far(TIMELINE)
    told = explain_placement(facts()).splitlines()
    assert told[0] == "job job: AutoPlacement looks for the cheapest deployment."
    assert told[1] == "  it wants 1 local + 2 remote (measure): it is cheap enough.".replace("measure", "converged")
    assert [line.split("  ")[1] for line in told[3:]] == [
        "1 local + 2 remote",
        "1 local + 1 remote",
        "1 local + 0 remote",
    ]
    assert told[3].endswith("runs")
    assert told[4].endswith("lost: 37.5% dearer")
    assert "2 windows, the last at 20 s" in told[3]


@pytest.mark.parametrize(("batch_transfer", "best"), [(0.0, (1, 2)), (0.5, (1, 2)), (1.0, (1, 0))])
def test_what_remote_workers_send_counts_where_deployments_are_compared(
    batch_transfer: float, best: tuple[int, int]
) -> None:
    """A batch costs 0.432 beside two remote workers, and 1.08 without one, in $ an hour for a batch a second."""
    policy = AutoPlacement(prices=PRICES)
    policy.setting = replace(policy.setting, batch_transfer=batch_transfer)
    assert compare(TIMELINE, policy).others[0].comparison.projected.deployment == Deployment(*best)


def test_without_prices_nobody_speaks_of_dollars() -> None:
    assert "$" not in explain_placement(facts())
    assert "$" not in str(Report.of_job(facts(), TrainerProgress(elapsed_s=20.0), 1.0))
    priced = facts(prices=PRICES)
    assert "least, $0.12 per 1000 batches" in explain_placement(priced)
    sampled = replace(priced, op_seconds=(("decode", 1.0),))
    report = Report.of_job(sampled, TrainerProgress(elapsed_s=20.0, waited_s=5.0), 1.0)
    assert "epochs cost $0.0120, $0.0120" in str(report)
    assert "by operator: decode $" in str(report)


@pytest.mark.parametrize(
    ("objective", "wanted", "lost"),
    [
        (NO_WAIT, "beside which the trainer waits for less than 2% of its time", "the trainer waits for 33.3% of its"),
        (Objective(longest_s=0.12), "that ends in time, with at most 120 ms a batch", "a batch may take 120 ms if the"),
    ],
)
def test_what_was_wanted_is_what_the_others_lost_by(objective: Objective, wanted: str, lost: str) -> None:
    told = explain_placement(facts(objective))
    assert wanted in told
    assert f"lost: {lost}" in told


def test_fixed_numbers_of_workers_were_compared_with_nothing() -> None:
    fixed = JobStats("job", deployments=((0.0, Deployment(2, 0)),))
    assert "2 local + 0 remote run; AutoPlacement decides nothing" in explain_placement(fixed)
    assert "is not known: it is gone" in explain_placement(replace(fixed, lost="it is gone"))


# --- a whole job -------------------------------------------------------------------------------------------


def hurried(plant: Plant, deadline_s: float, batches: int, known: bool) -> tuple[float, float]:
    """Run two epochs of so many batches in all; return when the job ended, and what it cost."""
    policy = AutoPlacement(prices=plant.prices, max_local=plant.max_local, max_remote=plant.max_remote)
    deadline_budget = DeadlineBudget(deadline_s, 2, batches // 2 if known else None)
    at, now, done, cost, room = policy.start, 0.0, 0.0, 0.0, Deployment(plant.max_local, plant.max_remote)
    while done < batches:
        longest_s = deadline_budget.longest_s(now, 2 * done / batches)
        if longest_s is not None:
            policy.objective = Objective(longest_s=longest_s)
        o = seen(plant, at, room, math.inf if longest_s is None else ROWS / longest_s)
        now, done = now + o.dt, done + o.rows / ROWS
        cost += o.dt * plant.prices.per_hour(1, at.remote)
        deadline_budget.report(0, StepTotals(int(done), now), now)
        at = policy.look(o, now).target
    return now, cost


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("pace", [0.12, 0.15, 0.2])
def test_a_job_ends_before_its_deadline_and_not_at_any_price(pace: float, known: bool) -> None:
    """Four workers are cheap, and each further one costs as much as three hosts: only a hurry pays for them."""
    plant = Plant(max_local=0, max_remote=10, prices=Prices(1.0, 3.0, (PriceTier("spot", 0.1, 4),)))
    ended, cost = hurried(plant, 100 * 120 * pace, 100 * 120, known)
    assert ended <= 100 * 120 * pace + 0.5
    assert cost <= 1.2 * ideal(plant, pace, 120)


def ideal(plant: Plant, pace: float, windows: int) -> float:
    """Cost of a job that mixes two numbers of workers so that it just ends in time."""
    times = {count: plant.batch_time(Deployment(0, count)) for count in range(1, plant.max_remote + 1)}
    costs = {count: time * plant.prices.per_hour(1, count) for count, time in times.items()}
    best = min(cost for count, cost in costs.items() if times[count] <= pace)
    for slow, fast in combinations(times, 2):
        if times[fast] < pace < times[slow]:
            share = (times[slow] - pace) / (times[slow] - times[fast])
            best = min(best, share * costs[fast] + (1 - share) * costs[slow])
    return 100 * windows * best


HERE = Deployment(1, 2)
WHY = "1 local + 2 remote cost the least of 3 measured."


def decided(phase: str, target: Deployment = HERE) -> Decision:
    return Decision(target, phase, WHY)


@pytest.mark.parametrize(
    ("last", "told", "acts"),
    [
        (None, "measures 1 local + 2 remote first: no window of batches has ended yet", True),
        (decided("add_remote", Deployment(1, 4)), "goes from 1 local + 2 remote to 1 local + 4 remote: 1 local", True),
        (decided("measure"), "measures, before it decides, what 1 local + 2 remote do: 1 local + 2 remote cost", True),
        (decided("discarded"), "measures again what 1 local + 2 remote do: ", True),
        (decided("converged"), "does nothing as long as batches take as long as now: 1 local + 2 remote cost", False),
        (decided("failed"), "does nothing: 1 local", False),
    ],
)
def test_the_newest_decision_is_what_comes_next(last: Decision | None, told: str, acts: bool) -> None:
    step = next_step(HERE, last, decides=True)
    assert str(step).startswith(f"AutoPlacement {told}") and step.changes_workers == acts
    assert not str(step).endswith(".")


def test_where_nobody_decides_it_is_said_that_nothing_comes() -> None:
    fixed = next_step_of(JobStats("job", deployments=((0.0, Deployment(2, 0)),)))
    assert str(fixed).startswith("AutoPlacement does nothing: the numbers of workers are fixed, 2 local + 0 remote")
    stopped = next_step(HERE, decided("converged"), decides=True, stopped=True)
    assert str(stopped) == "AutoPlacement does nothing more: scale() has fixed the numbers of workers"


def test_the_report_tells_it_behind_the_verdict_and_explain_at_its_end() -> None:
    report = Report.of_job(facts(), TrainerProgress(elapsed_s=20.0), 1.0)
    assert "\n  next: AutoPlacement does nothing as long as" in str(report)
    assert report.next_step in explain_with_next_step(facts()).splitlines()[-1]
    assert Report.of_job(facts(), TrainerProgress(elapsed_s=20.0), 1.0, over=True).next_step == report.next_step
    gone = replace(facts(), lost="it is gone")
    assert "next" not in explain_with_next_step(gone) and not Report.of_job(gone, TrainerProgress(), None).next_step
