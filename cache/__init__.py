"""What is kept and shared: windows, execution modes, a store and what leaves it, and the cluster's cache and pipe."""

from pecan_ray.cache.allocation import AllocationPolicy, allocate
from pecan_ray.cache.benefit import CachedPart, CachingChoice, ProbedJob, benefit, choose_caching
from pecan_ray.cache.demands import Allocation, ClusterResources, JobDemand, silod_perf
from pecan_ray.cache.eviction import EvictionPolicy, StoredEntry, entries_to_evict
from pecan_ray.cache.execution import ExecutionChoice, ExecutionMode, ExecutionOption, choose_execution
from pecan_ray.cache.execution_profile import CachePoint, ExecutionProfile, OperatorCost, SourceCost
from pecan_ray.cache.sliding_window import JoinAt, SlidingWindow
from pecan_ray.cache.store_model import StoreModel, StoreRead
from pecan_ray.cache.substitution import SubstitutionSampler

__all__ = [
    "Allocation",
    "AllocationPolicy",
    "CachePoint",
    "CachedPart",
    "CachingChoice",
    "ClusterResources",
    "EvictionPolicy",
    "ExecutionChoice",
    "ExecutionMode",
    "ExecutionOption",
    "ExecutionProfile",
    "JobDemand",
    "JoinAt",
    "OperatorCost",
    "ProbedJob",
    "SlidingWindow",
    "SourceCost",
    "StoreModel",
    "StoreRead",
    "StoredEntry",
    "SubstitutionSampler",
    "allocate",
    "benefit",
    "choose_caching",
    "choose_execution",
    "entries_to_evict",
    "silod_perf",
]
