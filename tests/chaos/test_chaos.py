"""A short form of `make chaos`: what the suite draws, and a run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.judgement import TrainerStory, problems
from benchmarks.faults.links import apart
from benchmarks.faults.machine import ROOT, machine
from benchmarks.faults.run import FaultRun
from tests.chaos.__main__ import DEADLINE_S
from tests.chaos.draw import BUCKETED, FAULTS, KINDS, LAST, PLANS, SHORT, chaos_case

SEED, RUN, APART_RUN = 1, 63, 196
HUNG = "OpError: element 3 of split 0 cannot be processed: work had not done with it after 8 s, twice"


def test_a_seed_draws_the_same_runs_and_all_of_them_draw_every_fault() -> None:
    cases = [chaos_case(SEED, run) for run in range(200)]
    assert cases == [chaos_case(SEED, run) for run in range(200)]
    assert {fault.kind for case in cases for fault in case.faults} == {*KINDS, *SHORT, BUCKETED, LAST}
    assert 50 < sum(case.engine == "tensorflow" for case in cases) < 85
    assert {case.plan for case in cases if case.engine == "tensorflow"} == {*PLANS}
    cut = [case for case in cases if case.cut]
    assert {case.plan for case in cut} == {*PLANS} and {case.engine for case in cut} == {"python"}
    assert all(case.workers.remote for case in cut)
    assert all(len(case.faults) == FAULTS and (case.world_size == 1 or not case.restarts) for case in cases)


def test_two_that_hang_excuse_the_error_that_says_so_and_no_other() -> None:
    case = next(one for one in (chaos_case(SEED, run) for run in range(200)) if one.has("hang"))
    hang = next(fault for fault in case.faults if fault.kind == "hang")
    twice = replace(case, faults=(hang, hang))
    told = [TrainerStory(error=HUNG, ended=True) for _ in range(case.world_size)]
    assert problems(twice, told, set()) == []
    assert problems(replace(case, faults=(hang,)), told, set())
    told[0].error = "OpError: no such luck"
    assert problems(twice, told, set())


def story(file: Path, *lines: dict[str, Any]) -> TrainerStory:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrainerStory.read(file)


def test_what_a_trainer_received_behind_the_state_that_another_one_goes_on_from_must_come_again(tmp_path: Path) -> None:
    case = replace(chaos_case(SEED, RUN), rows=4, epochs=1, plan="map", steps_s=(0.0,), drop_remainder=False)
    first: list[dict[str, Any]] = [
        {"pid": 1, "kept": 0},
        {"epoch": 0, "ids": [0]},
        {"epoch": 0, "ids": [1]},
        {"epoch": 0, "ids": [2]},
    ]
    end: dict[str, Any] = {"end": True, "threads": []}
    again = [*first, {"pid": 2, "kept": 2}, {"epoch": 0, "ids": [2, 3]}, end]
    assert problems(case, [story(tmp_path / "story", *again)], set()) == []
    lacks = [*first, {"pid": 2, "kept": 2}, {"epoch": 0, "ids": [3]}, end]
    assert problems(case, [story(tmp_path / "story", *lacks)], set()) == ["lost: epoch 0 lacks [2]"]
    twice = [*first, {"pid": 2, "kept": 3}, {"epoch": 0, "ids": [2, 3]}, end]
    assert problems(case, [story(tmp_path / "story", *twice)], set()) == ["repeated: epoch 0 has 1 too many: [2]"]


@pytest.mark.slow
def test_a_run_with_a_slow_link_and_no_room_on_its_disk_and_in_its_memory() -> None:
    if not apart():
        pytest.skip("this user may not make networks")
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(SEED), "--only", str(APART_RUN)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert all(f"| {kind} | 1 |" in done.stdout for kind in ("full shm", "full disk", "slow link")), done.stdout


@pytest.mark.slow
def test_nothing_is_lost_repeated_or_left_behind_whatever_happens(tmp_path: Path) -> None:
    with machine(tmp_path) as made:
        outcome = FaultRun(chaos_case(SEED, RUN), made, tmp_path).go(DEADLINE_S)
    assert not outcome.problems, f"{outcome.case}: {outcome.problems}"
    assert len(outcome.done) == FAULTS
