"""Where workers run, beside the trainer or on other nodes: the AutoPlacement policy."""

from pecan_ray.placement.auto_settings import AutoSettings
from pecan_ray.placement.costs import Cost, Host, UnitPrices, WorkerUse, cost_by_use, cost_of, cost_of_epoch
from pecan_ray.placement.objective import COST, NO_WAIT, ComparedDeployment, Foreseen, Objective, rank
from pecan_ray.placement.policy import MODES, AutoPlacement, expected_workers
from pecan_ray.placement.spread import spread_by_power, spread_local
from pecan_ray.plan.prices import Prices, PriceTier
from pecan_ray.plan.windows import Decision, Deployment, Window

__all__ = [
    "COST",
    "MODES",
    "NO_WAIT",
    "AutoPlacement",
    "AutoSettings",
    "ComparedDeployment",
    "Cost",
    "Decision",
    "Deployment",
    "Foreseen",
    "Host",
    "Objective",
    "PriceTier",
    "Prices",
    "UnitPrices",
    "Window",
    "WorkerUse",
    "cost_by_use",
    "cost_of",
    "cost_of_epoch",
    "expected_workers",
    "rank",
    "spread_by_power",
    "spread_local",
]
