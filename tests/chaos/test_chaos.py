"""A short form of `make chaos`: what the suite draws, and a run of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from benchmarks.faults.judgement import TrainerStory, problems, recoveries
from benchmarks.faults.machine import machine
from benchmarks.faults.run import FaultRun
from tests.chaos.__main__ import DEADLINE_S
from tests.chaos.draw import FAULTS, KINDS, LAST, chaos_case

SEED, RUN = 1, 24
HUNG = "OpError: element 3 of split 0 cannot be processed: work had not done with it after 8 s, twice"


def test_a_seed_draws_the_same_runs_and_all_of_them_draw_every_fault() -> None:
    cases = [chaos_case(SEED, run) for run in range(200)]
    assert cases == [chaos_case(SEED, run) for run in range(200)]
    assert {fault.kind for case in cases for fault in case.faults} == {*KINDS, LAST}
    for case in cases:
        assert len(case.faults) == FAULTS and all(a.at <= b.at for a, b in pairwise(case.faults))
        assert not case.has(LAST) or case.faults[-1].kind == LAST
        assert case.world_size > 1 or not case.has("kill trainer")


def test_two_that_hang_excuse_the_error_that_says_so_and_no_other() -> None:
    case = next(one for one in (chaos_case(SEED, run) for run in range(200)) if one.has("hang"))
    hang = next(fault for fault in case.faults if fault.kind == "hang")
    twice = replace(case, faults=(hang, hang))
    told = [TrainerStory(error=HUNG, ended=True) for _ in range(case.world_size)]
    assert problems(twice, told, set()) == []
    assert problems(replace(case, faults=(hang,)), told, set())
    told[0].error = "OpError: no such luck"
    assert problems(twice, told, set())


def test_a_worker_is_replaced_when_another_one_runs() -> None:
    events = [[1.0, "worker"], [5.0, "lost"], [5.5, "lost"], [7.0, "worker"], [9.0, "lost"]]
    assert recoveries([TrainerStory(), TrainerStory(facts={"events": events})]) == [2.0, 1.5]
    assert recoveries([TrainerStory()]) == []


def test_nothing_is_lost_repeated_or_left_behind_whatever_happens(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        outcome = FaultRun(chaos_case(SEED, RUN), made, tmp_path).go(DEADLINE_S)
    assert not outcome.problems, f"{outcome.case}: {outcome.problems}"
    assert len(outcome.done) == FAULTS
