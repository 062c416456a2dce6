"""What must not hang, lose, repeat or leave anything: situations by name, and random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.case import WORKER_TIMEOUT_S, FaultCase, Held, LiveFault, random_case
from benchmarks.faults.machine import Machine
from benchmarks.faults.run import FaultRun
from pecan_ray.options import Workers

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

SEED, FEW, MANY = 1, range(2), range(2, 40)
FROZEN = "a worker that is frozen is fenced and killed"
NAMED = {
    FROZEN: FaultCase(
        rows=1200,
        steps_s=(0.0, 0.0),
        element_s=0.005,
        workers=Workers(1, 1),
        faults=(LiveFault("freeze", 0.3),),
        held=Held(800, losses=1),
    ),
    # A worker's memory has room for two batches here, and each of four ranks needs one before any can be used.
    "batches that wait for a rank leave it memory for its own": FaultCase(
        rows=160, steps_s=(0.0,) * 4, batch=40, width=20_000, prefetch_bytes=64 << 20, epochs=2
    ),
    "a lost node with most of the workers ends no job": FaultCase(
        number=1,
        rows=1200,
        epochs=2,
        steps_s=(0.0, 0.005),
        element_s=0.005,
        workers=Workers(1, 4),
        faults=(LiveFault("node", 0.1),),
        held=Held(800, losses=4),
    ),
    "a frozen worker that goes on after it was replaced delivers nothing twice": FaultCase(
        rows=600,
        epochs=2,
        element_s=0.005,
        workers=Workers(1, 1),
        faults=(LiveFault("pause", 0.1, seconds=WORKER_TIMEOUT_S + 3.0),),
        held=Held(400, losses=1),
    ),
}
RANDOM = {f"random {number}": random_case(SEED, number) for number in (*FEW, *MANY)}
SHORT = {FROZEN, *(f"random {number}" for number in FEW)}
ALL = NAMED | RANDOM
CASES = [pytest.param(ALL[name], marks=() if name in SHORT else pytest.mark.slow, id=name) for name in ALL]


@pytest.mark.parametrize("case", CASES)
def test_nothing_hangs_is_lost_comes_twice_or_is_left(three_nodes: Any, tmp_path: Path, case: FaultCase) -> None:
    outcome = FaultRun(case, Machine(three_nodes), tmp_path).go(120.0)
    assert not outcome.problems, f"{case}: {outcome.problems}"
    if case.held is not None:
        assert outcome.done and outcome.lost >= case.held.losses
