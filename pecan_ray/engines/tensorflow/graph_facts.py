"""What building the graph of a plan depends on, of all of the plan."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.engines.tensorflow.epochs import ops_told_of_epoch
from pecan_ray.engines.tensorflow.repeat_passes import drained
from pecan_ray.plan.operators import BatchingOp, Plan, Repeat
from pecan_ray.plan.shape import last_batching, plan_shape


@dataclass(frozen=True)
class GraphFacts:
    """What of a plan the graph of each of its parts depends on."""

    serial: bool
    """One worker runs the plan, and `repeat` as an operator."""
    drained: bool
    has_repeat: bool
    last: BatchingOp | None
    told_epoch: frozenset[str]
    """Operators that are given the number of the epoch, by name."""

    @classmethod
    def of(cls, plan: Plan) -> GraphFacts:
        """Return those of a plan."""
        return cls(
            plan_shape(plan, order=False).serial,
            drained(plan),
            any(isinstance(op, Repeat) for op in plan.all_ops()),
            last_batching(plan),
            frozenset(op.name for op in ops_told_of_epoch(plan)),
        )
