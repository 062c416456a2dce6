"""Blocks of a bucket that three nodes keep for one another, on a real S3 server, and the loss of one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from pecan_ray.caching.store import EntryStore
from pecan_ray.runtime.cache_node import PREFIX
from pecan_ray.runtime.cluster import NAMESPACE, named_actors
from tests.object_stores import put_objects, reaching_s3, s3_bucket, serving_s3
from tests.ray.conftest import FEW_PROCESSES, FREE_PORTS, Clusters
from tests.ray.pipelines import numbered_lines
from tests.ray.waiting import ENDS_S, until, wait_at_most

FILES, LINES, LINE, EPOCHS = 60, 40, 512, 4
ROOM = 64 << 20
BATCHES = FILES * LINES // 10
"""Of an epoch."""


@pytest.fixture
def three_disks(clusters: Clusters, tmp_path: Path) -> Iterator[Any]:
    """A cluster of three nodes with a CPU each, which have cache folders of their own, and reach a bucket."""
    clusters.end()
    with ExitStack() as stack:
        endpoint = stack.enter_context(serving_s3())
        stack.enter_context(reaching_s3(endpoint))
        stack.enter_context(s3_bucket(endpoint))
        put_objects(endpoint, numbered_lines("set", FILES, LINES, LINE))
        # Raylets hand the environment of their start on to workers.
        memory = 200 << 20
        nodes = [
            {"num_cpus": 1, "object_store_memory": memory, "env_vars": {"XDG_CACHE_HOME": str(tmp_path / str(n))}}
            for n in range(3)
        ]
        cluster: Any = Cluster(initialize_head=True, head_node_args=nodes[0] | FREE_PORTS | FEW_PROCESSES)
        stack.callback(cluster.shutdown)
        for node in nodes[1:]:
            cluster.add_node(**node)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
        leave: Any = ray.shutdown
        stack.callback(leave)
        cluster.wait_for_nodes()
        yield cluster


def blocks_on(folder: Path) -> set[str]:
    """Return the blocks that a node's disk has."""
    with EntryStore(folder / "pecan_ray" / "cache" / "source", max_bytes=ROOM) as store:
        return {place.key for place in store.locations()}


def test_each_block_lies_on_one_node_and_a_node_that_is_lost_costs_no_element(
    three_disks: Any, tmp_path: Path, no_actor_left: None
) -> None:
    config = pecan.Config(
        cache=pecan.Cache(source_bytes=ROOM, spread=True), reorder="off", progress=False, ring_bytes=1 << 20
    )
    lines = pecan.sources.TextLines("s3://data/set/*")
    pipe = pecan.PecanPipeline(lines, name="spread", config=config).shuffle(50).batch(10)
    found, disks = Counter[int](), [tmp_path / str(node) for node in range(3)]

    def everywhere() -> bool:
        return all(blocks_on(disk) for disk in disks)

    with pipe.iter_batches(epochs=EPOCHS, workers=pecan.Workers(1, 2), prefetch_bytes=16 << 10) as batches:
        for number, batch in enumerate(batches, 1):
            found.update(int(text) for text in batch["text"])
            if number == 5:  # the queue is full: what follows is read by workers that start only now, too
                until(lambda: sum(name.startswith(PREFIX) for name in named_actors()) == 3, "no actors")
            if 5 <= number < BATCHES:
                # Workers look for new nodes every few seconds, and only then give them blocks of what they read.
                wait_at_most(everywhere, ENDS_S / BATCHES)
            if number == BATCHES:
                assert everywhere()
            if number == 3 * BATCHES // 2:
                lost = sorted(three_disks.worker_nodes, key=lambda node: str(node.node_id))[0]
                three_disks.remove_node(lost, allow_graceful=False)
                until(lambda: batches.report().workers_lost == 1, "the loss is not seen")
    assert found == dict.fromkeys(range(FILES * LINES), EPOCHS)
    report = batches.report()
    assert sum(worker.node_bytes for worker in report.workers.values()) > 0
    assert len(set().union(*(blocks_on(disk) for disk in disks))) == FILES
