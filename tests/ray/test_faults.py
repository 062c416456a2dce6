"""What must not hang, lose, repeat or leave anything: a worker that is frozen, and random jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.case import FaultCase, Held, LiveFault, random_case
from benchmarks.faults.machine import Machine
from benchmarks.faults.run import FaultRun
from pecan_ray.options import Workers

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

SEED, FEW, MANY = 1, range(1), range(1, 14)
FROZEN = FaultCase(
    rows=1200,
    steps_s=(0.0, 0.0),
    element_s=0.005,
    workers=Workers(1, 1),
    faults=(LiveFault("freeze", 0.3),),
    held=Held(800, losses=1),
)
"""A worker that is frozen is fenced and killed."""
CASES = [
    pytest.param(FROZEN, id="frozen"),
    *(pytest.param(random_case(SEED, number), id=f"random {number}") for number in FEW),
    *(pytest.param(random_case(SEED, number), marks=pytest.mark.slow, id=f"random {number}") for number in MANY),
]


@pytest.mark.parametrize("case", CASES)
def test_nothing_hangs_is_lost_comes_twice_or_is_left(three_nodes: Any, tmp_path: Path, case: FaultCase) -> None:
    outcome = FaultRun(case, Machine(three_nodes), tmp_path).go(120.0)
    assert not outcome.problems, f"{case}: {outcome.problems}"
    if case.held is not None:
        assert outcome.done and outcome.lost >= case.held.losses
