"""In which order transforms run: the AutoOrder rewriting of a plan."""

from __future__ import annotations

from pecan_ray.reorder.cost import Load, predict
from pecan_ray.reorder.factor import inflation_factor
from pecan_ray.reorder.order_plan import Fixed, Mode, Move, OrderPlan
from pecan_ray.reorder.policy import auto_order, revalidate
from pecan_ray.reorder.profile import NEUTRAL_BAND, ProfiledOp

__all__ = [
    "NEUTRAL_BAND",
    "Fixed",
    "Load",
    "Mode",
    "Move",
    "OrderPlan",
    "ProfiledOp",
    "auto_order",
    "inflation_factor",
    "predict",
    "revalidate",
]
