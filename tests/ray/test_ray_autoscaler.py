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
from pecan_ray.plan.windows import Deployment
from tests.ray.autoscaling_cluster import autoscaling_cluster
from tests.ray.waiting import until
from tests.ray.waiting_transforms import SMALL, elements, settled, waiting

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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_autoplacement_brings_nodes_up_while_the_trainer_waits_and_lets_them_go(autoscaled: None) -> None:
    """Three phases: a fast trainer that needs four workers, a slow one that needs one, the rest of the data."""
    rows = 16_000
    seen: Counter[int] = Counter()
    nodes: list[int] = []
    workers = pecan.AutoWorkers(max_local=1, max_remote=NODES, window_batches=40, window_s=3.0)
    assert remote_nodes() == 0
    with one_worker_a_node(0.02, rows).iter_batches(workers=workers, **SMALL) as batches:
        step, fast_ends = 0.023, 0
        for number, batch in enumerate(batches):
            seen.update(elements(batch))
            time.sleep(step)
            if number % 20:
                continue
            nodes.append(remote_nodes())
            timeline = batches.report().timeline
            if not fast_ends and settled(timeline):
                fast_ends, step = len(timeline), 0.1
            elif fast_ends and nodes[-1] == 0 and settled(timeline):
                break
        report = batches.report()
        batches.scale(local=2, remote=0)
        for batch in batches:
            seen.update(elements(batch))
    assert max(nodes) == NODES and nodes[-1] == 0, str(report)
    assert report.timeline[fast_ends - 1].decision.target == Deployment(1, NODES)
    assert report.timeline[-1].decision.target == Deployment(1, 0)
    assert seen == Counter(range(rows))
