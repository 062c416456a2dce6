"""Clusters of one node and of three nodes (three raylets) on this machine, one per test module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[Any]:
    """A head (the trainer's node) and two remote nodes, connected to."""
    # Raylets and their workers find the checkout, whoever connects to them.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": 200 << 20})
    for _ in range(2):
        cluster.add_node(num_cpus=4, object_store_memory=200 << 20)
    ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster
    leave: Any = ray.shutdown
    leave()
    cluster.shutdown()


@pytest.fixture(scope="module")
def one_node() -> Iterator[Any]:
    """A single node with two CPUs, connected to."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 200 << 20})
    ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
    yield cluster
    leave: Any = ray.shutdown
    leave()
    cluster.shutdown()


@pytest.fixture
def no_actor_left() -> Iterator[None]:
    """Checks that a test leaves no actor of ours alive."""
    yield
    from tests.ray.waiting import until

    until(lambda: not living_actors(), "an actor of ours is still alive")


def living_actors() -> list[str]:
    """Names of the live actors in our namespace."""
    return [str(actor["name"]) for actor in ray.util.list_named_actors(all_namespaces=True)]
