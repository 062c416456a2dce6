"""Batches per second from a worker to a trainer by each transport, without any work.

    python benchmarks/transport.py [--rounds 5] [--json FILE] [--address HOST:PORT] [--only WORD ...]

benchmarks/links.py runs it over slower networks.

The worker's real streams and the trainer's real client, between them a worker that makes batches out of nothing:
slots that were written once.  Two raylets are started on this machine (or an existing cluster of two nodes is used).
Beside them, where TensorFlow is installed, tf.data service, and the physical limit: a plain TCP socket.  All sides
run in turn, so that load from elsewhere meets all of them; where there was much of it no ratios are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import pickle
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from pecan_ray.engines.contract import Produced
from pecan_ray.job.messages import TrainerUpdate
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import Config, IterOptions
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.messages import Job, WorkerInfo
from pecan_ray.runtime.streams import TrainerIdentity
from pecan_ray.runtime.worker_actor import PreprocessingWorker

LARGE = 64 * 224 * 224 * 3
SMALL = 1 << 10
SIZES = {LARGE: 150, SMALL: 20_000}
"""Bytes of a batch, and how many of them are one measurement over a fast network."""
OURS = "flight, other node"
FOREIGN_LOAD = 0.15
"""Share of the machine's processors that others may use without spoiling the comparison."""


class EmptyWorker(PreprocessingWorker):
    """A worker whose batches cost nothing."""

    @ray.method(concurrency_group="run")
    def pump(self, nbytes: int, batches: int) -> None:
        """Produce so many batches of so many bytes; new memory is written once, so that it exists."""
        written: set[int] = set()
        for number in range(batches):
            slot = self._process._plan._slots.acquire(nbytes)
            memory = np.frombuffer(slot.buffer, np.uint8)[:nbytes]
            if memory.ctypes.data not in written:
                written.add(memory.ctypes.data)
                memory[:] = noise(nbytes)
            spans = {(0, 0, 0): [(number << 32, (number + 1) << 32)]}
            self._process._outbox.put(Produced({"x": memory}, spans, 1, 0, slot=slot), None)


def noise(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes by chance."""
    return np.frombuffer(np.random.default_rng(0).bytes(nbytes), np.uint8)


class Bookkeeper:
    """A controller of one worker that never has news."""

    def __init__(self, worker: WorkerInfo) -> None:
        orders = TrainerUpdate(number=1, running=1, met=1, new_workers=(worker.name,))
        self._orders = pickle.dumps((orders, [pickle.dumps(worker)]))

    async def report(self, pickled: bytes) -> bytes:
        """Take what a client tells."""
        return self._orders

    async def listen(self, rank: int, incarnation: str, number: int, met: int) -> bytes:
        """Name the worker once."""
        if met:
            await asyncio.Event().wait()
        return self._orders


@dataclass(frozen=True)
class TwoNodes:
    """Ids of the trainer's node and of another one."""

    mine: str
    other: str


def through_pecan(nodes: TwoNodes, nbytes: int, batches: int, other: bool, config: Config) -> float:
    """Batches per second through our client, from the first batch to the last."""
    remote: Any = ray.remote
    pipe = pecan.PecanPipeline(pecan.sources.Items([0]), name="transport").batch(1)
    options = IterOptions(workers=pecan.Workers(local=1))
    job = Job(JobSpec("transport"), b"", b"", plan_shape(pipe.plan), "python", 0, options, config)
    keeper: Any = None
    groups = {"run": 1, "stream": 64, "control": 2, "quota": 1}
    node = nodes.other if other else nodes.mine
    actor: Any = remote(num_cpus=1, concurrency_groups=groups)(EmptyWorker)
    began = StartWorker("transport-1", "local", node, 1)
    worker = actor.options(label_selector={"ray.io/node-id": node}).remote(began, pickle.dumps(job), None)
    try:
        node_id, pid = ray.get(worker.placed.remote())
        assert node_id == node
        keeper = remote(num_cpus=0, max_concurrency=8)(Bookkeeper).remote(WorkerInfo("w", node, pid, worker))
        worker.pump.remote(nbytes, batches)
        client = BatchClient(keeper, TrainerIdentity("transport", "trainer", nodes.mine), 256 << 20, lambda bad: None)
        client.start()

        def take() -> None:
            client.next()
            client.note_taken()

        try:
            return counted(take, batches)
        finally:
            client.close()
    finally:
        ray.kill(worker)
        if keeper is not None:
            ray.kill(keeper)


def counted(take: Callable[[], Any], batches: int) -> float:
    """Take batches; return how many a second came after the first."""
    take()
    began = time.perf_counter()
    for _ in range(batches - 1):
        take()
    return (batches - 1) / (time.perf_counter() - began)


def through_socket(nodes: TwoNodes, nbytes: int, batches: int) -> float:
    """The limit: memory on one side, a TCP socket, and one read into memory that is used again."""
    remote: Any = ray.remote
    node_ip: Any = ray.util.get_node_ip_address
    with socket.create_server((str(node_ip()), 0)) as listener:
        pourer = remote(num_cpus=0, label_selector={"ray.io/node-id": nodes.other})(_pour)
        poured = pourer.remote(listener.getsockname()[:2], nbytes, batches)
        connection, _ = listener.accept()
        memory = memoryview(bytearray(nbytes))

        def take() -> None:
            got = 0
            while got < nbytes:
                got += connection.recv_into(memory[got:])

        rate = counted(take, batches)
        connection.close()
    ray.get(poured)
    return rate


def _pour(address: tuple[str, int], nbytes: int, batches: int) -> None:
    with socket.create_connection(address) as connection:
        memory = np.random.default_rng(0).bytes(nbytes)
        for _ in range(batches):
            connection.sendall(memory)


def through_tf_data_service(nbytes: int, batches: int) -> float:
    """tf.data service with one worker, uncompressed, in a process of its own; the consumer in another one."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=_serve_tf_data, args=(theirs,))
    server.start()
    address = mine.recv()
    consumer = context.Process(target=_consume_tf_data, args=(address, nbytes, batches, theirs))
    consumer.start()
    rate = float(mine.recv())
    consumer.join()
    mine.send("end")
    server.join()
    return rate


def _serve_tf_data(pipe: Any) -> None:
    service = _tensorflow().data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    pipe.send(dispatcher.target)
    pipe.recv()
    del worker


def _consume_tf_data(address: str, nbytes: int, batches: int, pipe: Any) -> None:
    tf = _tensorflow()
    data = tf.data.Dataset.from_tensors(tf.zeros([nbytes], tf.uint8)).repeat(batches)
    distribute = tf.data.experimental.service.distribute
    data = data.apply(distribute(tf.data.experimental.service.ShardingPolicy.OFF, address, compression=None))
    batch = iter(data)
    pipe.send(counted(lambda: next(batch).numpy(), batches))


def _tensorflow() -> Any:
    os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="2")
    import tensorflow as tf

    return tf


def sides(nodes: TwoNodes) -> dict[str, Callable[[int, int], float]]:
    """All ways, by name."""

    def ours(other: bool, **config: Any) -> Callable[[int, int], float]:
        return lambda nbytes, batches: through_pecan(nodes, nbytes, batches, other, Config(**config))

    found: dict[str, Callable[[int, int], float]] = {
        "ring, same node": ours(False, transport="ring"),
        OURS: ours(True, transport="flight"),
        "object store, same node": ours(False, transport="object_store"),
        "object store, other node": ours(True, transport="object_store"),
        "TCP socket (the limit)": lambda nbytes, batches: through_socket(nodes, nbytes, batches),
    }
    if find_spec("tensorflow") is not None:
        found["tf.data service, loopback"] = through_tf_data_service
    return found


def foreign_load() -> float:
    """Share of the processors that other programs use while we wait for half a second."""
    before = _busy_and_all()
    time.sleep(0.5)
    busy, total = (now - then for now, then in zip(_busy_and_all(), before, strict=True))
    return busy / max(total, 1)


def _busy_and_all() -> tuple[int, int]:
    """Clock ticks of all processors since the machine started: those at work, and all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def measure(
    ways: dict[str, Callable[[int, int], float]], sizes: dict[int, int], rounds: int
) -> tuple[dict[int, dict[str, list[float]]], float]:
    """Run all ways in turn; return batches per second by size and way, and the mean load from elsewhere."""
    rates: dict[int, dict[str, list[float]]] = {size: {name: [] for name in ways} for size in sizes}
    loads = []
    for number in range(rounds):
        for size, batches in sizes.items():
            for name, way in ways.items():
                loads.append(foreign_load())
                rates[size][name].append(way(size, batches))
                print(f"round {number + 1}: {name}, {size} bytes: {rates[size][name][-1]:.0f}/s", flush=True)
    return rates, statistics.mean(loads)


def table(rates: dict[int, dict[str, list[float]]], load: float) -> str:
    """Medians and spreads, and how they compare where the machine was ours."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    ways = list(next(iter(rates.values())))
    rounds = len(next(iter(rates.values()))[ways[0]])
    lines = [f"{machine}; batches per second, medians of {rounds} rounds (least to most)", ""]
    lines.append("| way | " + " | ".join(f"{size} bytes" for size in rates) + " |")
    lines.append("| --- |" + " --- |" * len(rates))
    for way in ways:
        cells = [f"{statistics.median(r[way]):.0f} ({min(r[way]):.0f} to {max(r[way]):.0f})" for r in rates.values()]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    if load > FOREIGN_LOAD:
        return "\n".join([*lines, "", f"No ratios: other programs used {load:.0%} of the machine meanwhile."])
    for size, measured in rates.items():
        if OURS in measured:
            ours = statistics.median(measured[OURS])
            others = [f"{ours / statistics.median(measured[way]):.2f} x {way}" for way in ways if way != OURS]
            lines.append(f"\n{size} bytes: {OURS} is " + ", ".join(others))
    return "\n".join(lines)


def connect(address: str | None) -> tuple[TwoNodes, Any]:
    """Join a cluster of two nodes, or start one here."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    cluster: Any = None
    if address is None:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 1 << 30})
        cluster.add_node(num_cpus=2, object_store_memory=1 << 30)
        cluster.wait_for_nodes()
        address = str(cluster.address)
    ray.init(address=address, namespace="pecan", logging_level=logging.ERROR, log_to_driver=False)
    mine = str(ray.get_runtime_context().get_node_id())
    nodes: Any = ray.nodes
    other = next(node["NodeID"] for node in nodes() if node["Alive"] and node["NodeID"] != mine)
    return TwoNodes(mine, other), cluster


def main() -> None:
    """Run all ways in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--address", help="of a cluster of two nodes, joined from one of them (default: start one)")
    parser.add_argument("--large", type=int, default=SIZES[LARGE], help="large batches in one measurement")
    parser.add_argument("--small", type=int, default=SIZES[SMALL], help="small batches in one measurement")
    parser.add_argument("--only", nargs="*", default=[""], help="only ways with one of these words in their names")
    args = parser.parse_args()
    nodes, cluster = connect(args.address)
    ways = {name: way for name, way in sides(nodes).items() if any(word in name for word in args.only)}
    sizes = {size: count for size, count in {LARGE: args.large, SMALL: args.small}.items() if count}
    rates, load = measure(ways, sizes, args.rounds)
    print("\n" + table(rates, load))
    if args.json is not None:
        args.json.write_text(json.dumps({"foreign_load": load, "batches_per_second": rates}, indent=1))
    leave: Any = ray.shutdown
    leave()
    if cluster is not None:
        cluster.shutdown()


if __name__ == "__main__":
    main()
