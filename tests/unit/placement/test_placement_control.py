"""The placement controller: its properties on a job as a fluid, and whatever it is shown."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.placement.control import LEAP, begin, control
from pecan_ray.placement.looks import FULL, Observation
from pecan_ray.placement.trial_history import MAX_QUIET_S, ControlState
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment
from tests.long_form import examples
from tests.unit.placement.fluid import Fluid, Run, observed


def per_hour(remote: int) -> float:
    return Prices(accelerator_host=4.96, remote_worker=0.42).per_hour(1, remote)


REMOTE = Fluid(room=Deployment(4, 24), demand=lambda _: 6000.0)
PRICED = replace(REMOTE, per_hour=per_hour)
BOUND = Fluid(demand=lambda _: 60_000.0)
"""Whatever runs, the trainer takes more."""
COUNTS, SHARES = st.integers(0, 20), st.floats(0.0, 1.0)
ROOMS = st.tuples(st.integers(0, 16), st.integers(0, 24)).filter(lambda room: sum(room) > 0)


@st.composite
def looks(draw: st.DrawFn) -> list[Observation]:
    """Draw what a job might show for some seconds: workers come and go, and nothing need be measurable."""
    room, found = Deployment(*draw(ROOMS)), list[Observation]()
    for _ in range(draw(st.integers(1, 40))):
        running = Deployment(min(draw(COUNTS), room.local), min(draw(COUNTS), room.remote))
        asked = Deployment(draw(st.integers(0, room.local)), draw(st.integers(0, room.remote)))
        dt = draw(st.sampled_from([0.5, 1.0]))
        seen = observed(running, (0.0, 0.0), draw(SHARES), dt=dt, room=room, requested=asked)
        found.append(
            replace(
                seen,
                waited=dt * draw(SHARES),
                rows=draw(st.floats(0, 1e5)),
                steps=draw(st.integers(0, 50)),
                since_taken=draw(st.floats(0, 100)),
                produced=(draw(st.floats(0, 1e5)), draw(st.floats(0, 1e5))),
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


@pytest.mark.parametrize(
    ("row_s", "room", "local"),
    [(0.002, 15, 15), (0.0004, 15, 6), (1e-5, 15, 1), (None, 15, 1), (math.inf, 15, 15), (0.002, 0, 0)],
)
def test_it_begins_with_as_many_local_workers_as_a_sample_asks_for(row_s: float | None, room: int, local: int) -> None:
    assert begin(row_s, 256, room) == local


@dataclass(frozen=True)
class Settled:
    """Where a job ends after some seconds, and how often its workers change once it should have settled."""

    job: Fluid
    seconds: float
    local: tuple[int, int]
    remote: tuple[int, int] = (0, 0)
    settled_s: float = 30.0
    late: int = 0
    waits: float = 1.0
    """Share of the time that the trainer waits at most, but for 4 s at the start."""
    seed: int = 0


def sample_is_wrong(o: Observation, _: float) -> Observation:
    assert o.own_s is not None
    return replace(o, own_s=o.own_s / 3)


SETTLED = {
    "a small demand": Settled(Fluid(demand=lambda _: 700.0, drift=0.02), 330, (2, 4), late=1, waits=0.02),
    "a medium one": Settled(Fluid(demand=lambda _: 2600.0, drift=0.02), 330, (6, 8), late=1, waits=0.02, seed=1),
    "a large one": Settled(Fluid(demand=lambda _: 4000.0, drift=0.02), 330, (8, 11), late=1, waits=0.02, seed=2),
    # Queues that are bounded by bytes hold thousands of batches of small rows: their workers are never held back.
    "workers that fill a stock": Settled(Fluid(demand=lambda _: 2600.0, queue=30), 335, (6, 6), settled_s=35),
    "a stock beside a trainer in line for a CPU": Settled(
        Fluid(demand=lambda _: 2600.0, queue=1e5, seen=lambda o, now: replace(o, lag=0.1 if now % 4 < 0.5 else 0.0)),
        60,
        (6, 6),
        late=9,
    ),
    "a pause": Settled(Fluid(demand=lambda now: 0.0 if 60 <= now < 660 else 2500.0), 690, (5, 7), settled_s=58),
    "bursts of accumulated batches count by their mean": Settled(
        Fluid(demand=lambda now: 8000.0 if now % 1.0 < 0.2 else 0.5, batch=64, queue=30.0), 260, (3, 8), (0, 0), 60, 2
    ),
    "remote workers beside all local ones": Settled(REMOTE, 240, (4, 4), (8, 11), settled_s=200, seed=1),
    "remote workers that bring nothing": Settled(replace(REMOTE, shared=2000.0), 300, (4, 4), late=2, seed=1),
    "remote workers that are too dear": Settled(
        replace(REMOTE, per_hour=lambda remote: 1.0 + 10.0 * remote), 200, (4, 4), seed=1
    ),
    "remote workers that are cheap": Settled(PRICED, 240, (4, 4), (6, 12), settled_s=200, seed=1),
    "something shared holds all workers up": Settled(Fluid(shared=900.0), 120, (1, 3)),
    "a sample that is wrong by three is found out once": Settled(
        replace(BOUND, seen=sample_is_wrong), 300, (16, 16), settled_s=0, late=2
    ),
    # Fewer of them are each faster, so that what was measured once is no news: one trial was made each 15 s.
    "a wrong sample of workers that crowd each other": Settled(
        replace(BOUND, local=lambda count: 600.0 * count**0.7, seen=sample_is_wrong), 900, (16, 16), (0, 0), 0, 16
    ),
    "a trainer in line for a CPU gets its core back": Settled(
        Fluid(demand=lambda _: 3700.0, lag=lambda local: 0.2 if local > 8 else 0.0), 60, (8, 9), late=1
    ),
    # The trainer missed the workers that went, now and then, and 500 changes an hour came of it.
    "a line for a CPU that other programs make": Settled(
        Fluid(demand=lambda now: 7500.0 if now % 20 < 3 else 4000.0, lag=lambda _: 0.1),
        3600,
        (8, 16),
        late=40,
        waits=0.02,
    ),
    "nothing is measured that may be None": Settled(
        Fluid(row_s=None, seen=lambda o, _: replace(o, busy_waiting=None, own_s=None, lag=None)), 60, (8, 10)
    ),
    "a deadline asks for less than the trainer could take": Settled(
        Fluid(demand=lambda _: 8000.0, seen=lambda o, _: replace(o, required_rate=2000.0)), 60, (4, 6)
    ),
    "the user wants more than is needed": Settled(
        Fluid(demand=lambda _: 2e3, lag=lambda _: 0.2, seen=lambda o, _: replace(o, least=Deployment(16, 0))),
        60,
        (16, 16),
        settled_s=0,
    ),
}


@pytest.mark.parametrize("what", SETTLED)
def test_workers_settle_at_what_is_needed_and_change_no_more(what: str) -> None:
    wanted = SETTLED[what]
    run = Run(wanted.job, wanted.seed).go(wanted.seconds)
    assert wanted.local[0] <= run.requested.local <= wanted.local[1]
    assert wanted.remote[0] <= run.requested.remote <= wanted.remote[1]
    assert run.late_changes(wanted.settled_s) <= wanted.late
    assert run.waited <= wanted.waits * run.now + 4


def test_a_demand_that_grows_is_met_within_seconds() -> None:
    run = Run(Fluid(demand=lambda now: 1500.0 if now < 60 else 6000.0)).go(60)
    assert run.requested.local <= 5
    assert run.go(10).running.local >= 12


def test_a_hiccup_of_storage_brings_no_workers() -> None:
    run = Run(Fluid(demand=lambda _: 2200.0)).go(60)
    before = run.requested
    assert run.meet(shared=1e-6).go(2).meet(shared=math.inf).go(30).requested == before


@given(st.integers(2, 16), st.floats(0.1, 0.95), st.floats(0.01, 0.9))
@examples(25)
def test_after_a_pause_batches_that_were_begun_before_it_make_no_worker_faster(
    workers: int, share: float, load: float
) -> None:
    """They come in seconds in which hardly anybody works: their rows over that work are no rate."""
    busy = observed(Deployment(workers, 0), (25.0, 0.0), dt=8.0, steps=8, grain=100.0)
    _, state = control(ControlState(), busy, 8.0)
    _, state = control(state, busy, 16.0)
    rows, work_done = share * 100.0 * workers, load * 0.5 * workers
    after = replace(
        busy, dt=0.5, rows=rows, produced=(rows, 0.0), work_done=(work_done, 0.0), blocked=(0.5 * workers, 0.0)
    )
    _, state = control(replace(state, running=None), after, 60.0)
    assert state.known.each[0] == pytest.approx(25.0)


def test_one_lucky_look_makes_no_worker_faster_that_was_watched_for_long() -> None:
    """Batches vary, and a job that has settled looks at them thousands of times."""
    usual, state = observed(Deployment(9, 0), (15.0, 0.0), 8 / 9), ControlState()
    for look in range(1, 101):
        _, state = control(state, usual, look / 2)
    _, state = control(state, replace(usual, produced=(120.0, 0.0)), 50.5)
    assert state.known.each[0] == pytest.approx(15.0, rel=0.05)


@pytest.mark.parametrize(("needed", "left"), [(15.5, 16), (14.5, 16), (9.5, 10)])
def test_where_nobody_waits_a_worker_stays_that_drift_may_need_again(needed: float, left: int) -> None:
    state, running = ControlState(), Deployment(16, 0)
    seen = observed(running, (500.0, 0.0), FULL * needed / 16)
    targets = set()
    for look in range(1, 301):
        decision, state = control(state, seen, look / 2)
        targets.add(decision.target.local)
    assert min(targets) == left


def test_remote_supply_grows_by_the_leap_at_most() -> None:
    """A program that runs ahead waits for nearly all of its time, whatever its demand is."""
    run = Run(replace(BOUND, room=Deployment(2, 64)), 2).go(400)
    for _, before, after in run.changes:
        if after.remote > before.remote:
            assert run.job.supply(after) <= LEAP * run.job.supply(before) + run.job.remote


@pytest.mark.parametrize(("grain", "undone"), [(1.0, True), (100.0, False)])
def test_batches_that_were_begun_and_not_told_are_no_verdict_against_their_workers(grain: float, undone: bool) -> None:
    """With batches of seven seconds, workers that have just come have told one of two."""

    def seen(remote: int) -> Observation:
        rate = 400.0 / 7 / (4 + remote)  # the rows of all, whatever runs
        running, room = Deployment(4, remote), Deployment(4, 24)
        return observed(running, (rate, rate), dt=7.0, room=room, waited=3.5, steps=4, own_s=0.07, grain=grain)

    state, now, target = ControlState(), 0.0, Deployment(4, 0)
    while target == Deployment(4, 0) and now < 70:
        now += 7.0
        decision, state = control(state, seen(0), now)
        target = decision.target
    assert target.remote > 0, "it waits beside all local ones"
    phases = []
    for look in (1, 2):
        decision, state = control(state, seen(target.remote), now + 7.0 * look)
        phases.append(decision.phase)
    assert ("back" in phases) == undone


def test_workers_that_take_a_minute_for_a_batch_are_joined_by_remote_ones() -> None:
    """Sixteen of them tell of a batch each 3.5 s, fewer than one and a half of each within the looks that are kept."""
    seen = observed(Deployment(16, 0), (0.0, 0.0), waited=0.5, steps=0, own_s=1.1, grain=100.0)
    state, asked = ControlState(), 0
    for look in range(1, 301):
        rows = 100.0 * (look > 100 and look % 7 == 0)
        decision, state = control(state, replace(seen, rows=rows, produced=(rows, 0.0)), look / 2)
        asked = asked or decision.target.remote
    assert 0 < asked <= 24


@pytest.mark.parametrize(("room", "mean_s"), [(Deployment(16, 0), 8.0), (Deployment(4, 24), 60.0)])
def test_changes_are_bounded_whatever_the_demand_does(room: Deployment, mean_s: float) -> None:
    """Each reversal doubles the time of quiet, and few steps lie between two."""
    rng, until = random.Random(mean_s), 0.0
    run = Run(Fluid(room=room, drift=0.05))
    while run.now < 3600:
        demand = rng.choice((700.0, 1500.0, 2600.0, 4000.0, 6000.0))
        until += rng.expovariate(1 / mean_s)
        run.meet(demand=lambda _, demand=demand: demand).go(until - run.now)
    counts = [after.workers - before.workers for _, before, after in run.changes]
    most = 7 + run.now / MAX_QUIET_S
    assert sum(before < 0 < after for before, after in pairwise(counts)) <= most
    assert len(counts) <= 3 * most


@pytest.mark.parametrize("price", [0.9, 1.1])
def test_what_remote_workers_send_is_in_the_bill(price: float) -> None:
    """In what they spare: what a row costs is known once the first ones have sent some, and is not forgotten."""
    spared = per_hour(0) / 2000 - per_hour(8) / 6000
    run = Run(replace(PRICED, row_transfer=price * spared * 6000 / 4000), 1).go(1500)
    assert run.requested.local == 4
    assert run.requested.remote >= 6 if price < 1 else run.requested.remote == 0
    assert run.late_changes(600) <= 2


def test_neighbours_that_cost_more_than_they_spare_are_found_by_the_bill() -> None:
    """Eight local workers slow the trainer down by a third; remote ones cost little."""
    disturbed = Fluid(room=Deployment(8, 24), demand=lambda _: 9000.0, disturbance=0.04)
    run = Run(replace(disturbed, per_hour=lambda remote: 10.0 + 0.1 * remote), 1).go(900)
    assert run.requested.local <= 2
    assert run.requested.remote >= 14


def test_beside_a_small_wait_fewer_remote_workers_are_tried() -> None:
    """A link gives 97 % of what the trainer would take, and half as many remote workers would fill it."""
    run = Run(replace(PRICED, remote=250.0), 1).go(400)
    assert run.requested.remote >= 15
    run.meet(remote=500.0, shared=5800.0).go(1500)
    assert 7 <= run.requested.remote <= 9


def test_units_do_not_matter() -> None:
    """Ten times the rows in a tenth of them each are the same job."""
    fine = Fluid(demand=lambda _: 40_000.0, local=lambda n: 5000.0 * n, batch=2560, row_s=0.0002)
    coarse = Fluid(demand=lambda _: 4000.0, local=lambda n: 500.0 * n, batch=256, row_s=0.002)
    assert Run(fine).go(90).changes == Run(coarse).go(90).changes
