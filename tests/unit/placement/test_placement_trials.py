"""Trials of the placement controller: when they are judged, by what, and what they leave behind."""

from __future__ import annotations

import math

import pytest

from pecan_ray.placement.control import control
from pecan_ray.placement.looks import LookSums
from pecan_ray.placement.trial_history import AcceleratorUse, Bound, ControlState, Known, PlacementTrial, TrialHistory
from pecan_ray.plan.windows import Decision, Deployment
from tests.unit.placement.fluid import observed


def per_hour(remote: int) -> float:
    return 6.0 + 0.3 * remote


def judged(trial: PlacementTrial, running: Deployment, taken: float) -> tuple[Decision, ControlState]:
    """Judge a trial of the bill: each local worker can make 60 rows a second, each remote one 750."""
    load = taken / (60.0 * running.local + 750.0 * running.remote)
    seen = observed(running, (60.0, 750.0), load, steps=20)
    state, look = ControlState(trial=trial), 0
    while state.trial == trial:
        look += 1
        decision, state = control(state, seen, look / 2, per_hour)
    return decision, state


def test_where_nothing_was_seen_nothing_is_known() -> None:
    assert LookSums(2.0) == (2.0, *8 * [0.0]) and Known() == Known((0.0, 0.0), 0.0)
    state = ControlState()
    assert (state.looks, state.missed_s, state.calm_s, state.stretch.span) == ((), 0.0, 0.0, 0.0)
    assert state.trial is None and state.trial_history == TrialHistory(bracket=(-1, 0))
    assert state.accelerator == AcceleratorUse(False, 0.0, 0.0, False, not_before=0.0)


def test_what_is_cheaper_is_sought_on_both_sides_of_what_is_better() -> None:
    _, state = judged(PlacementTrial("bill", Deployment(7, 8), 1.0), Deployment(3, 6), 4000.0)
    assert state.trial_history.bracket == (-1, 7)
    assert [bound.count for bound in state.trial_history.bounds] == [3, 6]
    _, state = judged(PlacementTrial("bill", Deployment(7, 8), 1.0), Deployment(7, 6), 4000.0)
    assert [bound.count for bound in state.trial_history.bounds] == [math.inf, 6], "as many local ones are no bound"


def test_a_bill_is_that_of_the_remote_workers_that_would_stay() -> None:
    """Six came for a trial, and five suffice: with the sixth a row would be dearer than before it."""
    before = PlacementTrial("bill", Deployment(16, 4), (6.0 + 0.3 * 5.5) / 4100)
    decision, _ = judged(before, Deployment(8, 6), 4100.0)
    assert decision.phase != "back"


@pytest.mark.parametrize("here", [2, 6], ids=["nodes are lost", "nodes are there"])
def test_local_workers_go_for_remote_ones_that_are_there(here: int) -> None:
    """Nodes may be lost, or never come; the job had given up its local workers for them all the same."""
    seen = observed(Deployment(7, here), (7.0, 8.0), dt=1.0, steps=4)
    trial = PlacementTrial("bill", Deployment(7, 2), 0.02, remote=6)
    decision, state = control(ControlState(trial=trial, next_deployment=Deployment(3, 6)), seen, 1.0, per_hour)
    assert (decision.target.local == 3) == (here == 6) == (state.trial == trial)
    assert state.next_deployment is None


def test_local_workers_help_while_a_trial_of_the_bill_waits_for_nodes_and_it_goes_on() -> None:
    """The trainer waits for rows, and CPUs are idle."""
    running, target = Deployment(7, 0), Deployment(3, 6)
    seen = observed(running, (14.0, 0.0), requested=Deployment(7, 6), waited=0.3)
    trial = PlacementTrial("bill", running, 0.02)
    state, asked = ControlState(trial=trial, next_deployment=target), Deployment(0, 0)
    for look in range(1, 5):
        decision, state = control(state, seen, look / 2, per_hour)
        asked = max(asked, decision.target)
    assert asked.local > running.local and asked.remote == target.remote
    assert (state.trial, state.next_deployment) == (trial, target)


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


def test_rows_that_workers_have_begun_are_no_reason_to_do_with_fewer() -> None:
    """Of rows of 5 s each worker has one begun, before a trial and in it: half of them each are a fourth of all."""
    seen = observed(Deployment(8, 0), (0.2, 0.0), waited=0.5, steps=0)
    state, now = ControlState(trial=PlacementTrial("fewer", Deployment(16, 0), 2.1)), 0.0
    while state.trial is not None:
        now += 0.5
        decision, state = control(state, seen, now)
    assert decision.phase == "back" and decision.target == Deployment(16, 0)
    assert state.times.quiet_s > ControlState().times.quiet_s
