"""What is kept and shared: the window of a shared job, execution modes, the read-time model of a store, eviction."""

from pecan_ray.cache.eviction import EvictionPolicy, StoredEntry, entries_to_evict
from pecan_ray.cache.execution import ExecutionChoice, ExecutionMode, ExecutionOption, choose_execution
from pecan_ray.cache.execution_profile import CachePoint, ExecutionProfile, OperatorCost, SourceCost
from pecan_ray.cache.sliding_window import JoinAt, SlidingWindow
from pecan_ray.cache.store_model import StoreModel, StoreRead

__all__ = [
    "CachePoint",
    "EvictionPolicy",
    "ExecutionChoice",
    "ExecutionMode",
    "ExecutionOption",
    "ExecutionProfile",
    "JoinAt",
    "OperatorCost",
    "SlidingWindow",
    "SourceCost",
    "StoreModel",
    "StoreRead",
    "StoredEntry",
    "choose_execution",
    "entries_to_evict",
]
