"""The placement controller: its properties on a job as a fluid, and whatever it is shown."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.placement.control import LEAP, begin, control
from pecan_ray.placement.looks import LOOK_S, Observation
from pecan_ray.placement.trial_history import MAX_QUIET_S, ControlState, PlacementTrial
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment
from tests.long_form import examples
from tests.unit.placement.fluid import Fluid, Run

PRICES = Prices(accelerator_host=4.96, remote_worker=0.42)


def per_hour(remote: int) -> float:
    return PRICES.per_hour(1, remote)


def needed(job: Fluid, demand: float) -> int:
    """Return the fewest local workers that supply a demand."""
    return next(n for n in range(1, 100) if job.supply(Deployment(n, 0)) >= demand)


def constant(demand: float) -> Callable[[float], float]:
    return lambda _: demand


REMOTE = Fluid(room=Deployment(4, 24), demand=lambda _: 6000.0)

# --- what it is shown, whatever it is ------------------------------------------------------------------------

COUNTS = st.integers(0, 20)
SHARES = st.floats(0.0, 1.0)
ROOMS = st.tuples(st.integers(0, 16), st.integers(0, 24)).filter(lambda room: sum(room) > 0)


@st.composite
def looks(draw: st.DrawFn) -> list[Observation]:
    """Draw what a job might show for some seconds: workers come and go, and nothing need be measurable."""
    room, found = Deployment(*draw(ROOMS)), list[Observation]()
    for _ in range(draw(st.integers(1, 40))):
        running = Deployment(min(draw(COUNTS), room.local), min(draw(COUNTS), room.remote))
        asked = Deployment(draw(st.integers(0, room.local)), draw(st.integers(0, room.remote)))
        dt, load = draw(st.sampled_from([0.5, 1.0])), draw(SHARES)
        found.append(
            Observation(
                dt=dt,
                running=running,
                requested=asked,
                room=room,
                waited=dt * draw(SHARES),
                rows=draw(st.floats(0, 1e5)),
                steps=draw(st.integers(0, 50)),
                since_taken=draw(st.floats(0, 100)),
                produced=(draw(st.floats(0, 1e5)), draw(st.floats(0, 1e5))),
                work_done=(dt * load * running.local, dt * load * running.remote),
                blocked=(dt * (1 - load) * running.local, dt * (1 - load) * running.remote),
                busy_waiting=draw(st.none() | SHARES),
                own_s=draw(st.none() | st.floats(1e-6, 10)),
                lag=draw(st.none() | SHARES),
                required_rate=draw(st.just(math.inf) | st.floats(1, 1e4)),
                grain=draw(st.sampled_from([1.0, 256.0])),
            )
        )
    return found


@given(looks(), st.booleans())
@examples(50)
def test_it_is_pure_keeps_to_its_bounds_and_its_state_is_a_value(seen: list[Observation], priced: bool) -> None:
    state = again = calm_state = ControlState()
    for number, o in enumerate(seen):
        prices = per_hour if priced else None
        decision, state = control(state, o, number / 2, prices)
        other, again = control(pickle.loads(pickle.dumps(again)), o, number / 2, prices)
        assert (decision, state) == (other, again)
        target = decision.target
        assert target.workers >= 1 or o.requested.workers == 0
        assert target.local <= max(o.room.local, o.running.local, o.requested.local)
        assert target.remote <= max(o.room.remote, o.running.remote, o.requested.remote)
        assert decision.reason.endswith(".") and "nan" not in decision.reason
        calm = replace(o, waited=0.0, requested=o.running)
        decision, calm_state = control(calm_state, calm, number / 2)
        assert decision.target.local <= max(calm.requested.local, 1), "without a wait and prices there are never more"
        assert decision.target.remote <= max(calm.requested.remote, 1)


# --- the beginning ------------------------------------------------------------------------------------------


def test_it_begins_with_as_many_local_workers_as_a_sample_asks_for() -> None:
    assert begin(0.002, 256, 15) == 15
    assert begin(0.0004, 256, 15) == 6
    assert begin(1e-5, 256, 15) == 1, "tiny elements"
    assert begin(None, 256, 15) == 1
    assert begin(math.inf, 256, 15) == 15
    assert begin(0.002, 256, 0) == 0, "no CPU on the trainer's node"


@pytest.mark.parametrize("row_s", [0.002, 0.0007, 0.006, None])
@pytest.mark.parametrize("each", [500.0, 125.0])
def test_the_rate_is_there_soon_after_the_workers_with_and_without_a_sample(each: float, row_s: float | None) -> None:
    """All sixteen CPUs are needed, also by workers that sleep for most of their time."""
    run = Run(Fluid(demand=lambda _: 60_000.0, local=lambda count: each * count, row_s=row_s)).go(15)
    assert run.requested == Deployment(16, 0)
    last = max((at for at, _, _ in run.changes), default=0.0)
    assert last <= (1.0 if row_s == 0.002 else 15.0 if each < 500.0 else 8.0)
    assert run.go(120).late_changes(15) == 0


# --- enough, and no more ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("demand", [700.0, 2600.0, 4000.0])
def test_workers_that_are_not_needed_go_once_and_nothing_changes_after_that(demand: float, seed: int) -> None:
    job = Fluid(demand=lambda _: demand, drift=0.02)
    run = Run(job, seed).go(30)
    assert needed(job, demand) <= run.requested.local <= math.ceil(demand / 500 / 0.9) + 2
    run.go(300)
    assert run.late_changes() <= 1
    assert run.waited <= 0.02 * run.now + 4, "but for the start"


@pytest.mark.parametrize("batches", [30.0, 1e5])
def test_workers_that_only_fill_a_stock_go_although_nothing_holds_them_back(batches: float) -> None:
    """Small rows: queues that are bounded by bytes hold thousands of batches."""
    run = Run(Fluid(demand=lambda _: 2600.0, queue=batches)).go(35)
    assert run.requested.local == 6
    assert run.go(300).late_changes() == 0


def test_a_trainer_that_stands_in_line_now_and_then_hides_no_stock() -> None:
    run = Run(Fluid(demand=lambda _: 2600.0, queue=1e5))
    while run.now < 60:
        o = run.look()
        run.heed(replace(o, lag=0.1 if run.now % 4 < 0.5 else 0.0))
    assert run.requested.local == 6


@given(exponent=st.floats(0.4, 1.0), demand=st.floats(500.0, 6000.0), start=st.integers(1, 16))
@examples(25)
def test_it_comes_from_its_own_side_where_supply_grows_slower_than_linearly(
    exponent: float, demand: float, start: int
) -> None:
    """With a concave supply no step passes what is needed, so that it never turns round."""
    job = Fluid(demand=lambda _: demand, local=lambda n: 600.0 * n**exponent, row_s=None)
    run = Run(job)
    run.requested = Deployment(start, 0)
    run._order()
    run.go(120)
    counts = [after.local - before.local for _, before, after in run.changes]
    assert all(step > 0 for step in counts) or all(step < 0 for step in counts) or len(counts) <= 2


def test_a_demand_that_grows_is_met_within_seconds() -> None:
    run = Run(Fluid(demand=lambda now: 1500.0 if now < 60 else 6000.0)).go(60)
    assert run.requested.local <= 5
    run.go(10)
    assert run.running.local >= 12


# --- no news ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause_s", [40.0, 600.0])
def test_a_pause_of_any_length_changes_nothing(pause_s: float) -> None:
    run = Run(Fluid(demand=lambda now: 0.0 if 60 <= now < 60 + pause_s else 2500.0)).go(60)
    before = run.requested
    run.go(pause_s + 30)
    assert run.requested == before
    assert run.late_changes(58.0) == 0


def test_accumulation_is_met_by_its_mean_and_not_by_its_bursts() -> None:
    """Sixteen batches at once, and then a long step: workers stand still for some of the time."""
    run = Run(Fluid(demand=lambda now: 8000.0 if now % 1.0 < 0.2 else 0.5, batch=64, queue=30.0)).go(60)
    assert 3 <= run.requested.local <= 8
    assert run.go(200).late_changes(60.0) <= 2


def test_nothing_is_judged_while_workers_are_awaited() -> None:
    job = replace(REMOTE, per_hour=per_hour)
    run = Run(job, 1).go(30)
    assert run.requested.remote > 0 and run.running.remote == 0, "they are on their way"
    asked = run.requested
    run.go(8)
    assert run.requested == asked and run.running.remote == 0


@given(st.integers(2, 16), st.floats(0.1, 0.95), st.floats(0.01, 0.9))
@examples(25)
def test_after_a_pause_batches_that_were_begun_before_it_make_no_worker_faster(
    workers: int, share: float, load: float
) -> None:
    """They come in seconds in which hardly anybody works: their rows over that work are no rate."""
    busy = Observation(
        dt=8.0,
        running=Deployment(workers, 0),
        requested=Deployment(workers, 0),
        room=Deployment(workers, 0),
        rows=200.0 * workers,
        steps=8,
        produced=(200.0 * workers, 0.0),
        work_done=(8.0 * workers, 0.0),
        grain=100.0,
    )
    _, state = control(ControlState(), busy, 8.0)
    _, state = control(state, busy, 16.0)
    assert state.known.each[0] == pytest.approx(25.0)
    rows, work_done = share * 100.0 * workers, load * 0.5 * workers
    after = replace(
        busy, dt=0.5, rows=rows, produced=(rows, 0.0), work_done=(work_done, 0.0), blocked=(0.5 * workers, 0.0)
    )
    _, state = control(replace(state, running=None), after, 60.0)
    assert state.known.each[0] == pytest.approx(25.0)


def test_one_lucky_look_makes_no_worker_faster_that_was_watched_for_long() -> None:
    """Batches vary, and a job that has settled looks at them thousands of times."""
    nine = Deployment(9, 0)
    usual = Observation(
        dt=0.5,
        running=nine,
        requested=nine,
        room=Deployment(16, 0),
        rows=60.0,
        steps=1,
        produced=(60.0, 0.0),
        work_done=(4.0, 0.0),
        blocked=(0.5, 0.0),
    )
    state = ControlState()
    for look in range(1, 101):
        _, state = control(state, usual, look / 2)
    _, state = control(state, replace(usual, produced=(120.0, 0.0)), 50.5)
    assert state.known.each[0] == pytest.approx(15.0, rel=0.05)


# --- remote workers -----------------------------------------------------------------------------------------


def test_remote_workers_are_asked_for_once_all_local_ones_are_busy() -> None:
    run = Run(REMOTE, 1).go(240)
    for _, before, after in run.changes:
        assert after.remote <= before.remote or before.local == 4
    assert run.requested.local == 4 and 8 <= run.requested.remote <= 11
    assert run.late_changes(200.0) == 0


def test_remote_supply_grows_by_the_leap_at_most() -> None:
    """A program that runs ahead waits for nearly all of its time, whatever its demand is."""
    run = Run(Fluid(demand=lambda _: 1e6, room=Deployment(2, 64)), 2)
    while run.now < 400:
        run.heed(run.look())
        if run.changes and run.changes[-1][0] == run.now:
            _, before, after = run.changes[-1]
            if after.remote > before.remote:
                assert run.job.supply(after) <= LEAP * run.job.supply(before) + run.job.remote


@pytest.mark.parametrize(("grain", "undone"), [(1.0, True), (100.0, False)])
def test_batches_that_were_begun_and_not_told_are_no_verdict_against_their_workers(grain: float, undone: bool) -> None:
    """With batches of seven seconds, workers that have just come have told one of two."""

    def seen(workers: int, rows: float) -> Observation:
        return Observation(
            dt=7.0,
            running=Deployment(4, workers),
            requested=Deployment(4, workers),
            room=Deployment(4, 24),
            waited=3.5,
            rows=rows,
            steps=4,
            produced=(rows * 4 / (4 + workers), rows * workers / (4 + workers)),
            work_done=(28.0, 7.0 * workers),
            own_s=0.07,
            grain=grain,
        )

    state, now, target = ControlState(), 0.0, Deployment(4, 0)
    while target == Deployment(4, 0) and now < 70:
        now += 7.0
        decision, state = control(state, seen(0, 400.0), now)
        target = decision.target
    assert target.remote > 0, "it waits beside all local ones"
    phases = []
    for _ in range(2):
        now += 7.0
        decision, state = control(state, seen(target.remote, 400.0), now)
        phases.append(decision.phase)
    assert ("back" in phases) == undone


def test_workers_that_take_a_minute_for_a_batch_are_joined_by_remote_ones() -> None:
    """Sixteen of them tell of a batch each 3.5 s, fewer than one and a half of each within the looks that are kept."""
    at, state, target = Deployment(16, 0), ControlState(), Deployment(16, 0)
    seen = Observation(
        dt=0.5,
        running=at,
        requested=at,
        room=Deployment(16, 64),
        waited=0.5,
        work_done=(8.0, 0.0),
        own_s=1.1,
        grain=100.0,
    )
    for look in range(1, 301):
        rows = 100.0 * (look > 100 and look % 7 == 0)
        decision, state = control(state, replace(seen, rows=rows, produced=(rows, 0.0)), look / 2)
        target = target if target.remote else decision.target
    assert 0 < target.remote <= 64


@pytest.mark.parametrize("room", [Deployment(16, 0), Deployment(4, 24)])
@pytest.mark.parametrize("mean_s", [8.0, 60.0])
def test_changes_are_bounded_whatever_the_demand_does(room: Deployment, mean_s: float) -> None:
    """Each reversal doubles the time of quiet, and few steps lie between two."""
    rng, until = random.Random(mean_s), 0.0
    run = Run(Fluid(room=room, drift=0.05))
    while run.now < 3600:
        demand = constant(rng.choice((700.0, 1500.0, 2600.0, 4000.0, 6000.0)))
        until += rng.expovariate(1 / mean_s)
        run.meet(replace(run.job, demand=demand)).go(until - run.now)
    counts = [after.workers - before.workers for _, before, after in run.changes]
    most = 7 + run.now / MAX_QUIET_S
    assert sum(before < 0 < after for before, after in pairwise(counts)) <= most
    assert len(counts) <= 3 * most


def test_remote_workers_that_bring_nothing_go_again_and_are_not_asked_for_soon() -> None:
    run = Run(replace(REMOTE, shared=2000.0), 1).go(300)
    assert run.requested == Deployment(4, 0)
    assert sum(after.remote > before.remote for _, before, after in run.changes) == 1


def test_a_wait_that_is_cheaper_than_its_workers_stays() -> None:
    dear = replace(REMOTE, per_hour=lambda remote: 1.0 + 10.0 * remote)
    assert Run(dear, 1).go(200).requested == Deployment(4, 0)
    assert Run(replace(REMOTE, per_hour=per_hour), 1).go(240).requested.remote >= 6


@pytest.mark.parametrize("price", [0.0, 0.5, 0.9, 1.1, 3.0])
def test_what_remote_workers_send_is_in_the_bill(price: float) -> None:
    """In what they spare: what a row costs is known once the first ones have sent some, and is not forgotten."""
    spared = per_hour(0) / 2000 - per_hour(8) / 6000
    job = replace(REMOTE, per_hour=per_hour, row_transfer=price * spared * 6000 / 4000)
    run = Run(job, 1).go(3000)
    assert run.requested.local == 4
    assert run.requested.remote >= 6 if price < 1 else run.requested.remote == 0
    assert run.late_changes(600) <= 2


def test_neighbours_that_cost_more_than_they_spare_are_found_by_the_bill() -> None:
    """Eight local workers slow the trainer down by a third; remote ones cost little."""
    run = Run(Fluid(room=Deployment(8, 24), per_hour=lambda remote: 10.0 + 0.1 * remote), 1)

    def demand(_: float) -> float:
        return 9000.0 / (1 + 0.04 * run.running.local)

    run.meet(replace(run.job, demand=demand)).go(900)
    assert run.requested.local <= 2
    assert run.requested.remote >= 14


def test_a_trial_of_the_bill_goes_on_while_local_workers_help() -> None:
    """It waits for nodes, the trainer waits for rows, and CPUs are idle."""
    running, target = Deployment(7, 0), Deployment(3, 6)
    o = Observation(
        dt=0.5,
        running=running,
        requested=Deployment(7, 6),
        room=Deployment(16, 24),
        waited=0.3,
        rows=50.0,
        steps=1,
        produced=(50.0, 0.0),
        work_done=(3.5, 0.0),
    )
    trial = PlacementTrial("bill", running, 0.02)
    state, asked = ControlState(trial=trial, next_deployment=target), Deployment(0, 0)
    for look in range(1, 5):
        decision, state = control(state, o, look / 2, per_hour)
        asked = max(asked, decision.target)
    assert asked.local > running.local and asked.remote == target.remote
    assert (state.trial, state.next_deployment) == (trial, target)


def test_beside_a_small_wait_fewer_remote_workers_are_tried() -> None:
    """A link gives 97 % of what the trainer would take, and half as many remote workers would fill it."""
    slow = replace(REMOTE, remote=250.0, per_hour=per_hour)
    run = Run(slow, 1).go(400)
    assert run.requested.remote >= 15
    run.meet(replace(slow, remote=500.0, shared=5800.0)).go(1500)
    assert 7 <= run.requested.remote <= 9


# --- what holds workers up ----------------------------------------------------------------------------------


def test_workers_that_wait_for_something_shared_are_not_multiplied() -> None:
    run = Run(Fluid(shared=900.0, demand=lambda _: 4000.0)).go(120)
    assert run.requested.local <= math.ceil(1.5 * 900 / 500)
    assert run.late_changes() == 0
    assert run.taken >= 0.95 * 900 * (run.now - 5)


def test_a_trial_with_fewer_workers_that_was_wrong_is_undone_and_remembered() -> None:
    """By a sample that is wrong by three they seem to be held up."""
    run = Run(Fluid(demand=lambda _: 60_000.0))
    while run.now < 300:
        o = run.look()
        assert o.own_s is not None
        run.heed(replace(o, own_s=o.own_s / 3))
    trials = [at for at, before, after in run.changes if after.local < before.local]
    backs = [at for at, before, after in run.changes if after.local > before.local]
    assert len(trials) == 1 and len(backs) == 1
    assert backs[0] - trials[0] <= 3 * LOOK_S
    assert run.requested.local == 16


def test_a_trainer_in_line_for_a_cpu_gets_its_core_back() -> None:
    """It does not wait for rows, but for a CPU, beside more than eight workers."""
    run = Run(Fluid(demand=lambda _: 3700.0, lag=lambda local: 0.2 if local > 8 else 0.0)).go(60)
    assert run.requested.local <= 9
    assert run.late_changes() <= 1


def test_it_works_without_anything_that_may_be_none() -> None:
    run = Run(Fluid(demand=lambda _: 4000.0), blind=True).go(60)
    assert 8 <= run.requested.local <= 10
    assert Run(Fluid(demand=lambda _: 60_000.0, row_s=None), blind=True).go(15).requested.local == 16


def test_a_hiccup_of_storage_brings_no_workers() -> None:
    run = Run(Fluid(demand=lambda _: 2200.0)).go(60)
    before, usual = run.requested, run.job
    run.meet(replace(usual, shared=1e-6)).go(2).meet(usual).go(30)
    assert run.requested == before


# --- deadlines, units ----------------------------------------------------------------------------------------


def test_no_more_is_done_than_a_deadline_asks_for() -> None:
    """The trainer could take four times as much."""
    run = Run(Fluid(demand=lambda _: 8000.0))
    while run.now < 60:
        run.heed(replace(run.look(), required_rate=2000.0))
    assert 4 <= run.requested.local <= 6


def test_units_do_not_matter() -> None:
    """Ten times the rows in a tenth of them each are the same job."""
    fine = Fluid(demand=lambda _: 40_000.0, local=lambda n: 5000.0 * n, batch=2560, row_s=0.0002)
    coarse = Fluid(demand=lambda _: 4000.0, local=lambda n: 500.0 * n, batch=256, row_s=0.002)
    assert Run(fine).go(90).changes == Run(coarse).go(90).changes
