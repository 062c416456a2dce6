"""What AutoOrder costs before a job's first batch: without it, with an order that is known, and with a first look.

    python -m benchmarks.first_batch [--pipelines resnet50 ...] [--engines python tensorflow] [--rounds 3] [--json FILE]
    python -m benchmarks.first_batch --look-only [...]

Each turn starts a job of one local worker on a Ray cluster of this machine and ends it at its first batch: with
`reorder="off"`, with a look in mode "safe" into an empty folder of orders, and with the order that this look has kept.
The seconds of the look itself, which has the CPUs together with the starting worker, are printed beside.
`--look-only` starts no jobs: it prints the seconds of a look with nothing beside it (the framework is imported before).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray

import pecan_ray as pecan
from examples import asr_transformer, resnet50, retinanet, simclr
from examples.photographs import derived_photographs
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import JobSize, OrderRequest
from pecan_ray.options import EngineName

MAKERS: dict[str, Callable[[str, EngineName], pecan.PecanPipeline]] = {
    "resnet50": lambda root, engine: resnet50.pipeline(root, engine=engine),
    "simclr": lambda root, engine: simclr.pipeline(root, engine=engine),
    "retinanet": lambda root, engine: retinanet.pipeline(engine=engine),
    "asr": lambda root, engine: asr_transformer.pipeline(engine=engine),
}


def first_batch_s(pipe: pecan.PecanPipeline) -> tuple[float, list[str]]:
    """Return the seconds from the start of a job to its first batch, and what AutoOrder told."""
    began = time.perf_counter()
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(local=1)) as batches:
        next(batches)
        took = time.perf_counter() - began
        told = [event.text for event in batches.report().events if event.kind == "reorder"]
    return took, told


def measure(pipe: pecan.PecanPipeline, rounds: int) -> dict[str, Any]:
    """Run the three ways in turn."""
    seconds: dict[str, list[float]] = {"off": [], "first look": [], "known": []}
    told: list[str] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="pecan-orders-") as folder:
            ways = {
                "off": pipe.with_config(reorder="off"),
                "first look": pipe.with_config(reorder="safe", order_folder=folder),
                "known": pipe.with_config(reorder="safe", order_folder=folder),
            }
            for way, one in ways.items():
                took, events = first_batch_s(one)
                seconds[way].append(took)
                told += events if way == "first look" else []
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    return {"seconds": seconds, "medians": medians, "known_ratio": medians["known"] / medians["off"], "told": told}


def looking_s(pipe: pecan.PecanPipeline) -> tuple[float, str]:
    """Return the seconds of a look at a pipeline, with nothing beside it, and what it has found."""
    began = time.perf_counter()
    found = order_plan(OrderRequest(pipe.plan, pipe.engine, "safe", job=JobSize(math.inf, 1)))
    return time.perf_counter() - began, found.summary()


def look_only(asked: argparse.Namespace, root: str) -> None:
    """Print what a look takes, without jobs."""
    for engine in asked.engines:
        if engine == "tensorflow":
            importlib.import_module("tensorflow")
        for name in asked.pipelines:
            pipe = MAKERS[name](root, engine)
            began = time.process_time()
            seconds, told = looking_s(pipe)
            cpu = time.process_time() - began
            print(
                f"{engine:10s} {name:10s} look {seconds:.2f} s ({cpu:.2f} s of CPU time); {told}",
                flush=True,
            )


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pipelines", nargs="+", choices=list(MAKERS), default=list(MAKERS))
    parser.add_argument("--engines", nargs="+", choices=["python", "tensorflow"], default=["python", "tensorflow"])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--look-only", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    root = str(derived_photographs(asked.images))
    if asked.look_only:
        look_only(asked, root)
        return
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}; seconds to the first batch, medians of {asked.rounds} rounds")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
    ray.init(address="local", num_cpus=max(2, os.cpu_count() or 1), log_to_driver=False)
    facts: dict[str, Any] = {"machine": machine}
    for engine in asked.engines:
        for name in asked.pipelines:
            pipe = MAKERS[name](root, engine)
            found = facts[f"{engine} {name}"] = {**measure(pipe, asked.rounds), "looking_s": looking_s(pipe)[0]}
            medians = found["medians"]
            print(
                f"{engine:10s} {name:10s} off {medians['off']:.2f}  known {medians['known']:.2f} "
                f"({found['known_ratio']:.2f}x)  first look {medians['first look']:.2f}, "
                f"alone {found['looking_s']:.2f}",
                flush=True,
            )
            print(f"           {found['told'][-1] if found['told'] else 'nothing to exchange'}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
