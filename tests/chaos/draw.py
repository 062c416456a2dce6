"""Draws jobs to which six things happen each."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from benchmarks.faults.case import WORKER_TIMEOUT_S, FaultCase, LiveFault, LiveFaultKind, PlanName, random_case
from pecan_ray.options import EngineName, Workers

FAULTS = 6
KINDS: tuple[LiveFaultKind, ...] = ("kill",) * 4 + (
    "freeze",
    "pause",
    "hang",
    "scale",
    "node",
    "pause node",
    "pause trainer",
    "kill controller",
    "kill controller",
    "pause controller",
    "restart from state",
    "restart from journal",
    "slow link",
    "slow link",
    "cut link",
    "cut link",
    "storage outage",
    "storage errors",
    "storage resets",
    "full disk",
    "full shm",
    "preempt node",
    "terminate",
)
"""Each as often as it stands here; workers are killed most."""
STORED: tuple[LiveFaultKind, ...] = ("storage outage", "storage errors", "storage resets")
RESTARTS = ("restart from state", "restart from journal")
NODES = ("node", "full shm", "preempt node")
"""What may cost the one node that can be lost."""
JOURNAL = ("kill controller", *RESTARTS)
"""What asks for a journal, and cannot be behind a full disk, on which there is none any more."""
BUCKETED: LiveFaultKind = "journal outage"
"""In place of a death: the store fails that holds a copy of the journal.  No job begins meanwhile, which would be
refused, and none has its journal on a small disk."""
BUCKETED_SHARE = 0.2
SHORT: tuple[LiveFaultKind, ...] = ("few files", "few files", "pause gcs")
"""In place of another death: what a worker, or all of Ray, runs short of for a while."""
SHORT_SHARE = 0.5
LAST: LiveFaultKind = "kill trainer"
"""What ends a job, and so comes last."""
LAST_SHARE = 0.1
STORED_SHARE = 0.3
"""Of the jobs whose store does not fail."""
TENSORFLOW_SHARE = 1 / 3
"""Of the jobs run on the tensorflow engine."""
CUT_SHARE = 0.3
"""Of the jobs on the python engine that have remote workers: these leave the last operator to the trainers."""
SECONDS: dict[LiveFaultKind, tuple[float, ...]] = {
    "pause": (0.3, 2.0, WORKER_TIMEOUT_S + 3.0),
    "pause controller": (0.3, 2.0, 8.0),
    **dict.fromkeys(STORED, (1.0, 2.0, 4.0, 10.0)),
    **dict.fromkeys(("preempt node", "terminate"), (0.05, 3.0, 8.0, 20.0)),
}
"""How long some things last."""
WORK_S = 6.0
"""Of each worker, so that all happens while there is something to do."""
PLANS: tuple[PlanName, ...] = ("map", "map", "map", "filter", "flat_map", "bad", "take")


def chaos_case(seed: int, run: int) -> FaultCase:
    """Draw a run; the same one for the same two numbers."""
    rng = Random(f"chaos {seed}/{run}")
    faults = _faults(rng)
    if not {fault.kind for fault in faults} & {*RESTARTS, "full disk"}:
        faults = _for_a_kill(
            faults, Random(f"journals {seed}/{run}"), BUCKETED_SHARE, (BUCKETED,), (1.0, 2.0, 4.0, 10.0)
        )
    faults = _for_a_kill(faults, Random(f"short {seed}/{run}"), SHORT_SHARE, SHORT, (0.5, 2.0, 8.0))
    kinds = {fault.kind for fault in faults}
    lost, shm = bool(kinds & {*NODES}), "full shm" in kinds
    local, remote = (1, rng.choice((2, 3))) if lost else rng.choice(((1, 1), (2, 0), (0, 2), (2, 1), (1, 2)))
    stored = bool(kinds & {*STORED}) or rng.random() < STORED_SHARE
    rows, epochs = rng.choice((800,) if stored else (400, 800)), rng.randint(1, 2)
    plan = rng.choice(PLANS)
    ranks = rng.choice((1, 2, 2, 3)) if faults[-1].kind != LAST else rng.choice((2, 3))
    ranks = 1 if kinds & {*RESTARTS} else ranks
    batch = rng.choice((1, 3, 8, 16))
    # All steps together are to take no longer than the work of the workers.
    steps = [step for step in (0.0, 0.005, 0.03) if step * rows * epochs <= WORK_S * batch * ranks]
    drawn = random_case(seed, run)
    engine: EngineName = "python"
    if Random(f"engine of {seed}/{run}").random() < TENSORFLOW_SHARE:
        engine = "tensorflow"
    cut = engine == "python" and remote > 0 and Random(f"cut {seed}/{run}").random() < CUT_SHARE
    return replace(
        drawn,
        number=run,
        rows=rows,
        epochs=epochs,
        steps_s=tuple(rng.choice(steps) for _ in range(ranks)),
        drop_remainder=drawn.drop_remainder and not kinds & {*RESTARTS},
        transport=rng.choice(("object_store", drawn.transport)) if shm else drawn.transport,
        plan=plan,
        batch=batch,
        repeat=1,
        shuffle=0 if plan == "take" else rng.choice((0, 0, 0, 20)),
        width=20_000 if shm else rng.choice((1, 1000)),
        element_s=WORK_S * (local + remote) / (rows * epochs),
        visitation="exactly_once",
        workers=Workers(local, remote),
        engine=engine,
        reorder=False,  # a sample would be what hangs
        faults=faults,
        held=None,
        stored=stored,
        cut=cut,
    )


def _faults(rng: Random) -> tuple[LiveFault, ...]:
    """Draw what happens, in the order of time."""
    kinds: list[LiveFaultKind] = []
    last = rng.random() < LAST_SHARE
    for _ in range(FAULTS):
        kind = rng.choice(KINDS)
        again = (kind in NODES and not {*NODES}.isdisjoint(kinds)) or (kind == "hang" and kind in kinds)
        without = (kind in JOURNAL and "full disk" in kinds) or (kind in RESTARTS and last)
        kinds.append("kill" if again or without else kind)
    if last:
        kinds[-1] = LAST
    times = sorted(rng.uniform(0.05, 0.7) for _ in kinds)
    return tuple(_fault(rng, kind, at) for kind, at in zip(kinds, times, strict=True))


def _for_a_kill(
    faults: tuple[LiveFault, ...],
    rng: Random,
    share: float,
    kinds: tuple[LiveFaultKind, ...],
    seconds: tuple[float, ...],
) -> tuple[LiveFault, ...]:
    """Let something else happen in a share of the runs where a worker would be killed."""
    kills = [place for place, fault in enumerate(faults) if fault.kind == "kill"]
    if not kills or rng.random() >= share:
        return faults
    place = rng.choice(kills)
    kind = rng.choice(kinds) if len(kinds) > 1 else kinds[0]
    return (*faults[:place], replace(faults[place], kind=kind, seconds=rng.choice(seconds)), *faults[place + 1 :])


def _fault(rng: Random, kind: LiveFaultKind, at: float) -> LiveFault:
    local, remote = rng.choice(((1, 1), (2, 1), (1, 2), (2, 2)))
    seconds = rng.uniform(0.5, 4.0)
    if kind == "slow link":
        seconds = rng.uniform(1.0, 5.0)
    elif kind in SECONDS:
        seconds = rng.choice(SECONDS[kind])
    return LiveFault(kind, at, local, remote, seconds, rng.uniform(0.01, 0.1), rng.uniform(0.0, 0.03))
