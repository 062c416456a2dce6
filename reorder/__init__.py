"""In which order transforms run: the AutoOrder rewriting of a plan."""

from __future__ import annotations

from pecan_ray.reorder.policy import Fixed, Mode, Move, OrderPlan, auto_order, revalidate
from pecan_ray.reorder.profile import NEUTRAL_BAND, ProfiledOp, inflation_factor

__all__ = [
    "NEUTRAL_BAND",
    "Fixed",
    "Mode",
    "Move",
    "OrderPlan",
    "ProfiledOp",
    "auto_order",
    "inflation_factor",
    "revalidate",
]
