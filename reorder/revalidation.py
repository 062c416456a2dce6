"""A second look after the first epoch, with the factors of the whole pass (Pecan §5.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pecan_ray.errors import PlanError
from pecan_ray.reorder.order_plan import OrderPlan
from pecan_ray.reorder.policy import Commutes, Question, answer, ask, possible
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.reorder.sections import check_ops


def revalidate(
    old: OrderPlan,
    new_ops: Iterable[ProfiledOp],
    *,
    commutes: Commutes = None,
    min_gain: float = 0.03,
) -> OrderPlan | None:
    """Return the plan for the next epoch, or None to go on with `old`.

    `new_ops` are the same ops, in any order, with the factors and times of a whole pass in the order `old`.  A
    changed verdict changes the order in mode "pecan"; in the other modes the new order must also be estimated faster
    than the present one by the share `min_gain`, or the present one must have become impossible.  What `old` was
    forbidden stays so.  The plan's `reason` says what changed; run it on the sample
    before adopting it.
    """
    if not 0 <= min_gain < 1:
        raise PlanError(f"revalidate: min_gain must be in [0, 1), but got {min_gain}.")
    found = {op.name: op for op in check_ops(new_ops)}
    if found.keys() != set(old.order):
        raise PlanError(f"revalidate: the plan has the ops {sorted(old.order)}, but got {sorted(found)}.")
    in_user_order = [found[op.name] for op in old.ops]
    question = ask(in_user_order, old.mode, commutes, old.forbidden, old.neutral_band, old.order)
    new = answer(question)
    if new.order == old.order:
        return None
    reasons = _changed_verdicts(old, question)
    if not possible(question, old.order):
        reasons.insert(0, "the present order breaks a dependency or moves a fixed op, as the whole pass has shown")
    elif old.mode != "pecan":
        before, after = question.estimate(old.order), question.estimate(new.order)
        if after >= before * (1 - min_gain):
            return None
        reasons.insert(0, f"estimated time {after / before:.3f} of the present order's")
    return replace(new, reason="; ".join(reasons) or "a dependency that the sample had shown is gone")


def _changed_verdicts(old: OrderPlan, question: Question) -> list[str]:
    band = question.neutral_band
    return [
        f"{new.name!r} {_says(new, band)} (factor {new.inflation:.3g}), not {_says(past, band)} ({past.inflation:.3g})"
        for past, new in zip(old.ops, question.ops, strict=True)
        if past.verdict(band) != new.verdict(band)
    ]


def _says(op: ProfiledOp, band: float) -> str:
    return "is neutral" if op.verdict(band) == "neutral" else op.verdict(band)
