"""Where workers run, beside the trainer or on other nodes: the AutoPlacement policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.placement.costs import Cost, cost_of
    from pecan_ray.placement.looks import Observation
    from pecan_ray.placement.objective import COST, NO_WAIT, DeploymentComparison, DeploymentEstimate, Objective, rank
    from pecan_ray.placement.policy import MODES, AutoPlacement
    from pecan_ray.placement.spread import spread_by_power
    from pecan_ray.placement.trial_history import ControlState
    from pecan_ray.plan.prices import Prices, PriceTier
    from pecan_ray.plan.windows import Decision, Deployment, Window

__all__ = [
    "COST",
    "MODES",
    "NO_WAIT",
    "AutoPlacement",
    "ControlState",
    "Cost",
    "Decision",
    "Deployment",
    "DeploymentComparison",
    "DeploymentEstimate",
    "Objective",
    "Observation",
    "PriceTier",
    "Prices",
    "Window",
    "cost_of",
    "rank",
    "spread_by_power",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AutoPlacement": "pecan_ray.placement.policy",
        "COST": "pecan_ray.placement.objective",
        "DeploymentComparison": "pecan_ray.placement.objective",
        "Cost": "pecan_ray.placement.costs",
        "Decision": "pecan_ray.plan.windows",
        "Deployment": "pecan_ray.plan.windows",
        "DeploymentEstimate": "pecan_ray.placement.objective",
        "MODES": "pecan_ray.placement.policy",
        "NO_WAIT": "pecan_ray.placement.objective",
        "Objective": "pecan_ray.placement.objective",
        "Observation": "pecan_ray.placement.looks",
        "PriceTier": "pecan_ray.plan.prices",
        "Prices": "pecan_ray.plan.prices",
        "ControlState": "pecan_ray.placement.trial_history",
        "Window": "pecan_ray.plan.windows",
        "cost_of": "pecan_ray.placement.costs",
        "rank": "pecan_ray.placement.objective",
        "spread_by_power": "pecan_ray.placement.spread",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
