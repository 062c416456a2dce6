"""Whether a plan's batches can be made in rounds: one for each rank, all of the same bucket."""

from __future__ import annotations

from pecan_ray.errors import PlanError
from pecan_ray.plan.element_identity import identity_loss
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.operators import Map, Plan, Prefetch, Repeat
from pecan_ray.plan.shape import last_batching, plan_shape


def check_rounds_supported(plan: Plan, engine: str, *, on_error: str) -> None:
    """Raise PlanError, naming the operator, where a plan's batches cannot be made in rounds."""
    # What rounds rest on: docs/decisions/batches-and-groups.md#47-rounds.
    begin = "coordinated=True deals out rounds: batches of one bucket, one for each rank"
    batching = last_batching(plan)
    if not isinstance(batching, BucketByLength):
        ends = "makes no batches" if batching is None else f"ends with {batching.name}"
        raise PlanError(f"{begin}. The pipeline {ends}: let it end with bucket_by_length(...).")
    if plan_shape(plan, order=False).does_rebatch:
        raise PlanError(
            f"{begin}, which several workers make. One worker runs this plan as a whole, since {identity_loss(plan)}",
            op=batching.name,
        )
    if plan_shape(plan, order=False).serial:
        raise PlanError(
            f"{begin}, which several workers make. This plan is run by one worker as a whole (take, skip, zip, "
            'mix(stop="first"), a WeightSchedule by elements, repeat inside a join, or a batch before that drops its '
            "remainder): leave that out.",
            op=batching.name,
        )
    for op in plan.ops[plan.ops.index(batching) + 1 :]:
        if not isinstance(op, (Map, Prefetch, Repeat)):
            raise PlanError(
                f"{op.name}: behind {batching.name} it may leave batches out, and with coordinated=True each of them "
                f"is one rank's part of a round. Put it before {batching.name}.",
                op=op.name,
            )
        if isinstance(op, Map) and engine != "python":
            raise PlanError(
                f"{op.name}: engine={engine!r} makes rounds of what its graph gives, and compiles no function behind "
                f'{batching.name}. Put it before {batching.name}, or use engine="python".',
                op=op.name,
            )
        if isinstance(op, Map) and on_error != "raise":
            raise PlanError(
                f"{op.name}: with on_error={on_error!r} a batch at which it fails is left out, and with "
                f"coordinated=True each batch is one rank's part of a round. Put it before {batching.name}, or pass "
                'on_error="raise".',
                op=op.name,
            )
