"""CPUs that placement groups have reserved: trials of Ray Tune and runs of Ray Train, among others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray

MAX_GROUPS_NAMED = 3
"""Placement groups that a message names: a sweep may have hundreds."""


def groups_on(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Say in words which placement groups have reserved CPUs of some nodes (as `ray.nodes` tells of them), if any."""
    table: Any = ray.util.placement_group_table()
    reserved = reserved_cpus(table, {str(node["NodeID"]) for node in nodes})
    if not reserved:
        return ""
    total = sum(float(node["Resources"].get("CPU", 0)) for node in nodes)
    names = sorted(reserved)
    listed = ", ".join(names[:MAX_GROUPS_NAMED]) + (", ..." if len(names) > MAX_GROUPS_NAMED else "")
    return (
        f" ({sum(reserved.values()):g} of their {total:g} CPUs are reserved by {len(names)} placement group(s), in "
        f"which no worker runs: {listed})"
    )


def reserved_cpus(table: Mapping[str, Mapping[str, Any]], nodes: set[str]) -> dict[str, float]:
    """Return the CPUs of some nodes that each placement group of Ray's table has reserved, by its name, or its id."""
    reserved: dict[str, float] = {}
    for key, group in table.items():
        where = group["bundles_to_node_id"]
        # A bundle that waits for a place has no node yet.
        cpus = sum(float(bundle.get("CPU", 0)) for at, bundle in group["bundles"].items() if where.get(at) in nodes)
        if cpus and group["state"] != "REMOVED":
            reserved[str(group["name"] or key)] = cpus
    return reserved
