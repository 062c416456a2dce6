"""A second look after the first epoch, with the factors of the whole pass (Pecan §5.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pecan_ray.errors import PlanError
from pecan_ray.reorder.order_plan import OrderPlan
from pecan_ray.reorder.policy import auto_order
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.reorder.sections import check_ops


def revalidate(old: OrderPlan, new_ops: Iterable[ProfiledOp]) -> OrderPlan | None:
    """Return the plan of mode "pecan" for the next epoch, or None to go on with `old`.

    `new_ops` are the same ops, in any order, with the factors of a whole pass in the order `old`.  A changed verdict
    changes the order.  What `old` was forbidden stays so.  The plan's `reason` says what changed; run it on the sample
    before adopting it.
    """
    found = {op.name: op for op in check_ops(new_ops)}
    if found.keys() != set(old.order):
        raise PlanError(f"revalidate: the plan has the ops {sorted(old.order)}, but got {sorted(found)}.")
    band = old.neutral_band
    ops = [found[op.name] for op in old.ops]
    reasons = [
        f"{new.name!r} {_says(new, band)} (factor {new.inflation:.3g}), not {_says(past, band)} ({past.inflation:.3g})"
        for past, new in zip(old.ops, ops, strict=True)
        if past.verdict(band) != new.verdict(band)
    ]
    new = auto_order(ops, "pecan", forbidden=old.forbidden, neutral_band=band)
    return replace(new, reason="; ".join(reasons)) if reasons and new.order != old.order else None


def _says(op: ProfiledOp, band: float) -> str:
    return "is neutral" if op.verdict(band) == "neutral" else op.verdict(band)
