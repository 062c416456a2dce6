"""What is kept and shared: windows, execution modes, a store and what leaves it, and the cluster's cache and pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pecan_ray.lazy import lazy_names

if TYPE_CHECKING:
    from pecan_ray.cache.allocation import AllocationPolicy, allocate
    from pecan_ray.cache.demands import Allocation, ClusterResources, JobDemand, silod_perf
    from pecan_ray.cache.eviction import EvictionPolicy, StoredEntry, entries_to_evict
    from pecan_ray.cache.execution import ExecutionChoice, ExecutionMode, ExecutionOption, choose_execution
    from pecan_ray.cache.execution_profile import CachePoint, DeliveryCost, ExecutionProfile, OperatorCost, SourceCost
    from pecan_ray.cache.sliding_window import JoinAt, SlidingWindow
    from pecan_ray.cache.store_model import StoreModel, StoreRead
    from pecan_ray.cache.substitution import SubstitutionSampler

__all__ = [
    "Allocation",
    "AllocationPolicy",
    "CachePoint",
    "ClusterResources",
    "DeliveryCost",
    "EvictionPolicy",
    "ExecutionChoice",
    "ExecutionMode",
    "ExecutionOption",
    "ExecutionProfile",
    "JobDemand",
    "JoinAt",
    "OperatorCost",
    "SlidingWindow",
    "SourceCost",
    "StoreModel",
    "StoreRead",
    "StoredEntry",
    "SubstitutionSampler",
    "allocate",
    "choose_execution",
    "entries_to_evict",
    "silod_perf",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Allocation": "pecan_ray.cache.demands",
        "AllocationPolicy": "pecan_ray.cache.allocation",
        "CachePoint": "pecan_ray.cache.execution_profile",
        "ClusterResources": "pecan_ray.cache.demands",
        "DeliveryCost": "pecan_ray.cache.execution_profile",
        "EvictionPolicy": "pecan_ray.cache.eviction",
        "ExecutionChoice": "pecan_ray.cache.execution",
        "ExecutionMode": "pecan_ray.cache.execution",
        "ExecutionOption": "pecan_ray.cache.execution",
        "ExecutionProfile": "pecan_ray.cache.execution_profile",
        "JobDemand": "pecan_ray.cache.demands",
        "JoinAt": "pecan_ray.cache.sliding_window",
        "OperatorCost": "pecan_ray.cache.execution_profile",
        "SlidingWindow": "pecan_ray.cache.sliding_window",
        "SourceCost": "pecan_ray.cache.execution_profile",
        "StoreModel": "pecan_ray.cache.store_model",
        "StoreRead": "pecan_ray.cache.store_model",
        "StoredEntry": "pecan_ray.cache.eviction",
        "SubstitutionSampler": "pecan_ray.cache.substitution",
        "allocate": "pecan_ray.cache.allocation",
        "choose_execution": "pecan_ray.cache.execution",
        "entries_to_evict": "pecan_ray.cache.eviction",
        "silod_perf": "pecan_ray.cache.demands",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
