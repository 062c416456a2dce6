"""Nodes come and go with the workers that a job asks for: Ray's own autoscaler, with nodes on this machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import pecan_ray as pecan
from tests.ray.autoscaling_cluster import autoscaling_cluster
from tests.ray.waiting import until
from tests.ray.waiting_transforms import SMALL, elements, waiting

NODES = 3
LABELS = {"pecan-role": "remote"}


@pytest.fixture
def autoscaled(tmp_path: Path) -> Iterator[None]:
    """Connected to a head node whose autoscaler adds up to three nodes, of two CPUs each."""
    with autoscaling_cluster(tmp_path, NODES, cpus=2) as address:
        ray.init(address=address, namespace="pecan", log_to_driver=False)
        yield
        leave: Any = ray.shutdown
        leave()


def remote_nodes() -> int:
    """Count the live nodes besides the head."""
    nodes: Any = ray.nodes
    return sum(bool(node["Alive"]) for node in nodes()) - 1


def one_worker_a_node(per_element: float, rows: int) -> pecan.PecanPipeline:
    return waiting(per_element, rows, cpus_per_worker=2, remote_labels=LABELS)


@pytest.mark.slow
def test_nodes_come_with_remote_workers_and_go_with_them(autoscaled: None) -> None:
    rows = 12_000
    seen: Counter[int] = Counter()
    assert remote_nodes() == 0
    with one_worker_a_node(0.001, rows).iter_batches(workers=pecan.Workers(local=1, remote=NODES), **SMALL) as batches:
        seen.update(elements(next(batches)))

        def step() -> int:
            """Train on a batch, and count the nodes."""
            time.sleep(0.05)
            seen.update(elements(next(batches)))
            return remote_nodes()

        until(lambda: step() == NODES, f"not {NODES} nodes")
        until(lambda: step() and len(batches.report().workers) == NODES + 1, "not every node got a worker")
        batches.scale(local=1, remote=0)
        until(lambda: step() == 0, "nodes are still up")
        for batch in batches:
            seen.update(elements(batch))
    assert seen == Counter(range(rows))
