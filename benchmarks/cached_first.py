"""What several jobs read together of one bucket, where a node's disk has room for a part of the data.

    python benchmarks/cached_first.py [--jobs 4] [--epochs 3] [--objects 320] [--rate 12e6] [--room 0.2] [--format text]
                                      [--nodes 1]

A process of this machine speaks as much of S3 as is needed and sends so many bytes a second to all together; objects
are 1 MiB of numbered lines, or with `--format parquet` files of four row groups of 4 MiB, each a split.  The jobs are
processes of their own on a Ray cluster of this machine, with orders of their own, and begin together; with `--nodes 3`
it has so many raylets for workers, each with a cache folder of its own and its part of the room, and blocks are spread
over them (`Cache(spread=True)`).  Told are passes over the data that the store has sent for each epoch of the jobs:

- `cached first`: as it is: each takes first what others have brought.
- `each for itself`: with `Cache(cached_first=False)`: the same cache, and nobody looks what is in it.
- `LRU`: processes that only read the objects, in random orders, through the same cache with the least recently used
  blocks going first.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import pyarrow as pa
import ray
from pyarrow import parquet as pq
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from benchmarks.slow_bucket import running_bucket, sent_by
from pecan_ray import storage
from pecan_ray.storage import BlockCache

MIB = 1 << 20
LINE = 16 << 10
LINES = MIB // LINE
FILE_MIB = 16
"""Of Parquet files."""
FOLDER = "s3://data/set"
WAYS = ("cached first", "each for itself", "LRU")


def lines_of(number: int) -> bytes:
    """Return the lines of an object: numbers, made as long as they should be."""
    return b"".join((b"%d" % (number * LINES + line)).ljust(LINE - 1) + b"\n" for line in range(LINES))


def write_objects(folder: Path, objects: int, form: str) -> None:
    """Write the objects of the bucket into the folder that the server has."""
    (folder / "set").mkdir()
    if form == "text":
        for number in range(objects):
            (folder / "set" / f"{number:06}").write_bytes(lines_of(number))
        return
    for file in range(objects // FILE_MIB):
        numbers = np.arange(file * FILE_MIB * LINES, (file + 1) * FILE_MIB * LINES)
        table = pa.table({"text": [b"%d" % number for number in numbers], "data": [os.urandom(LINE) for _ in numbers]})
        path = folder / "set" / f"{file:06}"
        pq.write_table(table, path, row_group_size=FILE_MIB // 4 * LINES, compression="none", use_dictionary=False)


def source_of(form: str) -> Any:
    """Return what a job reads."""
    return (
        pecan.sources.TextLines(f"{FOLDER}/*")
        if form == "text"
        else pecan.sources.Parquet(f"{FOLDER}/*", split_bytes=1)
    )


def run_job(number: int, address: str, cache: pecan.Cache, objects: int, epochs: int, form: str) -> None:
    """Run a job to its end, which must have each line once an epoch."""
    ray.init(address=address, namespace="pecan", log_to_driver=False)
    config = pecan.Config(cache=cache, reorder="off")
    workers = pecan.Workers(0, 1) if cache.spread else pecan.Workers(1)
    pipe = pecan.PecanPipeline(source_of(form), name=f"job-{number}", seed=number, config=config)
    counts: dict[int, int] = {}
    with pipe.shuffle(256).batch(64).iter_batches(epochs=epochs, workers=workers) as batches:
        for batch in batches:
            for text in batch["text"]:
                counts[int(text)] = counts.get(int(text), 0) + 1
    if counts != dict.fromkeys(range(objects * LINES), epochs):
        raise SystemExit(f"job {number} has not had each element {epochs} times")


def only_read(number: int, folder: str, room: int, objects: int, epochs: int) -> None:
    """Read all objects in a random order, again and again, through a cache that drops what was used least recently."""
    storage.keep_on_node(BlockCache(Path(folder), room, policy="lru"))
    chance = random.Random(number)
    for _ in range(epochs):
        for which in chance.sample(range(objects), objects):
            storage.read_range(f"{FOLDER}/{which:06}", 0, version="v")


def measured(url: str, jobs: int, run: Callable[[int], multiprocessing.process.BaseProcess]) -> tuple[int, float]:
    """Let jobs run at the same time; return what the store has sent meanwhile, and how long it took."""
    before, begin = sent_by(url), time.perf_counter()
    processes = [run(number) for number in range(jobs)]
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a job has failed")
    return sent_by(url) - before, time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--objects", type=int, default=320)
    parser.add_argument("--rate", type=float, default=12e6, help="bytes a second of the store")
    parser.add_argument(
        "--room", type=float, default=0.2, help="share of the data for which nodes have room, 64 MiB each at least"
    )
    parser.add_argument("--way", choices=WAYS, action="append", help="may be given more than once; all")
    parser.add_argument("--nodes", type=int, default=1, help="raylets that run workers and keep blocks for one another")
    parser.add_argument("--format", choices=["text", "parquet"], default="text")
    asked = parser.parse_args()
    if min(asked.nodes, asked.jobs) < 1:
        parser.error("there must be a node and a job")
    ways = asked.way or (WAYS if asked.format == "text" and asked.nodes == 1 else WAYS[:2])
    room = max(64 * MIB, int(asked.room * asked.objects * MIB) // asked.nodes)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    spawn = multiprocessing.get_context("spawn")

    def started(target: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
        process = spawn.Process(target=target, args=arguments)
        process.start()
        return process

    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as data_folder,
        running_bucket(Path(data_folder), asked.rate) as url,
    ):
        write_objects(Path(data_folder), asked.objects, asked.format)
        os.environ["AWS_ENDPOINT_URL"] = url
        data = (asked.objects, asked.epochs)
        for told in ways:
            if told != "LRU":
                spread = asked.nodes > 1
                place = None if spread else f"{folder}/{told}"
                cache = pecan.Cache(place, source_bytes=room, spread=spread, cached_first=told == "cached first")
                cluster = cluster_of(asked.nodes, asked.jobs, Path(folder) / told)

                def begin(number: int, address: str, cache: pecan.Cache) -> multiprocessing.process.BaseProcess:
                    return started(run_job, number, address, cache, *data, asked.format)

                try:
                    ran = measured(url, asked.jobs, partial(begin, address=cluster.address, cache=cache))
                finally:
                    cluster.shutdown()
                say(told, *ran, asked)
        if "LRU" in ways:
            read = measured(url, asked.jobs, lambda number: started(only_read, number, f"{folder}/lru", room, *data))
            say("LRU", *read, asked)


def cluster_of(nodes: int, jobs: int, folder: Path) -> Any:
    """Start a cluster: a node for all jobs, or one for trainers and others for workers, with disks of their own."""
    if nodes == 1:
        return Cluster(initialize_head=True, head_node_args={"num_cpus": 2 * jobs})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for node in range(nodes):
        cluster.add_node(num_cpus=math.ceil(jobs / nodes), env_vars={"XDG_CACHE_HOME": str(folder / str(node))})
    return cluster


def say(told: str, nbytes: int, seconds: float, asked: argparse.Namespace) -> None:
    """Print one way's numbers."""
    passes = nbytes / (asked.objects * MIB) / asked.epochs
    print(f"{told}: {passes:.2f} passes over the data for each epoch of {asked.jobs} jobs, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
