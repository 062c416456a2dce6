"""Decoding on the trainer's accelerator: when the placement controller has it tried, keeps it, and gives it up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.placement.accelerator import refused
from pecan_ray.placement.control import control
from pecan_ray.placement.trial_history import HELD_S, ControlState
from pecan_ray.plan.windows import Deployment
from tests.long_form import examples
from tests.unit.placement.fluid import Fluid, Run, observed

HUNGRY = Fluid(demand=lambda _: 20_000.0, decodes=18_000.0)
"""Sixteen CPUs give 8,000 rows a second, of 20,000 that the trainer would take."""


def test_a_trainer_that_waits_beside_all_cpus_has_its_accelerator_decode_and_gives_cpus_back() -> None:
    run = Run(HUNGRY).go(300)
    assert run.accelerator and len(run.switches) == 1 and run.state.accelerator.is_kept
    before = run.taken
    assert run.go(60).taken - before == pytest.approx(60 * 18_000, rel=0.02)
    needed = Run(replace(HUNGRY, demand=lambda _: 12_000.0)).go(600)
    assert needed.accelerator and needed.running.local < 6, "12,000 rows are those of four light workers"
    assert len(needed.switches) == 1


REASONS: dict[str, dict[str, Any]] = {
    "it may not": {"decodes": None},
    "nobody waits": {"demand": lambda _: 7_000.0},
    "the trainer hardly waits": {"demand": lambda _: 8_500.0},
    "storage is what limits": {"shared": 3_000.0},
    "remote CPUs are idle": {"room": Deployment(16, 64)},
}


@pytest.mark.parametrize("why", REASONS)
def test_it_is_not_tried_where(why: str) -> None:
    run = Run(replace(HUNGRY, **REASONS[why])).go(600)
    assert not run.switches and not run.accelerator


@pytest.mark.parametrize(
    "worse", [{"decodes": 5_000.0}, {"decodes": 8_100.0}, {"slower": lambda _: 1.6}, {"decodes": 0.0}, {"light": 1.0}]
)
def test_it_goes_back_where_it_brings_nothing_and_tries_ever_less_often(worse: dict[str, Any]) -> None:
    run = Run(replace(HUNGRY, **worse)).go(1440)
    assert not run.accelerator and run.running == Deployment(16, 0)
    began = run.switches[::2]
    assert 3 <= len(began) <= 2 + math.log2(1440 / HELD_S)
    assert all(later - earlier > HELD_S * 2**n for n, (earlier, later) in enumerate(pairwise(began)))
    said = next(decision.reason for _, decision in run.decisions if decision.phase == "back")
    assert ("no batch has come for 30 s" if worse.get("decodes") == 0 else "the trainer takes") in said


def test_it_goes_back_when_the_trainer_becomes_slower_beside_it_later() -> None:
    run = Run(replace(HUNGRY, slower=lambda now: 0.1 if now < 600 else 2.0)).go(600)
    assert run.accelerator
    run.go(60)
    assert not run.accelerator and len(run.switches) == 2
    _, back = next(one for one in run.decisions if one[1].phase == "back")
    assert "the trainer takes -1" in back.reason and back.reason.endswith("workers decode again.")


def test_a_trainer_that_refuses_an_image_is_asked_again_later() -> None:
    run = Run(HUNGRY).go(200)
    run.state = refused(run.state, run.now)
    since = run.now
    run.heed(run.look())
    assert not run.accelerator
    run.go(HELD_S + 60)
    assert run.accelerator and run.switches[-1] > since + HELD_S


def test_workers_that_take_long_to_start_are_given_time_for_a_batch() -> None:
    run, none = (
        Run(HUNGRY),
        {"rows": 0.0, "steps": 0, "waited": 0.5, "requested": Deployment(16, 0), "accelerator": True},
    )
    while not run.accelerator:
        run.heed(run.look())
    state, seconds, phase = run.state, 0.0, ""
    while phase != "back" and seconds < 100:
        seconds += 0.5
        o = observed(Deployment(16 if seconds > 35 else 0, 0), (500.0, 500.0), 0.0, since_taken=seconds, **none)
        decision, state = control(state, o, run.now + seconds)
        phase = decision.phase
    assert 65 < seconds < 67


@pytest.mark.parametrize(("every", "is_rare"), [(600, True), (60, False)])
def test_bad_images_that_are_rare_do_not_end_its_use(every: int, is_rare: bool) -> None:
    """One in each epoch of ten minutes costs a wait each time; where they are frequent, it is tried ever less often."""
    run, used = Run(HUNGRY).go(200), list[bool]()
    while run.now < 7_200:
        run.state = refused(run.state, run.now)
        used.append(run.go(every).accelerator)
    assert all(used) if is_rare else sum(used) < len(used) / 10


@st.composite
def jobs(draw: st.DrawFn) -> Fluid:
    """Draw a job; whether decoding may run on its accelerator, and is worth it, is left to chance."""
    demand, slower = draw(st.floats(500, 40_000)), draw(st.sampled_from([0.0, 0.05, 0.5, 2.0]))
    return Fluid(
        demand=lambda _: demand,
        room=Deployment(draw(st.integers(1, 16)), draw(st.sampled_from([0, 0, 8]))),
        decodes=draw(st.none() | st.just(0.0) | st.floats(1, 40_000)),
        light=draw(st.floats(1, 10)),
        slower=lambda _: slower,
        drift=draw(st.sampled_from([0.0, 0.05])),
        queue=draw(st.sampled_from([2.0, 30.0])),
        shared=draw(st.sampled_from([math.inf, 3_000.0])),
        per_hour=draw(st.sampled_from([None, lambda remote: 5.0 + 0.4 * remote])),
    )


@given(jobs(), st.integers(0, 1000))
@examples(100)
def test_whatever_the_job_it_does_not_swing_and_is_not_used_where_cpus_are_idle(job: Fluid, seed: int) -> None:
    run = Run(job, seed)
    while run.now < 400:
        o = run.look()
        was_on = run.accelerator
        decision = run.heed(o)
        if decision.accelerator and not was_on:
            assert job.decodes is not None and o.waited > 0
            assert o.running == o.requested and o.running.local >= job.room.local
    assert len(run.switches) <= 2 * (2 + math.log2(400 / HELD_S)), "each trial doubles the time before the next one"
    if run.accelerator and run.state.accelerator.is_kept and not job.drift:
        alone = min(job.demand(0), job.supply(job.room))
        at = min(job.demand(0) / (1 + job.slower(0)), job.light * job.supply(job.room), job.decodes or 0.0)
        assert at > alone * 0.95, "what is kept is no slower"


def test_an_accelerator_that_is_gone_is_not_waited_for() -> None:
    run = Run(HUNGRY).go(200)
    decision, state = control(run.state, replace(run.look(), accelerator=None), run.now)
    assert not decision.accelerator and state.accelerator.not_before > run.now
    decision, _ = control(ControlState(), observed(Deployment(16, 0), (500.0, 500.0), accelerator=True), 1.0)
    assert not decision.accelerator and "workers are being replaced" in decision.reason
