"""Blocks of a bucket that three nodes keep for one another, on a real S3 server, and the loss of one of them."""

from __future__ import annotations

import importlib
import re
import threading
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
from pecan_ray.cli import main
from pecan_ray.observe.live_jobs import live_jobs
from pecan_ray.observe.top_table import top_lines
from pecan_ray.runtime.cache_node import PREFIX
from pecan_ray.runtime.cluster import NAMESPACE, named_actors
from tests.object_stores import SECRET, put_objects, reaching_s3, s3_bucket, serving_s3
from tests.ray.conftest import FREE_PORTS, Clusters
from tests.ray.waiting import ENDS_S, until

boto3 = importlib.import_module("boto3")

FILES, LINES, LINE, EPOCHS = 60, 40, 512, 4
POOLED, BODY = 176, 64 << 10
POOL_ROOM = 8 << 20
"""Of a node: a dataset of the pooled ones is 1.4 times as large."""
ROOM = 64 << 20


@pytest.fixture
def three_disks(clusters: Clusters, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster of three nodes with some CPUs each, which have cache folders of their own, and reach a bucket."""
    clusters.end()
    with ExitStack() as stack:
        endpoint = stack.enter_context(serving_s3())
        proxy = stack.enter_context(reaching_s3(endpoint))
        stack.enter_context(s3_bucket(endpoint))
        secret = {"aws_access_key_id": "test", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://{endpoint}", **secret)
        for file in range(FILES):
            lines = (b"%d" % (file * LINES + line) for line in range(LINES))
            body = b"".join(line.ljust(LINE - 1) + b"\n" for line in lines)
            client.put_object(Bucket="data", Key=f"set/{file:03}", Body=body)
        # Raylets hand the environment of their start on to workers.
        cpus, memory = request.param, 200 << 20
        nodes = [
            {"num_cpus": cpus, "object_store_memory": memory, "env_vars": {"XDG_CACHE_HOME": str(tmp_path / str(n))}}
            for n in range(3)
        ]
        cluster: Any = Cluster(initialize_head=True, head_node_args=nodes[0] | FREE_PORTS)
        stack.callback(cluster.shutdown)
        for node in nodes[1:]:
            cluster.add_node(**node)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
        leave: Any = ray.shutdown
        stack.callback(leave)
        cluster.wait_for_nodes()
        cluster.proxy = proxy
        yield cluster


def blocks_on(folder: Path) -> set[str]:
    """Return the blocks that a node's disk has."""
    with EntryStore(folder / "pecan_ray" / "cache" / "source", max_bytes=ROOM) as store:
        return {place.key for place in store.locations()}


@pytest.mark.parametrize("three_disks", [1], indirect=True)
def test_each_block_lies_on_one_node_and_a_node_that_is_lost_costs_no_element(
    three_disks: Any, tmp_path: Path, no_actor_left: None
) -> None:
    config = pecan.Config(
        cache=pecan.Cache(source_bytes=ROOM, spread=True), reorder="off", progress=False, ring_bytes=1 << 20
    )
    lines = pecan.sources.TextLines("s3://data/set/*")
    pipe = pecan.PecanPipeline(lines, name="spread", config=config).shuffle(50).batch(10)
    found, disks = Counter[int](), [tmp_path / str(node) for node in range(3)]
    with pipe.iter_batches(epochs=EPOCHS, workers=pecan.Workers(1, 2), prefetch_bytes=16 << 10) as batches:
        for number, batch in enumerate(batches, 1):
            found.update(int(text) for text in batch["text"])
            if number == 5:  # the queue is full: what follows is read by workers that start only now, too
                until(lambda: sum(name.startswith(PREFIX) for name in named_actors()) == 3, "no actors")
                until(lambda: all(blocks_on(disk) for disk in disks), "some node keeps nothing")
            if number == 3 * FILES * LINES // 20:  # in the second epoch
                lost = sorted(three_disks.worker_nodes, key=lambda node: str(node.node_id))[0]
                three_disks.remove_node(lost, allow_graceful=False)
                until(lambda: batches.report().workers_lost == 1, "the loss is not seen")
    assert found == dict.fromkeys(range(FILES * LINES), EPOCHS)
    report = batches.report()
    assert sum(worker.node_bytes for worker in report.workers.values()) > 0
    assert len(set().union(*(blocks_on(disk) for disk in disks))) == FILES


class Reader:
    """A job that a thread reads, and that waits behind its second epoch until it is let go."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        config = pecan.Config(
            cache=pecan.Cache(source_bytes=ROOM, spread=True),
            remote_io=pecan.ClusterIo(1e9, POOL_ROOM, "greedy", 50e6, POOLED * BODY),
            reorder="off",
            progress=False,
            ring_bytes=8 << 20,
        )
        files = pecan.sources.Files(f"s3://data/{name}/*", split_files=8)
        self._pipe = pecan.PecanPipeline(files, name=name, config=config).batch(8)
        self.waiting, self.continues, self.elements = threading.Event(), threading.Event(), 0
        stack.callback(self.continues.set)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._pipe.iter_batches(epochs=3, workers=pecan.Workers(1, 2), prefetch_bytes=4 << 20) as batches:
            for batch in batches:
                self.elements += len(batch["path"])
                if self.elements == 2 * POOLED:
                    self.waiting.set()
                    self.continues.wait()


@pytest.mark.slow  # 352 objects of 64 KB, three times
@pytest.mark.parametrize("three_disks", [2], indirect=True)
def test_datasets_larger_than_a_node_stay_whole_in_the_pool_of_three(three_disks: Any, no_actor_left: None) -> None:
    put_objects(three_disks.proxy.upstream, {f"{name}/{n:03}": bytes(BODY) for name in "ab" for n in range(POOLED)})
    with ExitStack() as stack:
        stack.callback(main, ["stop", "--force"])  # the service stays until it is told to go
        readers = [Reader(stack, name) for name in "ab"]
        for reader in readers:
            assert reader.waiting.wait(ENDS_S), "the second epoch does not end"
        jobs = {job.pipeline: job for job in live_jobs(10.0)[0]}
        assert all(jobs[name].pool_nodes == 3 and jobs[name].room == POOL_ROOM / 2 for name in "ab")
        assert sum(" 0.00419 x3 " in line for line in top_lines(list(jobs.values()))) == 2, "GB of a node, of three"
        three_disks.proxy.requests.clear()
        for reader in readers:
            reader.continues.set()
            reader.thread.join(ENDS_S)
            assert reader.elements == 3 * POOLED
    fetched = [asked for asked in three_disks.proxy.requests if re.match(r"GET /data/[ab]/", asked)]
    assert len(fetched) < 0.15 * 2 * POOLED, "by chance a node has more than its part: five standard deviations"
