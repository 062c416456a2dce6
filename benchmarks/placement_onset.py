"""How soon AutoPlacement ends a trainer's wait, and for how long asking for workers holds the controller up.

    python -m benchmarks.placement_onset [--work wait|compute] [--needs 1.4] [--step 0.05] [--seconds 40] [--json FILE]

One node.  A worker takes `needs` times as long for a batch as the trainer, which sleeps for its step: it computes (so
that the machine must have the CPUs), or waits (two CPUs stand for many).  From the report, once a second from the
first batch on: the seconds that the trainer has waited.  Told is from when on it waits for less than 3 % of its time.

Then the controller is asked for something trivial without a pause, before and while five workers more are started, in
turns with an actor that does nothing else: what its longest answer takes beyond that one's is its event loop standing
still; the rest is a machine whose CPUs are busy starting processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

import pecan_ray as pecan
from pecan_ray.batches import Batches

BATCH = 8
QUIET = 0.03
"""The trainer waits for less than this share of its time,"""
OVER_S = 8.0
"""over so many seconds."""
MORE = 5
ASKED_S = 6.0


def compute(seconds: float, i: Any) -> Any:
    """Use a CPU for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        np.sqrt(np.arange(1000.0))
    return np.full(4096, i, np.float32)


def wait(seconds: float, i: Any) -> Any:
    """Take so long without a CPU."""
    time.sleep(seconds)
    return np.full(4096, i, np.float32)


@dataclass(frozen=True)
class Second:
    """What the report said at a moment, in seconds from the first batch on."""

    at: float
    waited: float
    workers: int


def onset(seen: Sequence[Second]) -> float | None:
    """Return from when on the trainer waited for less than QUIET of each OVER_S that follow; None: never."""
    for number, one in enumerate(seen):
        later = [other for other in seen[number:] if other.at - one.at >= OVER_S]
        spans = [(late.waited - one.waited) / (late.at - one.at) for late in later]
        if spans and max(spans) < QUIET:
            return one.at
    return None


def pipeline(work: str, element_s: float) -> pecan.PecanPipeline:
    """Return a pipeline of which a worker does one element at a time."""
    source = pecan.sources.Arrays(i=np.arange(10_000_000))
    config = pecan.Config(reorder="off", threads_per_worker=1, ring_bytes=1 << 20)
    pipe = pecan.PecanPipeline(source, name="onset", config=config)
    return pipe.map(partial(compute if work == "compute" else wait, element_s), on="i").batch(BATCH)


def train(batches: Batches, step_s: float, seconds: float) -> list[Second]:
    """Take steps for so long, and note each second what the report says."""
    next(batches)
    first = batches.report()
    began, seen, due = time.monotonic(), [Second(0.0, 0.0, 1)], 1.0
    while (now := time.monotonic() - began) < seconds:
        time.sleep(step_s)
        next(batches)
        if now >= due:
            report, due = batches.report(), due + 1.0
            seen.append(Second(time.monotonic() - began, report.waited_s - first.waited_s, len(report.workers)))
    return seen


class Idle:
    """An actor that only answers, on an event loop as the controller has one."""

    async def bids(self) -> bytes:
        """Return nothing."""
        return b""


def answers(actors: Sequence[Any], seconds: float) -> list[list[float]]:
    """Ask actors in turns for their job's bids for so long; return the seconds of each one's answers."""
    took, until = [list[float]() for _ in actors], time.monotonic() + seconds
    while time.monotonic() < until:
        for mine, actor in zip(took, actors, strict=True):
            asked = time.perf_counter()
            ray.get(actor.bids.remote())
            mine.append(time.perf_counter() - asked)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("wait", "compute"), default="wait")
    parser.add_argument("--needs", type=float, default=1.4, help="workers that keep the trainer busy")
    parser.add_argument("--step", type=float, default=0.05, help="seconds of the trainer's own step")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ray.init(address="local", num_cpus=8, namespace="pecan", log_to_driver=False, object_store_memory=200 << 20)
    pipe = pipeline(options.work, options.needs * options.step / BATCH)
    with pipe.iter_batches(epochs=None, workers=pecan.AutoWorkers(max_remote=0), prefetch_bytes=1 << 20) as batches:
        seen = train(batches, options.step, options.seconds)
        target = batches.report().timeline[-1].decision.target
    quiet = onset(seen)
    for second in seen[:: max(1, len(seen) // 20)]:
        print(f"{second.at:6.1f} s: waited {second.waited:6.2f} s, {second.workers} workers")
    print(f"{options.needs} workers needed, {options.work}: {target}")
    print("never below 3 %" if quiet is None else f"below 3 % of waiting from {quiet:.0f} s on")
    with pipe.iter_batches(epochs=None, workers=pecan.Workers(1), job="asked") as batches:
        next(batches)
        actor: Any = ray.remote(Idle)
        asked = (ray.get_actor("pecan:asked:controller", namespace="pecan"), actor.options(num_cpus=0).remote())
        before = answers(asked, ASKED_S)
        batches.scale(local=1 + MORE, remote=0)
        during = answers(asked, ASKED_S)
    for when, took in (("before", before), (f"while {MORE} workers start", during)):
        for name, mine in zip(("the controller", "an idle actor"), took, strict=True):
            median, most = 1e3 * statistics.median(mine), 1e3 * max(mine)
            print(f"{when}: {name} answers in {median:.1f} ms, at most {most:.0f} ms")
    if options.json:
        found = {"onset_s": quiet, "longest_before_s": list(map(max, before)), "longest_s": list(map(max, during))}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
