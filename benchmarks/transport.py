"""Batches per second from a worker to a trainer by each transport, without any work.

    python benchmarks/transport.py [--rounds 5] [--json FILE] [--address HOST:PORT] [--only WORD ...]

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
from pecan_ray.options import Config, IterOptions
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.messages import ClientReport, Job, Orders, WorkerInfo
from pecan_ray.runtime.worker import PreprocessingWorker

LARGE = 64 * 224 * 224 * 3
SMALL = 1 << 10
SIZES = {LARGE: 150, SMALL: 20_000}
"""Bytes of a batch, and how many of them are one measurement."""
FOREIGN_LOAD = 0.15
"""Share of the machine's processors that others may use without spoiling the comparison."""


class EmptyWorker(PreprocessingWorker):
    """A worker whose batches cost nothing."""

    @ray.method(concurrency_group="run")
    def pump(self, nbytes: int, batches: int) -> None:
        """Produce so many batches of so many bytes; new memory is written once, so that it exists."""
        written: set[int] = set()
        for number in range(batches):
            slot = self._slots.acquire(nbytes)
            memory = np.frombuffer(slot.buffer, np.uint8)[:nbytes]
            if slot.number not in written:
                written.add(slot.number)
                memory[:] = np.random.default_rng(slot.number).integers(0, 256, nbytes, np.uint8)
            spans = {(0, 0, 0): [(number << 32, (number + 1) << 32)]}
            self._outbox.put(Produced({"x": memory}, spans, 1, 0, slot=slot), None)


class Bookkeeper:
    """A controller of one worker that never has news."""

    def __init__(self, worker: WorkerInfo) -> None:
        self._orders: Orders | None = Orders(0, 0, False, (worker,), ())

    async def sync(self, report: ClientReport) -> None:
        """Ignore a client's report."""

    async def orders(self, rank: int) -> Orders:
        """Name the worker once."""
        orders, self._orders = self._orders, None
        if orders is None:
            await asyncio.Event().wait()
        assert orders is not None
        return orders


@dataclass(frozen=True)
class Nodes:
    """Ids of the trainer's node and of another one."""

    mine: str
    other: str


def through_pecan(nodes: Nodes, nbytes: int, batches: int, other: bool, config: Config) -> float:
    """Batches per second through our client, from the first batch to the last."""
    remote: Any = ray.remote
    pipe = pecan.PecanPipeline(pecan.sources.Items([0]), name="transport").batch(1)
    options = IterOptions(workers=pecan.Workers(local=1))
    job = Job("transport", b"", b"", plan_shape(pipe.plan), "python", 0, options, config)
    keeper: Any = None
    groups = {"run": 1, "stream": 64, "control": 2}
    node = nodes.other if other else nodes.mine
    actor: Any = remote(num_cpus=1, concurrency_groups=groups)(EmptyWorker)
    worker = actor.options(label_selector={"ray.io/node-id": node}).remote("worker", job, None, 1)
    try:
        node_id, pid = ray.get(worker.placed.remote())
        assert node_id == node
        keeper = remote(num_cpus=0, max_concurrency=8)(Bookkeeper).remote(WorkerInfo("w", node, pid, "local", worker))
        worker.pump.remote(nbytes, batches)
        client = BatchClient(keeper, 0, 1, nodes.mine, 256 << 20)
        try:
            return counted(lambda: client.next(), batches)
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


def through_socket(nbytes: int, batches: int) -> float:
    """The limit: fresh memory on one side, a TCP socket, and one read into memory that is used again."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = context.Process(target=_pour, args=(listener.getsockname()[1], nbytes, batches))
        process.start()
        connection, _ = listener.accept()
        memory = memoryview(bytearray(nbytes))

        def take() -> None:
            got = 0
            while got < nbytes:
                got += connection.recv_into(memory[got:])

        rate = counted(take, batches)
        connection.close()
        process.join()
    return rate


def _pour(port: int, nbytes: int, batches: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
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


def sides(nodes: Nodes) -> dict[str, Callable[[int, int], float]]:
    """All ways, by name."""

    def ours(other: bool, **config: Any) -> Callable[[int, int], float]:
        return lambda nbytes, batches: through_pecan(nodes, nbytes, batches, other, Config(**config))

    found = {
        "ring, same node": ours(False, transport="ring"),
        "flight, other node, 1 stream": ours(True, transport="flight", compression="none"),
        "flight, other node, 2 streams": ours(True, transport="flight", compression="none", flight_streams=2),
        "object store, same node": ours(False, transport="object_store"),
        "object store, other node": ours(True, transport="object_store"),
        "TCP socket (the limit)": through_socket,
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
    ways: dict[str, Callable[[int, int], float]], rounds: int
) -> tuple[dict[int, dict[str, list[float]]], float]:
    """Run all ways in turn; return batches per second by size and way, and the mean load from elsewhere."""
    rates: dict[int, dict[str, list[float]]] = {size: {name: [] for name in ways} for size in SIZES}
    loads = []
    for number in range(rounds):
        for size, batches in SIZES.items():
            for name, way in ways.items():
                loads.append(foreign_load())
                rates[size][name].append(way(size, batches))
                print(f"round {number + 1}: {name}, {size} bytes: {rates[size][name][-1]:.0f}/s", flush=True)
    return rates, statistics.mean(loads)


def table(rates: dict[int, dict[str, list[float]]], load: float) -> str:
    """Medians and spreads, and how they compare where the machine was ours."""
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    rounds = len(next(iter(rates[LARGE].values())))
    lines = [f"{machine}; batches per second, medians of {rounds} rounds (least to most)", ""]
    lines.append("| way | 9.6 MB | 1 KB |\n| --- | --- | --- |")
    for name in rates[LARGE]:
        cells = [
            f"{statistics.median(r):.0f} ({min(r):.0f} to {max(r):.0f})"
            for r in (rates[LARGE][name], rates[SMALL][name])
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if load > FOREIGN_LOAD:
        lines.append(f"\nNo ratios: other programs used {load:.0%} of the machine meanwhile.")
        return "\n".join(lines)
    flight = statistics.median(rates[LARGE]["flight, other node, 1 stream"])
    for name, measured in rates[LARGE].items():
        lines.append(f"flight with 1 stream is {flight / statistics.median(measured):.2f} x {name} (9.6 MB)")
    return "\n".join(lines)


def connect(address: str | None) -> tuple[Nodes, Any]:
    """Join a cluster of two nodes, or start one here."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    cluster: Any = None
    if address is None:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 1 << 30})
        cluster.add_node(num_cpus=2, object_store_memory=1 << 30)
        cluster.wait_for_nodes()
        address = cluster.address
    ray.init(address=address, namespace="pecan", logging_level=logging.ERROR, log_to_driver=False)
    mine = str(ray.get_runtime_context().get_node_id())
    nodes: Any = ray.nodes
    other = next(node["NodeID"] for node in nodes() if node["Alive"] and node["NodeID"] != mine)
    return Nodes(mine, other), cluster


def main() -> None:
    """Run all ways in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--address", help="of a cluster of two nodes, joined from one of them (default: start one)")
    parser.add_argument("--only", nargs="*", default=[""], help="only ways with one of these words in their names")
    args = parser.parse_args()
    nodes, cluster = connect(args.address)
    ways = {name: way for name, way in sides(nodes).items() if any(word in name for word in args.only)}
    rates, load = measure(ways, args.rounds)
    print("\n" + table(rates, load))
    if args.json is not None:
        args.json.write_text(json.dumps({"foreign_load": load, "batches_per_second": rates}, indent=1))
    leave: Any = ray.shutdown
    leave()
    if cluster is not None:
        cluster.shutdown()


if __name__ == "__main__":
    main()
