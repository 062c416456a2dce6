"""Whether an actor whose process does not answer yet waits for CPUs, or has them and is being started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.core.generated import gcs_pb2

from pecan_ray.job.events import PlaceFound
from pecan_ray.runtime.cluster import matching_nodes
from pecan_ray.runtime.placement_groups import reserved_cpus


def place_of(actor: Any, selector: Mapping[str, str], cpus: float) -> tuple[PlaceFound, str]:
    """Return whether an actor has a place on a node with certain labels, and in words what is known of it.

    Ray tells the address of a process once that has started.  Before that, an actor that has CPUs cannot be told from
    one that waits for them: but where the actors of a node, whose processes run, have all CPUs of it, nobody else has.
    """
    found: Any = ray._private.state.actors(actor._actor_id.hex())
    if found and found["Address"]["Port"]:
        return "yes", f"its process was started on node {found['Address']['NodeID']}, and is importing"
    for node, (unused, total) in cpus_without_actors(selector).items():
        # An actor that takes no CPU does not wait for one.
        if cpus and unused >= cpus:
            named = f"node {node}, on which no actor has {unused:g} of {total:g} CPUs"
            return "perhaps", f"its process (CPU: {cpus:g}) is being started on {named}; if tasks use these, it waits"
    return "no", ""


def cpus_without_actors(selector: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return of each node with certain labels the CPUs that no actor or placement group has, and all of them."""
    state: Any = ray._private.state
    total = {node["NodeID"]: float(node["Resources"].get("CPU", 0.0)) for node in state.nodes()}
    groups: Any = ray.util.placement_group_table()
    found: dict[str, tuple[float, float]] = {}
    for node in matching_nodes(selector):
        cpus, reserved = total.get(node, 0.0), sum(reserved_cpus(groups, {node}).values())
        found[node] = cpus - _used_by_actors(node) - reserved, cpus
    return found


def _used_by_actors(node: str) -> float:
    """Return the CPUs of a node that actors have whose processes run."""
    connect = getattr(ray._private.state.state, "_connect_and_get_accessor", None)  # not in all versions of Ray
    if connect is None:
        # Not known counts as all of them, so that no free CPUs are reported.
        return float("inf")
    table: Any = gcs_pb2
    living = map(table.ActorTableData.FromString, connect().get_actor_table(None, "ALIVE"))
    here = (one for one in living if one.address.node_id.hex() == node)
    return sum(float(one.required_resources.get("CPU", 0.0)) for one in here)
