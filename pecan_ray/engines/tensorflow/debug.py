"""The tensorflow engine for a debug run: the same graph, with its batches in ordinary memory."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pecan_ray.engines.contract import BadElement, EngineOptions, Leases, Produced
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow.engine import TensorFlowEngine
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.sources.memory import Items


def run_here(plan: Plan, options: EngineOptions, leases: Leases) -> Generator[Produced, None, None]:
    """Yield what a plan makes of leases."""
    engine = TensorFlowEngine(plan, tuple(plan.sources()), options, HeapSlots())
    try:
        yield from engine.batches(leases)
    finally:
        engine.close()


def replay(ops: Sequence[ElementOp], bad: BadElement, seed: int) -> None:
    """Run operators on a quarantined element, with other random numbers than it had; raises what they raise."""
    # A plan of one element, so a quarantined element takes the same way through a graph as in a job.
    plan = Plan(head=Items([bad.element]), ops=tuple(ops))
    leases = AllLeases(tuple(plan.sources()), epoch=0, num_passes=1)
    for _ in run_here(plan, EngineOptions(seed=seed, order="strict"), leases):
        pass
