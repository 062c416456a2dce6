"""Trials of the placement controller: when they are judged, by what, and what they leave behind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pecan_ray.placement.control import control
from pecan_ray.placement.looks import Observation
from pecan_ray.placement.trial_history import Bound, ControlState, PlacementTrial
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Decision, Deployment
from tests.unit.placement.fluid import Fluid, Run

PRICES = Prices(accelerator_host=4.96, remote_worker=0.42)


def per_hour(remote: int) -> float:
    return PRICES.per_hour(1, remote)


def judged(trial: PlacementTrial, running: Deployment, taken: float) -> tuple[Decision, ControlState]:
    """Judge a trial of the bill: each local worker can make 60 rows a second, each remote one 750."""
    load = taken / (60.0 * running.local + 750.0 * running.remote)
    busy = load * running.local / 2, load * running.remote / 2
    o = Observation(
        dt=0.5,
        running=running,
        requested=running,
        room=Deployment(16, 24),
        rows=taken / 2,
        steps=20,
        produced=(60.0 * busy[0], 750.0 * busy[1]),
        work_done=busy,
        blocked=((running.local - 2 * busy[0]) / 2, (running.remote - 2 * busy[1]) / 2),
    )
    state, look = ControlState(trial=trial), 0
    while state.trial == trial:
        look += 1
        decision, state = control(state, o, look / 2, lambda remote: 6.0 + 0.3 * remote)
    return decision, state


def test_what_is_cheaper_is_sought_on_both_sides_of_what_is_better() -> None:
    _, state = judged(PlacementTrial("bill", Deployment(7, 8), 1.0), Deployment(3, 6), 4000.0)
    assert state.trial_history.bracket == (-1, 7)


def test_a_bill_is_that_of_the_remote_workers_that_would_stay() -> None:
    """Six came for a trial, and five suffice: with the sixth a row would be dearer than before it."""
    before = PlacementTrial("bill", Deployment(16, 4), (6.0 + 0.3 * 5.5) / 4100)
    decision, _ = judged(before, Deployment(8, 6), 4100.0)
    assert decision.phase != "back"


@pytest.mark.parametrize("here", [2, 6], ids=["nodes are lost", "nodes are there"])
def test_local_workers_go_for_remote_ones_that_are_there(here: int) -> None:
    """Nodes may be lost, or never come; the job had given up its local workers for them all the same."""
    running = Deployment(7, here)
    o = Observation(
        dt=1.0,
        running=running,
        requested=running,
        room=Deployment(16, 24),
        waited=0.0,
        rows=100.0,
        steps=4,
        produced=(50.0, 50.0),
        work_done=(7.0, float(here)),
    )
    trial = PlacementTrial("bill", Deployment(7, 2), 0.02, remote=6)
    decision, state = control(ControlState(trial=trial, next_deployment=Deployment(3, 6)), o, 1.0, per_hour)
    assert (decision.target.local == 3) == (here == 6) == (state.trial == trial)
    assert state.next_deployment is None


def test_nothing_is_learned_from_a_trial_whose_nodes_are_lost() -> None:
    lost = PlacementTrial("bill", Deployment(7, 8), 1e-9, remote=8)
    decision, state = judged(lost, Deployment(3, 6), 4000.0)
    assert decision.phase != "back"
    assert state.trial_history == ControlState().trial_history


def test_what_suffices_beside_some_remote_workers_is_no_bound_beside_fewer() -> None:
    """A node was lost, and the trainer waited for minutes beside idle CPUs of its own."""
    bound = Bound(3, rate=4000.0, room=16, until=100.0, beside=6)
    assert bound.most(50.0, 3500.0, 16, beside=6) == 3
    assert bound.most(50.0, 3500.0, 16, beside=5) == math.inf


def test_a_sample_that_is_too_low_beside_workers_that_crowd_each_other_makes_few_trials() -> None:
    """Fewer of them are each faster, so that what was measured once is no news: one trial was made each 15 s."""
    run = Run(Fluid(demand=lambda _: 60_000.0, local=lambda count: 600.0 * count**0.7))
    while run.now < 900:
        o = run.look()
        assert o.own_s is not None
        run.heed(replace(o, own_s=o.own_s / 3))
    trials = [at for at, before, after in run.changes if after.local < before.local]
    assert len(trials) <= 8, "the quiet time before a trial doubles with each that was wrong"
    assert run.requested.local == 16


def test_rows_that_workers_have_begun_are_no_reason_to_do_with_fewer() -> None:
    """Of rows of 5 s each worker has one begun, before a trial and in it: half of them each are a fourth of all."""
    running = Deployment(8, 0)
    o = Observation(
        dt=0.5,
        running=running,
        requested=running,
        room=Deployment(16, 0),
        waited=0.5,
        rows=0.8,
        steps=0,
        produced=(0.8, 0.0),
        work_done=(4.0, 0.0),
    )
    state, now = ControlState(trial=PlacementTrial("fewer", Deployment(16, 0), 2.1)), 0.0
    while state.trial is not None:
        now += 0.5
        decision, state = control(state, o, now)
    assert decision.phase == "back" and decision.target == Deployment(16, 0)
    assert state.times.quiet_s > ControlState().times.quiet_s


@pytest.mark.parametrize("demand", [2000.0, 4000.0, 6000.0])
@pytest.mark.parametrize("bursts", [False, True])
def test_a_line_for_a_cpu_that_other_programs_make_is_not_tried_again_and_again(demand: float, bursts: bool) -> None:
    """Fewer workers do not shorten it.  The trainer missed those that went, now and then, and 500 changes an hour came
    of it."""
    job = Fluid(demand=lambda now: 7500.0 if bursts and now % 20 < 3 else demand, lag=lambda _: 0.1)
    run = Run(job).go(3600)
    assert run.late_changes() <= 40
    assert run.waited <= 0.02 * run.now


def test_no_trial_is_made_of_fewer_workers_than_the_user_wants() -> None:
    run = Run(Fluid(demand=lambda _: 2000.0, lag=lambda _: 0.2))
    while run.now < 60:
        run.heed(replace(run.look(), least=Deployment(16, 0)))
    assert run.changes == [] and all(decision.phase != "trial" for _, decision in run.decisions)
