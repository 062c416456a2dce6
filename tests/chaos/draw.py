"""Draws jobs to which five things happen each."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.faults.case import WORKER_TIMEOUT_S, FaultCase, LiveFault, LiveFaultKind, PlanName, random_case
from pecan_ray.options import Workers

FAULTS = 5
KINDS: tuple[LiveFaultKind, ...] = ("kill",) * 4 + (
    "freeze",
    "pause",
    "hang",
    "scale",
    "node",
    "pause node",
    "pause trainer",
    "kill controller",
)
"""Each as often as it stands here; workers are killed most."""
LAST: LiveFaultKind = "kill trainer"
"""What ends a job, and so comes last."""
LAST_SHARE = 0.1
WORK_S = 12.0
"""Of each worker, so that all happens while there is something to do."""
PLANS: tuple[PlanName, ...] = ("map", "map", "map", "filter", "flat_map", "bad", "take")


def chaos_case(seed: int, run: int) -> FaultCase:
    """Draw a run; the same one for the same two numbers."""
    rng = random.Random(f"chaos {seed}/{run}")
    faults = _faults(rng)
    lost = any(fault.kind == "node" for fault in faults)
    local, remote = (1, rng.choice((2, 3))) if lost else rng.choice(((1, 1), (2, 0), (0, 2), (2, 1), (1, 2)))
    rows, epochs = rng.choice((400, 800, 1200)), rng.randint(1, 3)
    plan = rng.choice(PLANS)
    ranks = rng.choice((1, 2, 2, 3)) if faults[-1].kind != "kill trainer" else rng.choice((2, 3))
    return replace(
        random_case(seed, run),
        number=run,
        rows=rows,
        epochs=epochs,
        steps_s=tuple(rng.choice((0.0, 0.005, 0.03)) for _ in range(ranks)),
        plan=plan,
        batch=rng.choice((1, 3, 8, 16)),
        repeat=1,
        shuffle=0 if plan == "take" else rng.choice((0, 0, 0, 20)),
        width=rng.choice((1, 1000)),
        element_s=WORK_S * (local + remote) / (rows * epochs),
        visitation="exactly_once",
        workers=Workers(local, remote),
        engine="python",
        reorder=False,  # a sample would be what hangs
        faults=faults,
        held=None,
    )


def _faults(rng: random.Random) -> tuple[LiveFault, ...]:
    """Draw what happens, in the order of time."""
    kinds = [rng.choice(KINDS) for _ in range(FAULTS)]
    kinds = ["kill" if kind == "node" and kind in kinds[:place] else kind for place, kind in enumerate(kinds)]
    if rng.random() < LAST_SHARE:
        kinds[-1] = LAST
    times = sorted(rng.uniform(0.05, 0.7) for _ in kinds)
    return tuple(_fault(rng, kind, at) for kind, at in zip(kinds, times, strict=True))


def _fault(rng: random.Random, kind: LiveFaultKind, at: float) -> LiveFault:
    local, remote = rng.choice(((1, 1), (2, 1), (1, 2), (2, 2)))
    seconds = rng.choice((0.3, 2.0, WORKER_TIMEOUT_S + 3.0)) if kind == "pause" else rng.uniform(0.5, 4.0)
    return LiveFault(kind, at, local, remote, seconds)
