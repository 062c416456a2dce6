"""What must not hang, lose, repeat or leave anything: each situation by name, and random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.case import WORKER_TIMEOUT_S, FaultCase, Held, LiveFault, random_case
from benchmarks.faults.machine import Machine
from benchmarks.faults.run import FaultOutcome, FaultRun
from pecan_ray.options import Workers

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

DEADLINE_S = 120.0
SEED = 1
FEW, MANY = range(2), range(2, 40)


def run(case: FaultCase, nodes: Any, folder: Path) -> FaultOutcome:
    """Run a case, in which nothing may be wrong."""
    outcome = FaultRun(case, Machine(nodes), folder).go(DEADLINE_S)
    assert not outcome.problems, f"{case}: {outcome.problems}"
    return outcome


@pytest.mark.slow
def test_batches_that_wait_for_a_rank_leave_it_memory_for_its_own(three_nodes: Any, tmp_path: Path) -> None:
    """A worker's memory has room for two batches here, and each of four ranks needs one before any can be used."""
    case = FaultCase(rows=160, steps_s=(0.0,) * 4, batch=40, width=20_000, prefetch_bytes=64 << 20, epochs=2)
    run(case, three_nodes, tmp_path)


@pytest.mark.slow
def test_a_lost_node_with_most_of_the_workers_ends_no_job(three_nodes: Any, tmp_path: Path) -> None:
    case = FaultCase(
        number=1,
        rows=1200,
        epochs=2,
        steps_s=(0.0, 0.005),
        element_s=0.005,
        workers=Workers(1, 4),
        faults=(LiveFault("node", 0.1),),
        held=Held(800, losses=4),
    )
    outcome = run(case, three_nodes, tmp_path)
    assert outcome.done and outcome.lost >= 4


def test_a_worker_that_is_frozen_is_fenced_and_killed(three_nodes: Any, tmp_path: Path) -> None:
    case = FaultCase(
        rows=1200,
        steps_s=(0.0, 0.0),
        element_s=0.005,
        workers=Workers(1, 1),
        faults=(LiveFault("freeze", 0.3),),
        held=Held(800, losses=1),
    )
    outcome = run(case, three_nodes, tmp_path)
    assert outcome.done and outcome.lost >= 1


@pytest.mark.slow
def test_a_frozen_worker_that_goes_on_after_it_was_replaced_delivers_nothing_twice(
    three_nodes: Any, tmp_path: Path
) -> None:
    case = FaultCase(
        rows=600,
        epochs=2,
        element_s=0.005,
        workers=Workers(1, 1),
        faults=(LiveFault("pause", 0.1, seconds=WORKER_TIMEOUT_S + 3.0),),
        held=Held(400, losses=1),
    )
    outcome = run(case, three_nodes, tmp_path)
    assert outcome.done and outcome.lost >= 1


@pytest.mark.parametrize("number", FEW)
def test_random_jobs_with_faults(three_nodes: Any, tmp_path: Path, number: int) -> None:
    run(random_case(SEED, number), three_nodes, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", MANY)
def test_more_random_jobs_with_faults(three_nodes: Any, tmp_path: Path, number: int) -> None:
    run(random_case(SEED, number), three_nodes, tmp_path)
