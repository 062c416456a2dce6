"""Where workers run, beside the trainer or on other nodes: the AutoPlacement policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.placement.costs import Cost
    from pecan_ray.placement.policy import AutoPlacement
    from pecan_ray.plan.prices import Prices, PriceTier
    from pecan_ray.plan.windows import Decision, Deployment, Window

__all__ = ["AutoPlacement", "Cost", "Decision", "Deployment", "PriceTier", "Prices", "Window"]

__getattr__ = lazy_names(
    __name__,
    {
        "AutoPlacement": "pecan_ray.placement.policy",
        "Cost": "pecan_ray.placement.costs",
        "Decision": "pecan_ray.plan.windows",
        "Deployment": "pecan_ray.plan.windows",
        "PriceTier": "pecan_ray.plan.prices",
        "Prices": "pecan_ray.plan.prices",
        "Window": "pecan_ray.plan.windows",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
