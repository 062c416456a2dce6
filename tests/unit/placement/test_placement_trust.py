"""AutoPlacement is fooled by no hiccup, and whatever a window says, something sensible runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hiccups import FAR, KINDS, NEAR, HiccupJob, answers, draw_job, jobs, percentile_95, run
from pecan_ray.errors import PlanError
from pecan_ray.job.placing import Placing, begin
from pecan_ray.job.room import Room
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import AutoWorkers
from pecan_ray.placement import MODES, AutoPlacement, Decision, Deployment, Prices, PriceTier, Window
from tests.long_form import examples, some_later
from tests.unit.placement.plants import Meter, Plant, drive

# --- workloads whose windows lie ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "near"), [(1, 1), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_it_ends_near_the_cheapest_deployment_whatever_happens(kind: str, count: int, near: int) -> None:
    """A short form of benchmarks/hiccups.py."""
    found = [run(job) for job in jobs([kind], count, seed=100)]
    assert sum(one.excess <= NEAR for one in found) >= near, found
    assert max(one.excess for one in found) <= FAR, found


def test_a_search_that_is_not_over_counts_as_what_it_has_run() -> None:
    """Whatever it began with: that does not run any more."""
    job, began = draw_job("calm", 4), Deployment(1, 0)
    assert job.excess([(began, 1), (job.cheapest, 3)]) == pytest.approx(job.excess([(began, 1)]) / 4)
    searching, over = run(job, windows=8), run(job)
    ran = {began, *(decision.target for decision in searching.decisions)}
    assert searching.settled_s is None and searching.settled_excess == job.excess([(began, 1)])
    assert min(job.excess([(at, 1)]) for at in ran) < searching.excess < searching.settled_excess
    assert over.settled_s is not None and over.excess == over.settled_excess < NEAR


@pytest.mark.slow
def test_300_workloads() -> None:
    """Not all end within 20 %: the last windows of `everything` 1005 are a search for a change that was none."""
    found = {f"{job.kind} {job.seed}": run(job).excess for job in jobs(list(KINDS), 300, seed=1000)}
    assert sum(excess <= NEAR for excess in found.values()) >= 0.97 * len(found)
    far = {name: excess for name, excess in found.items() if excess > FAR}
    assert set(far) <= {"everything 1005"} and all(excess < 0.25 for excess in far.values()), far


@pytest.mark.parametrize("workloads", some_later([10, 120], 120))
def test_a_change_is_answered_within_4_windows(workloads: int) -> None:
    """19 of 20 that ask for another deployment and show, from when the trainer feels them."""
    drawn = [draw_job(kind, seed) for kind in ("drift", "slower for good") for seed in range(200, 200 + workloads)]
    found = [run(job, windows=(job.changes_at or 0) + 20) for job in drawn]
    shown = answers(found, "shown")
    assert len(shown) > workloads / 2 and percentile_95(shown) <= 4, sorted(shown)


def test_a_trainer_that_slows_down_tenfold_gives_its_remote_workers_back_within_30_s() -> None:
    plant, slow = Plant(t_model=0.1, t_work=1.2, max_local=4), Plant(t_model=1.0, t_work=1.2, max_local=4)
    policy = AutoPlacement(max_local=4)
    at = drive(policy, Meter(plant), Deployment(0, 1), after=20).final
    assert at == Deployment(4, 8)
    meter, seconds = Meter(slow, batches=10), 0.0
    while at.remote:
        window = meter.window(at)
        seconds += window.batch_time * window.batches
        at = policy.decide(window, at).target
        assert seconds <= 30


@pytest.mark.parametrize("step_s", [0.01, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("step_cv", [0.0, 0.1])
def test_where_nothing_waits_the_search_is_over_in_5_s(step_s: float, step_cv: float) -> None:
    """Of the job's own time, from its first step on; a worker has its batch in 0.4 of a step."""
    found = [run(enough(step_s, step_cv, seed), windows=12) for seed in range(3)]
    assert {one.final for one in found} == {one.cheapest for one in found} == {"1 local + 0 remote"}
    assert all(one.settled_s is not None and one.settled_s <= 5.0 for one in found), found


@pytest.mark.parametrize("trainers", [2, 4])
def test_several_trainers_wait_at_the_start_alone_and_soon_settle(trainers: int) -> None:
    """All want their first batch of the only worker at once: that wait moves nobody to try more of them."""
    for step_s in (0.1, 0.5, 1.0):
        found = run(enough(step_s, 0.02, 0, trainers), windows=12)
        assert {one.target for one in found.decisions} == {Deployment(1, 0)}
        assert found.settled_s is not None and found.settled_s <= 15.0, found


def enough(step_s: float, step_cv: float, seed: int, trainers: int = 1) -> HiccupJob:
    """A workload for which one worker suffices."""
    calm = draw_job("calm", seed)
    work_s = 0.4 * step_s / trainers
    return replace(
        calm,
        step_s=step_s,
        step_cv=step_cv,
        work_s=work_s,
        speed_local=1.0,
        interference=0.0,
        prices=Prices(4.96, 0.42),
        trainers=trainers,
    )


def test_microseconds_of_wait_are_none() -> None:
    """A window of few batches, and a wait that a clock hardly shows: the batch time is as certain as without it."""
    policy, at = AutoPlacement(max_local=4, max_remote=0), Deployment(1, 0)
    assert policy.decide(Window(1.0, 4.0, 3, wait_time=2e-6, stderr=0.05), at).target == at
    assert policy.converged


def test_fewer_local_workers_are_tried_while_the_trainer_waits() -> None:
    """Sixteen on twelve cores disturb the trainer, and bring nothing."""

    def slowdown(local: int, _remote: int) -> float:
        return 1 + 0.05 * max(0, local - 12)

    plant = Plant(
        t_model=0.1, t_work=1.8, slowdown=slowdown, local_supply=lambda local, _: min(local, 12), max_remote=4
    )
    policy = AutoPlacement(prices=plant.prices, max_local=16, max_remote=4)
    assert drive(policy, Meter(plant, noise=0.01), Deployment(16, 0), after=10).final.local <= 12


def test_a_source_that_gives_no_more_keeps_no_useless_workers() -> None:
    class Dry(Plant):
        def supply(self, at: Deployment) -> float:
            return min(4.0, super().supply(at))

    plant = Dry(t_model=0.1, t_work=1.0, max_local=2, prices=Prices(1.0, 0.2))
    policy = AutoPlacement(prices=plant.prices, max_local=2)
    assert drive(policy, Meter(plant, noise=0.01), Deployment(0, 1), after=10).final.workers <= 4


def test_other_deployments_are_looked_at_again_now_and_then() -> None:
    """Workers that become twice as fast behind a full queue show in no window: an audit finds that half would do."""
    plant = Plant(t_model=0.1, t_work=4.0, max_local=0, prices=Prices(1.0, 0.5))
    policy = AutoPlacement(prices=plant.prices, max_local=0)
    at = drive(policy, Meter(plant), Deployment(0, 1), after=20).final
    assert at.remote >= 37
    for _ in range(200):
        at = policy.decide(Window(0.1, 50.0, 100, wait_time=0.0), at).target
        if at.remote <= 20:
            return
    raise AssertionError("no audit")


# --- any window ---------------------------------------------------------------------------------------------

TIMES = st.one_of(
    st.floats(1e-9, 1e7), st.sampled_from([1e-9, 1e7, 0.1, 1.0]), st.floats(allow_nan=True, allow_infinity=True)
)
COUNTS = st.one_of(st.integers(2, 1000), st.sampled_from([0, 2, 10, 10**12]))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    time = draw(TIMES)
    wait = draw(st.one_of(st.none(), st.sampled_from([0.0, 1e-12, 0.5, 1.0]), st.floats(0, 1)))
    return Window(
        time,
        queue_size=draw(st.one_of(st.floats(0, 1e9), st.just(math.nan))),
        batches=draw(COUNTS),
        wait_time=None if wait is None else wait * time,
        stderr=draw(st.one_of(st.just(0.0), st.floats(0, 1e9))),
        touched=draw(st.booleans()),
    )


@pytest.mark.parametrize("mode", MODES)
@examples(25)
@given(data=st.data())
def test_whatever_windows_say_something_runs(mode: str, data: st.DataObject) -> None:
    """No exception, no deployment beyond the limits, never none."""
    max_local, max_remote = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 70))
    prices = data.draw(
        st.sampled_from(
            [Prices(4.96, 0.42), Prices(0.0, 0.0), Prices(1e6, 1e-6), Prices(1, 2, (PriceTier("s", 0, 3),))]
        )
    )
    try:
        policy = AutoPlacement(mode, prices, max_local=max_local, max_remote=max_remote, patience=1)
    except PlanError:
        return
    at = policy.start
    for window in data.draw(st.lists(windows(), min_size=1, max_size=25)):
        target = policy.decide(window, at).target
        assert target.workers >= 1
        less = data.draw(st.sampled_from([False, False, False, True]))
        at = Deployment(target.local // 2, target.remote // 2) if less else target


@pytest.mark.parametrize(("mode", "came"), [("cachew", Deployment(1, 0)), ("collocated", Deployment(0, 1))])
def test_a_mode_whose_workers_never_come_goes_on_asking_for_one(mode: str, came: Deployment) -> None:
    policy = AutoPlacement(mode, max_local=4, max_remote=4, patience=1)
    for _ in range(20):
        target = policy.decide(Window(1.0, 0.0, 100, wait_time=0.9), came).target
        assert target.workers >= 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bounds", [{"max_local": 0}, {}, {"max_local": 1, "max_remote": 4}])
@pytest.mark.parametrize("remote_cpus", [(), (8.0,)])
def test_a_job_begins_with_a_worker(mode: str, bounds: dict[str, int], remote_cpus: tuple[float, ...]) -> None:
    options = AutoWorkers(mode=mode, **bounds)  # type: ignore[arg-type]  # numbers alone
    no_local, no_remote = bounds.get("max_local") == 0, not remote_cpus and "max_remote" not in bounds
    refused = no_local if mode == "collocated" else no_remote and (no_local or mode.startswith("cachew"))
    if refused:
        with pytest.raises(PlanError, match="raise" if mode == "collocated" else r"add nodes .* or give max_remote=N"):
            begin(options, Room((4.0,), remote_cpus), 1.0, "exactly_once", 1)
    else:
        assert begin(options, Room((4.0,), remote_cpus), 1.0, "exactly_once", 1).target.workers >= 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (AutoWorkers(mode="cachew"), "mode='cachew' runs remote workers only, and no node"),
        (AutoWorkers(mode="cachew", max_remote=0), "mode='cachew' runs remote workers only, and max_remote=0"),
        (AutoWorkers(max_local=0), "max_local=0 allows remote workers only, and no node"),
        (AutoWorkers(max_local_cpu_fraction=0.0), "max_local_cpu_fraction=0 allows remote workers only, and no node"),
        (AutoWorkers(min_remote=1), "min_remote=1 asks for remote workers, and no node"),
    ],
)
def test_who_needs_other_nodes_is_refused_where_there_are_none(options: AutoWorkers, why: str) -> None:
    """Not only once a worker has not come: nobody looks for a bound that he has not set."""
    with pytest.raises(PlanError, match=f"{why} .*: change that, add nodes .* or give max_remote=N"):
        begin(options, Room((4.0,), ()), 1.0, "exactly_once", 1)
    if options.max_remote is None:
        assert begin(options, Room((4.0,), (2.0,)), 1.0, "exactly_once", 1).target.remote == 1


class Broken(AutoPlacement):
    """Fails on every other window."""

    calls = 0

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        self.calls += 1
        if self.calls % 2:
            raise ZeroDivisionError("float division by zero")
        return super().decide(window, deployment)


def test_a_policy_that_fails_ends_no_training() -> None:
    placing = begin(AutoWorkers(window_batches=10), Room((4.0,), (8.0,)), 1.0, "exactly_once", 1)
    placing = Placing(Broken(max_local=4, max_remote=8), placing.meter, 1.0, Deployment(1, 0))
    totals, at, phases = StepTotals(), Deployment(1, 0), list[str]()
    placing.report(0, totals)
    for _ in range(6):
        for _ in range(10):
            totals = totals.step(0.4, 0.3, 0)
        placing.report(0, totals)
        step = placing.decide(at, totals.seconds)
        assert step is not None
        phases.append(step.decision.phase)
        assert step.decision.phase != "failed" or step.decision.target == at
        at = step.decision.target
    assert placing.failures == phases.count("failed") == 3
