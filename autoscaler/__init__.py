"""How many workers run: scaling by batch time."""

from pecan_ray.autoscaler.hpa import HorizontalPodAutoscaler
from pecan_ray.autoscaler.policy import CACHEW, CACHEW_CODE, Autoscaler, ScalingRule
from pecan_ray.plan.windows import Decision, Deployment, Window

__all__ = [
    "CACHEW",
    "CACHEW_CODE",
    "Autoscaler",
    "Decision",
    "Deployment",
    "HorizontalPodAutoscaler",
    "ScalingRule",
    "Window",
]
