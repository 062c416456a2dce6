"""How soon a job uses the CPUs of its node, how fast it then is, and what an element costs.

    python -m benchmarks.many_cpus [--cpus 16] [--work wait|compute] [--ms 8] [--batch 256] [--step 0.02]
                                   [--seconds 40] [--epoch 25600] [--sides auto 8 16] [--json FILE]

Functions wait for `--ms`, so that any machine stands for one with `--cpus`, or compute for as long, which needs them.
Each side (AutoPlacement, or so many local workers) runs an endless job and tells, counted from its first batch on: the
seconds until it reaches 0.9 of its final rate, that rate over what so many CPUs, or the trainer's step, allow, the
share of the time in which the trainer waited, and CPU seconds of an element.  Then it runs one epoch: its time over
that of the same elements at the rate that the CPUs allow.  Processes take CPU time to start: on a machine with fewer
CPUs than `--cpus` says, the seconds until 0.9 are those of the starts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

import pecan_ray as pecan
from benchmarks.peers.tree import cpu_seconds, processes

SPAN_S = 4.0
"""A rate is one over so many seconds: batches come together where workers began together."""
FINAL = 1 / 3
"""The last part of a run, which shows its final rate."""
REACHED = 0.9
"""Of the final rate."""
Arrival = tuple[float, int]
"""Seconds since the first batch, and elements of a batch."""


@dataclass(frozen=True)
class ManyCpus:
    """What a side has shown."""

    side: str
    workers: int
    first_s: float
    """Until the first batch, from `iter_batches` on."""
    onset_s: float | None
    """From the first batch on, until 0.9 of the final rate; None: it was never steady for so long."""
    rate: float
    of_ideal: float
    waited: float
    """Share of the final part in which the trainer waited."""
    element_cpu_s: float
    epoch_over_ideal: float


def wait(seconds: float, i: Any) -> Any:
    """Take so long without a CPU."""
    time.sleep(seconds)
    return i


def compute(seconds: float, i: Any) -> Any:
    """Use a CPU for so long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        np.sqrt(np.arange(1000.0))
    return i


def pipeline(asked: argparse.Namespace, elements: int) -> pecan.PecanPipeline:
    """Return a pipeline of which a worker does one element at a time."""
    source = pecan.sources.Arrays(i=np.arange(elements))
    config = pecan.Config(threads_per_worker=1, progress=False)
    pipe = pecan.PecanPipeline(source, name="many-cpus", config=config)
    work = wait if asked.work == "wait" else compute
    return pipe.map(partial(work, asked.ms / 1000), on="i").batch(asked.batch)


def onset(received_items: Sequence[Arrival], rate: float) -> float | None:
    """Return from when on the elements of SPAN_S make REACHED of a rate; None: they never do."""
    for start in [0.0, *(at for at, _ in received_items)]:
        if start + SPAN_S > received_items[-1][0]:
            return None
        if sum(count for at, count in received_items if start < at <= start + SPAN_S) >= REACHED * rate * SPAN_S:
            return start
    return None


def ideal_rate(asked: argparse.Namespace, workers: int) -> float:
    """Return elements a second that workers and the trainer allow."""
    return float(min(1000 / asked.ms * workers, asked.batch / asked.step if asked.step else float("inf")))


def measure(asked: argparse.Namespace, side: str) -> ManyCpus:
    """Run one side."""
    workers = pecan.AutoWorkers(max_remote=0) if side == "auto" else pecan.Workers(local=int(side))
    most = asked.cpus if side == "auto" else int(side)
    pipe, received_items, waits = pipeline(asked, asked.epoch), list[Arrival](), list[float]()
    began = time.perf_counter()
    with pipe.iter_batches(workers=workers, epochs=None) as batches:
        first = len(next(batches)["i"])
        zero = time.perf_counter()
        cpu_before = cpu_seconds(os.getpid(), processes())
        while time.perf_counter() - zero < asked.seconds:
            time.sleep(asked.step)
            asks = time.perf_counter()
            count = len(next(batches)["i"])
            received_items.append((time.perf_counter() - zero, count))
            waits.append(time.perf_counter() - asks)
        now = time.perf_counter() - zero
        cpu_s = cpu_seconds(os.getpid(), processes()) - cpu_before
        running = len(batches.report().workers)
    last = now * (1 - FINAL)
    late = [
        (at, count, min(waited, at - last))
        for (at, count), waited in zip(received_items, waits, strict=True)
        if at > last
    ]
    rate = sum(count for _, count, _ in late) / (now * FINAL)
    return ManyCpus(
        side,
        running,
        zero - began,
        onset(received_items, rate),
        rate,
        rate / ideal_rate(asked, most),
        sum(waited for *_, waited in late) / (now * FINAL),
        cpu_s / (first + sum(count for _, count in received_items)),
        epoch_s(asked, pipe, workers) / (asked.epoch / ideal_rate(asked, most)),
    )


def epoch_s(asked: argparse.Namespace, pipe: pecan.PecanPipeline, workers: pecan.Workers | pecan.AutoWorkers) -> float:
    """Return the seconds of one epoch, start included."""
    began = time.perf_counter()
    for _ in pipe.iter_batches(workers=workers, first_epoch=0):
        time.sleep(asked.step)
    return time.perf_counter() - began


def row_of(one: ManyCpus) -> str:
    """Write a side as a row of Markdown."""
    soon = "never" if one.onset_s is None else f"{one.onset_s:.1f}"
    figures = f"{one.first_s:.1f} | {soon} | {one.rate:,.0f} | {one.of_ideal:.2f} | {one.waited:.0%}"
    return f"| {one.side} | {one.workers} | {figures} | {1000 * one.element_cpu_s:.2f} | {one.epoch_over_ideal:.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpus", type=int, default=16)
    parser.add_argument("--work", choices=("wait", "compute"), default="wait")
    parser.add_argument("--ms", type=float, default=8.0, help="milliseconds of an element")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--step", type=float, default=0.02, help="seconds of the trainer's own step")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--epoch", type=int, default=25_600, help="elements of an epoch")
    parser.add_argument("--sides", nargs="+", default=["auto", "8", "16"], help="auto, or numbers of local workers")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cluster: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 1 << 30}
    ray.init(address="local", num_cpus=asked.cpus, **cluster)
    print("| side | workers | first batch (s) | 0.9 after (s) | elements/s | of ideal | waited | CPU ms | epoch |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    found = []
    for side in asked.sides:
        found.append(measure(asked, side))
        print(row_of(found[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
