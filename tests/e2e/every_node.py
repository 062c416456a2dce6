"""A program for a job: something small runs on every node."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

api: Any = ray
api.init()
nothing = api.remote(num_cpus=0)(lambda: None)
for node in api.nodes():
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    api.get(nothing.options(scheduling_strategy=there).remote())
