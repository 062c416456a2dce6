"""The placement controller's decisions for jobs drawn at random, written down: a change to it shows what it changes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.plan.windows import Deployment
from tests.unit.placement.fluid import Fluid, Run

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each job; `python -m tests.unit.placement.test_placement_decided` writes all anew."""
JOBS = 24
PHASE_S = 120.0
"""After so long the trainer's demand is another one."""


def drawn(seed: int) -> tuple[Fluid, Mapping[str, Any]]:
    """Draw a job, and what its looks say besides."""
    draw = random.Random(seed)
    room = draw.choice((Deployment(16, 0), Deployment(4, 24), Deployment(8, 64), Deployment(1, 24), Deployment(0, 24)))
    demands = draw.sample((0.0, 700.0, 1500.0, 2600.0, 4000.0, 6000.0, 60_000.0), 3)
    exponent, crowded = draw.choice((1.0, 1.0, 0.7)), draw.choice((math.inf, math.inf, room.local // 2))
    dollars = draw.choice((None, (4.96, 0.42), (1.0, 1.0), (10.0, 0.1)))
    job = Fluid(
        demand=lambda now: demands[min(2, int(now / PHASE_S))],
        local=lambda count: 500.0 * count**exponent,
        shared=draw.choice((math.inf, math.inf, 1800.0)),
        room=room,
        queue=draw.choice((2.0, 6.0, 1000.0)),
        row_s=draw.choice((0.002, 0.0005, None)),
        lag=lambda local: 0.2 if local > crowded else 0.0,
        drift=draw.choice((0.0, 0.05)),
        per_hour=dollars and (lambda remote: dollars[0] + dollars[1] * remote),
    )
    others: list[dict[str, Any]] = [{}, {"required_rate": 2000.0}, {"grain": 256.0}, {"threads": (2.0, 4.0)}]
    others += [{"own_s": 0.0007}, {"busy_waiting": 0.5}, {"least": Deployment(min(2, room.local), min(3, room.remote))}]
    return job, draw.choice(others)


def decided(seed: int) -> str:
    """Return what is decided for a job: other workers, and each reason to keep those that there are."""
    job, besides = drawn(seed)
    run, lines, kept = Run(job, seed), list[str](), set[str]()
    while run.now < 3 * PHASE_S:
        before = run.requested
        decision = run.heed(replace(run.look(), **besides))
        if decision.target != before:
            kept.clear()
        if decision.reason not in kept and "too little was seen" not in decision.reason:
            lines.append(f"{run.now:.1f} s, {decision.phase}: {decision.reason}")
        kept.add(decision.reason)
    return "\n".join((f"job {seed}", *lines))


@pytest.mark.parametrize("seed", range(JOBS))
def test_what_is_decided_for_a_job_is_what_is_written_down(seed: int) -> None:
    assert decided(seed) == WRITTEN.read_text().strip().split("\n\n")[seed]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, range(JOBS))) + "\n")
