"""Two jobs that share a pipe and a cache, divided while they run: how fast each is, beside other ways and brute force.

    python benchmarks/joint_io.py [--way greedy ...] [--pipe 16e6] [--cache 128] [--ideal 24e6] [--seconds 20]

A process of this machine speaks as much of S3 as is needed and sends so many bytes a second to all together; objects
are 1 MiB of lines.  One job reads 120 of them over and over and is cache-efficient, the other one 360; their training
loops sleep for each batch, so that either reads as fast as `--ideal` if it never waits.  Nothing of that is told to the
service: it measures speeds and sizes.  Told are the bytes a second that each loop gets, over some seconds after others
in which caches fill.

- `greedy`, `max_min`: `Config(remote_io=ClusterIo(...))`.
- `equal`: each job has half of the pipe, `Config(remote_io=...)`, and half of the cache for itself.
- `LRU`: no quotas; processes that only read the objects, in random orders, through one cache in which what was used
  least recently goes.
- `brute force`: the best of all splits of pipe and cache by min(f*, b / (1 - c / d)), in steps of 1 %.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ray
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from benchmarks.slow_bucket import running_bucket
from pecan_ray import storage
from pecan_ray.cache import silod_perf
from pecan_ray.observe.live_jobs import live_jobs
from pecan_ray.observe.top_command import job_overview_lines
from pecan_ray.storage import BlockCache

MIB = 1 << 20
LINE = 16 << 10
BATCH = 32
OBJECTS = (120, 360)
WAYS = ("greedy", "max_min", "equal", "LRU")
STEPS = 100


@dataclass(frozen=True)
class TwoJobs:
    """What all ways have in common."""

    address: str
    pipe: float
    cache_bytes: int
    ideal: float
    warm_s: float
    seconds: float
    top_s: float
    """`pecan top`'s table is printed so often; 0: never."""


def write_objects(folder: Path) -> None:
    """Write both datasets into the folder that the server has."""
    line = b"x" * (LINE - 1) + b"\n"
    for number, objects in enumerate(OBJECTS):
        (folder / f"set{number}").mkdir()
        for one in range(objects):
            (folder / f"set{number}" / f"{one:04}").write_bytes(b"%06d" % one + (line * (MIB // LINE))[6:])


class Meter:
    """A training loop that sleeps: counts the bytes that it gets in a stretch of time."""

    def __init__(self, setting: TwoJobs) -> None:
        self._setting, self._begin, self._nbytes, self._free_at = setting, 0.0, 0, 0.0
        self._reported = False

    def step(self, nbytes: int) -> float | None:
        """Train with so many bytes; return the bytes a second, once it has been measured for long enough."""
        self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._setting.ideal
        time.sleep(max(0.0, self._free_at - time.monotonic()))
        now = time.monotonic()
        if not self._begin:
            self._begin = now + self._setting.warm_s
        elif now >= self._begin:
            self._nbytes += nbytes
        passed = now - self._begin
        return self._nbytes / passed if passed >= self._setting.seconds else None

    def tell(self, speed: float | None, told: Connection) -> bool:
        """Tell a speed that is known, once; return whether both are known, so that this one may end."""
        if speed is not None and not self._reported:
            self._reported = True
            told.send(speed)
        return self._reported and told.poll()


def run_job(told: Connection, way: str, number: int, folder: str, setting: TwoJobs) -> None:
    """Run a job until its speed is known."""
    ray.init(address=setting.address, namespace="pecan", log_to_driver=False)
    if number == 0 and setting.top_s:
        threading.Thread(target=keep_showing, args=(setting.top_s,), daemon=True).start()
    equal = way == "equal"
    room = setting.cache_bytes // 2 if equal else setting.cache_bytes
    shared = pecan.ClusterIo(setting.pipe, setting.cache_bytes, None if equal else way)  # type: ignore[arg-type]  # one
    cache = pecan.Cache(f"{folder}/{number}" if equal else folder, source_bytes=room)
    config = pecan.Config(
        cache=cache, reorder="off", ring_bytes=8 * MIB, progress=False, remote_io=setting.pipe / 2 if equal else shared
    )
    lines = pecan.sources.TextLines(f"s3://data/set{number}/*")
    pipe = pecan.PecanPipeline(lines, name=f"job-{number}", seed=number, config=config).shuffle(256).batch(BATCH)
    meter = Meter(setting)
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(1), prefetch_bytes=4 * MIB) as batches:
        for batch in batches:
            if meter.tell(meter.step(len(batch["text"]) * LINE), told):
                return


def keep_showing(every_s: float) -> None:
    """Print what all jobs tell of themselves, now and then."""
    while True:
        time.sleep(every_s)
        print("\n".join(job_overview_lines(*live_jobs(every_s), None)), flush=True)


def only_read(told: Connection, way: str, number: int, folder: str, setting: TwoJobs) -> None:
    """Read a dataset in random orders through a cache that drops what was used least recently."""
    storage.keep_on_node(BlockCache(Path(folder), setting.cache_bytes, policy="lru"))
    chance, meter = random.Random(number), Meter(setting)
    while True:
        for one in chance.sample(range(OBJECTS[number]), OBJECTS[number]):
            data = storage.read_range(f"s3://data/set{number}/{one:04}", 0, version="v")
            if meter.tell(meter.step(len(data)), told):
                return


def measured(way: str, folder: str, setting: TwoJobs) -> list[float]:
    """Let both jobs run at the same time; return the bytes a second of each."""
    spawn = multiprocessing.get_context("spawn")
    run: Callable[..., None] = only_read if way == "LRU" else run_job
    pipes = [spawn.Pipe() for _ in OBJECTS]
    processes = [
        spawn.Process(target=run, args=(theirs, way, number, folder, setting))
        for number, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    speeds: list[float] = []
    for ours, theirs in pipes:
        theirs.close()
        speeds.append(ours.recv())
    for ours, _ in pipes:
        ours.send("the end")
    for process in processes:
        process.join()
    return speeds


def speeds_of(setting: TwoJobs, cache: float, pipe: float) -> tuple[float, float]:
    """Return the speeds of both jobs where the first has so much of the cache and of the pipe."""
    sizes = [count * MIB for count in OBJECTS]
    first = silod_perf(setting.ideal, pipe, min(cache, sizes[0]), sizes[0])
    return first, silod_perf(setting.ideal, setting.pipe - pipe, setting.cache_bytes - cache, sizes[1])


def best_splits(setting: TwoJobs) -> dict[str, tuple[float, float]]:
    """Return the speeds of the best of all splits, by each of two measures."""
    steps = [step / STEPS for step in range(STEPS + 1)]
    splits = [speeds_of(setting, a * setting.cache_bytes, b * setting.pipe) for a, b in product(steps, steps)]
    equal = speeds_of(setting, setting.cache_bytes / 2, setting.pipe / 2)
    slower = max(splits, key=lambda two: min(two[0] / equal[0], two[1] / equal[1]))
    return {"brute force, by the sum": max(splits, key=sum), "brute force, by the slower one": slower}


def say(told: str, speeds: list[float] | tuple[float, ...], setting: TwoJobs) -> None:
    """Print one way's numbers."""
    equal = speeds_of(setting, setting.cache_bytes / 2, setting.pipe / 2)
    least = min(speed / other for speed, other in zip(speeds, equal, strict=True))
    each = ", ".join(f"{speed / 1e6:.2f}" for speed in speeds)
    print(
        f"{told}: {each} MB/s, together {sum(speeds) / 1e6:.2f}; the slower one {least:.3f} times its equal part",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, action="append", help="may be given more than once; all")
    parser.add_argument("--pipe", type=float, default=16e6, help="bytes a second of the store")
    parser.add_argument("--cache", type=int, default=128, help="MiB of the node's cache")
    parser.add_argument("--ideal", type=float, default=24e6, help="bytes a second of a job that never waits")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds before those that are measured")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--top", type=float, default=0.0, help="print the table of `pecan top` so often, in seconds")
    parser.add_argument("--rounds", type=int, default=1, help="so often all ways, one after the other")
    asked = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as data_folder,
        running_bucket(Path(data_folder), asked.pipe) as url,
    ):
        write_objects(Path(data_folder))
        os.environ["AWS_ENDPOINT_URL"] = url
        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
        numbers = (asked.pipe, asked.cache * MIB, asked.ideal, asked.warm, asked.seconds, asked.top)
        setting = TwoJobs(cluster.address, *numbers)
        try:
            for turn, way in product(range(asked.rounds), asked.way or WAYS):
                say(way, measured(way, f"{folder}/{turn}-{way}", setting), setting)
        finally:
            cluster.shutdown()
    for told, speeds in best_splits(setting).items():
        say(told, speeds, setting)


if __name__ == "__main__":
    main()
