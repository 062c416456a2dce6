"""Where a pipeline is cut: the fixed ops of Pecan §5.2, and the sections of free ops between them."""

from __future__ import annotations

from collections.abc import Iterable

from pecan_ray.errors import PlanError
from pecan_ray.reorder.order_plan import Fixed
from pecan_ray.reorder.profile import ProfiledOp


def fixed_ops(ops: Iterable[ProfiledOp]) -> tuple[Fixed, ...]:
    """Return the ops that keep their place, with the reasons."""
    return tuple(Fixed(op.name, reason) for op in ops if (reason := fixed_reason(op)))


def fixed_reason(op: ProfiledOp) -> str:
    """Return why an op keeps its place; empty if it is free."""
    if not (op.keep_position or op.fixed or op.changes_kind or op.changes_rank):
        return ""
    reasons = (
        (op.keep_position, "keep_position=True"),
        (op.fixed, op.fixed),
        (op.changes_kind, "converts between numbers and text or bytes"),
        (op.changes_rank, "changes the number of dimensions"),
    )
    return "; ".join(reason for holds, reason in reasons if holds)


def sections(ops: Iterable[ProfiledOp]) -> list[range]:
    """Return the stretches of free ops between fixed ones, as ranges of indices in the user's order."""
    found: list[range] = []
    start = stop = 0
    for op in ops:
        if fixed_reason(op):
            found.append(range(start, stop))
            start = stop + 1
        stop += 1
    found.append(range(start, stop))
    return [section for section in found if section]


def check_ops(ops: Iterable[ProfiledOp]) -> tuple[ProfiledOp, ...]:
    """Return the ops as a tuple; raises `PlanError` for two of one name or something else than a ProfiledOp."""
    out = tuple(ops)
    seen: set[str] = set()
    for op in out:
        if not isinstance(op, ProfiledOp):
            raise PlanError(f"auto_order needs ProfiledOp(name, inflation, ...), but got {type(op).__name__}.")
        if op.name in seen:
            raise PlanError(f"two ops are named {op.name!r}: give each op a name of its own.")
        seen.add(op.name)
    return out
