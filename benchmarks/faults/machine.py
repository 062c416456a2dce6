"""What runs happen on: a cluster of three nodes, a store, and, where the machine allows it, links and a small disk."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from ray._private import services
from ray.cluster_utils import Cluster

from benchmarks.faults.case import BUCKET, FILE_ROWS, VICTIM
from benchmarks.faults.links import NODES, NodeLinks, address, inside, links
from tests.flaky_http import FlakyProxy, flaky_proxy
from tests.node_start import tried_twice

ROOT = Path(__file__).resolve().parents[2]
STORE_BYTES = 200 << 20
"""Of each node's object store."""
SHM_BYTES = 240 << 20
"""Of the /dev/shm that a node has of its own, where its object store lies."""
DISK_BYTES = 32 << 20
PIECE = b"\0" * (64 << 10)
VICTIM_NODE = NODES


class Machine:
    """A cluster, and what can fail beside its processes."""

    def __init__(
        self, nodes: Any, links: NodeLinks | None = None, disk: Path | None = None, store: Store | None = None
    ) -> None:
        """`nodes`: a cluster of Ray; `links`: between nodes that have networks of their own; `disk`: a small one."""
        self.nodes, self.links, self.disk, self.store = nodes, links, disk, store
        self._numbers: dict[Any, int] = {}

    def add(self, number: int, labels: dict[str, str]) -> Any:
        """Return a new node."""
        options = {"num_cpus": 4, "object_store_memory": STORE_BYTES, "labels": labels}
        if self.links is None:
            return tried_twice(partial(self.nodes.add_node, **options))
        start = services.start_ray_process

        def start_inside(command: list[str], *arguments: Any, **more: Any) -> Any:
            return start([*inside(number, SHM_BYTES), *command], *arguments, **more)

        with mock.patch.object(services, "start_ray_process", start_inside):
            node = tried_twice(partial(self.nodes.add_node, node_ip_address=address(number), **options))
        self._numbers[node] = number
        return node

    def add_victim(self) -> Any:
        """Return another node, which may be lost."""
        return self.add(VICTIM_NODE, VICTIM)

    def number(self, node: Any) -> int:
        """Return a node's number, by which its link is called."""
        return self._numbers[node]

    def allows(self, kind: str) -> bool:
        """Tell whether a fault of this kind can be made here."""
        apart = self.links is not None
        return {"slow link": apart, "cut link": apart, "full shm": apart, "full disk": self.disk is not None}.get(
            kind, self.store is not None or not kind.startswith(("storage", "journal"))
        )

    def shm(self, node: Any) -> Path | None:
        """Return the /dev/shm that a node has of its own, if it has."""
        raylet = node.all_processes["raylet"][0].process.pid
        return Path(f"/proc/{raylet}/root/dev/shm") if self.links else None


@dataclass(frozen=True)
class Store:
    """A real object store behind a proxy that can fail."""

    proxy: FlakyProxy
    bucket: Any

    def put(self, prefix: str, rows: int) -> None:
        """Write numbers into objects of a few each."""
        for start in range(0, rows, FILE_ROWS):
            lines = [json.dumps({"i": i}) + "\n" for i in range(start, min(rows, start + FILE_ROWS))]
            self.bucket.put_object(Key=f"{prefix}/{start:06}.jsonl", Body="".join(lines).encode())

    def remove(self, prefix: str) -> None:
        """Remove them."""
        self.bucket.objects.filter(Prefix=prefix).delete()


def fill(file: Path) -> None:
    """Fill the file system in which a file lies."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while True:
            out.write(PIECE)


@contextlib.contextmanager
def machine(folder: Path, apart: bool = False) -> Iterator[Machine]:
    """Start three raylets on this machine, and connect to them.

    `apart`: in a program that `links.apart` has started, with all that can fail.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(links()) if apart else None
        store = stack.enter_context(object_store(address(1) if apart else "127.0.0.1"))
        head = {"num_cpus": 4, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        nodes: Any = Cluster(
            initialize_head=True, head_node_args=head | ({"node_ip_address": address(1)} if apart else {})
        )
        stack.callback(nodes.shutdown)
        one = Machine(nodes, made, _disk(folder) if apart else None, store)
        for number in (2, 3):
            one.add(number, {})
        ray.init(address=nodes.address, namespace="pecan", log_to_driver=False)
        leave: Any = ray.shutdown
        stack.callback(leave)
        nodes.wait_for_nodes()
        yield one


def _disk(folder: Path) -> Path:
    """Return a folder that is a small disk."""
    disk = folder / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], check=True)
    return disk


@contextlib.contextmanager
def object_store(host: str) -> Iterator[Store]:
    """Run an S3 of moto behind a proxy, and let programs that are started from now on find it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every request
    server = importlib.import_module("moto.server").ThreadedMotoServer(ip_address=host, port=0, verbose=False)
    server.start()
    try:
        upstream = "{}:{}".format(*server.get_host_and_port())
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "chaos",
            "AWS_SECRET_ACCESS_KEY": "chaos",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
        }
        s3 = importlib.import_module("boto3").resource("s3", endpoint_url=f"http://{upstream}", region_name="us-east-1")
        bucket = s3.Bucket(BUCKET)
        bucket.create()
        with flaky_proxy(upstream, host) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            yield Store(proxy, bucket)
    finally:
        server.stop()
