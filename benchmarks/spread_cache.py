"""What the loss of a node costs a job whose blocks of a bucket are spread over the disks of several nodes.

    python benchmarks/spread_cache.py [--objects 38] [--rate 4e6] [--ideal 8e6] [--lose node|actor|nothing]

A cluster of three nodes (three raylets on this machine, each with a cache folder of its own) reads objects of 4 MiB of
numbered lines, with a worker on each node, from a process of this machine that speaks as much of S3 as is needed and
sends so many bytes a second to all together.  The training loop takes `--ideal` bytes a second.  Each node has room for
64 MiB.  After two epochs a node is lost (its raylet and all its processes are killed), or the actor alone that serves
its blocks.  Told are the loop's bytes a second, second by second, and whether each line came once an epoch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from benchmarks.slow_bucket import running_bucket, sent_by
from pecan_ray.runtime.cache_node import PREFIX
from pecan_ray.runtime.cluster import NAMESPACE, named_actors

MIB = 1 << 20
OBJECT_MIB = 4
LINE = 16 << 10
LINES = OBJECT_MIB * MIB // LINE
ROOM = 64 * MIB
BATCH = 16
NODES = 3
BACK = 0.95
"""Of the speed that is reached in the end, what counts as being back."""


@dataclass
class Seconds:
    """Bytes of each second of a loop that sleeps, and what has come."""

    ideal: float
    begin: float = field(default_factory=time.monotonic)
    nbytes: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    free_at: float = 0.0

    @property
    def now(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.begin

    def train(self, lines: list[bytes | str]) -> None:
        """Take a batch."""
        for line in lines:
            self.counts[int(line)] = self.counts.get(int(line), 0) + 1
        nbytes = len(lines) * LINE
        self.free_at = max(self.free_at, self.now) + nbytes / self.ideal
        time.sleep(max(0.0, self.free_at - self.now))
        self.nbytes[int(self.now)] = self.nbytes.get(int(self.now), 0) + nbytes

    def speed(self, first: int, last: int) -> float:
        """Return the bytes a second from one second to before another one."""
        return fmean(self.nbytes.get(second, 0) for second in range(first, last))


def write_objects(folder: Path, objects: int) -> None:
    """Write the objects of the bucket into the folder that the server has."""
    (folder / "set").mkdir()
    for number in range(objects):
        lines = ((b"%d" % (number * LINES + line)).ljust(LINE - 1) + b"\n" for line in range(LINES))
        (folder / "set" / f"{number:06}").write_bytes(b"".join(lines))


def lose(what: str, cluster: Any) -> str:
    """Lose a node that is not the trainer's, or the actor that serves its blocks; return what was lost."""
    if what == "nothing":
        return "nothing is lost"
    node = sorted(cluster.worker_nodes, key=lambda one: one.node_id)[0]
    if what == "node":
        cluster.remove_node(node, allow_graceful=False)
        return "a node is lost"
    name = next(name for name in named_actors() if name.startswith(PREFIX) and name.endswith(node.node_id))
    actor: Any = ray.get_actor(name, namespace=NAMESPACE)
    os.kill(ray.get(actor.place.remote())[1], signal.SIGKILL)
    return "an actor is lost"


def run(asked: argparse.Namespace, cluster: Any, url: str) -> None:
    """Run the job, lose something after two epochs, and print."""
    config = pecan.Config(
        cache=pecan.Cache(source_bytes=ROOM, spread=asked.spread), reorder="off", progress=False, ring_bytes=8 * MIB
    )
    lines = pecan.sources.TextLines("s3://data/set/*")
    pipe = pecan.PecanPipeline(lines, name="spread", seed=1, config=config).shuffle(64).batch(BATCH)
    elements, seen = asked.objects * LINES, 0
    lost_at = lost_bytes = epochs = 0
    with pipe.iter_batches(epochs=asked.epochs, workers=pecan.Workers(1, NODES - 1), prefetch_bytes=4 * MIB) as batches:
        loop = Seconds(asked.ideal)
        for batch in batches:
            loop.train(list(batch["text"]))
            seen += len(batch["text"])
            if seen // elements > epochs:
                epochs = seen // elements
                print(f"epoch {epochs} ends after {loop.now:.0f} s, {sent_by(url) / MIB:.0f} MiB were sent", flush=True)
            if not lost_at and seen >= (2 + asked.into) * elements:
                lost_at, lost_bytes = int(loop.now), sent_by(url)
                print(f"second {lost_at}: {lose(asked.lose, cluster)}", flush=True)
        workers_lost = batches.report().workers_lost
    last = int(loop.now)
    before, after = loop.speed(lost_at - 10, lost_at), loop.speed(max(lost_at + 10, last - 15), last - 1)
    back = next((s for s in range(lost_at + 1, last) if loop.speed(s, s + 3) >= BACK * after), last)
    told = " ".join(f"{loop.nbytes.get(second, 0) / 1e6:.1f}" for second in range(lost_at - 5, min(last, lost_at + 25)))
    print(f"MB/s from five seconds before on: {told}")
    print(
        f"before {before / 1e6:.2f} MB/s, at the end {after / 1e6:.2f}; {BACK:.0%} of that {back - lost_at} s after it"
    )
    once = "once" if loop.counts == dict.fromkeys(range(elements), asked.epochs) else "NOT once"
    sent = (sent_by(url) - lost_bytes) / MIB
    print(f"{sent:.0f} MiB were sent since; {workers_lost} worker(s) lost; each line came {once} an epoch", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=38, help="of 4 MiB")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=4e6, help="bytes a second of the store")
    parser.add_argument("--ideal", type=float, default=8e6, help="bytes a second of the training loop")
    parser.add_argument("--into", type=float, default=0.3, help="of the third epoch, when it is lost")
    parser.add_argument("--lose", choices=("node", "actor", "nothing"), default="node")
    parser.add_argument("--spread", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with ExitStack() as stack:
        folder, data_folder = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        url = stack.enter_context(running_bucket(data_folder, asked.rate))
        write_objects(data_folder, asked.objects)
        os.environ["AWS_ENDPOINT_URL"] = url
        nodes = [{"num_cpus": 1, "env_vars": {"XDG_CACHE_HOME": str(folder / str(n))}} for n in range(NODES)]
        cluster: Any = Cluster(initialize_head=True, head_node_args=nodes[0])
        stack.callback(cluster.shutdown)
        for node in nodes[1:]:
            cluster.add_node(**node)
        ray.init(address=cluster.address, namespace="pecan", log_to_driver=False)
        leave: Any = ray.shutdown
        stack.callback(leave)
        run(asked, cluster, url)


if __name__ == "__main__":
    main()
