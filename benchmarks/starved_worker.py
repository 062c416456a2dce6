"""Is a worker called dead whose CPU other programs take?

    python -m benchmarks.starved_worker [--loops 3] [--nice -10] [--seconds 20] [--worker-timeout 5]

A job's only worker is bound to one CPU, on which loops of that niceness run for so long (below 0 needs the right to).
Told are the workers that were lost, and the longest wait for a batch.  Decision 202: none shall be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import pecan_ray as pecan
from benchmarks.faults.processes import WORKER, ours

ROWS, BATCH, BURN = 2_000, 10, 50_000
BEFORE = 20
"""Batches that come before the CPU is taken."""
LOOP = """
import os
os.nice({nice})
os.sched_setaffinity(0, {{{cpu}}})
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


def burn(i: Any) -> Any:
    """Compute for some milliseconds."""
    total = 0
    for one in range(BURN):
        total += one
    return i


@contextlib.contextmanager
def starving(loops: int, nice: int, seconds: float) -> Iterator[None]:
    """Bind the worker to one CPU, and take that for so many seconds, beside what follows."""
    cpu = max(os.sched_getaffinity(0))
    (worker,) = ours(WORKER)
    for thread in worker.threads():
        os.sched_setaffinity(thread.id, {cpu})
    command = [sys.executable, "-c", LOOP.format(nice=nice, cpu=cpu)]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(subprocess.Popen(command)) for _ in range(loops)]
        timer = threading.Timer(seconds, kill, [running])
        timer.start()
        yield
        timer.cancel()
        kill(running)


def kill(loops: list[subprocess.Popen[bytes]]) -> None:
    """End loops, also those that have ended."""
    for one in loops:
        one.kill()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starved_worker", description=__doc__)
    parser.add_argument("--loops", type=int, default=3)
    parser.add_argument("--nice", type=int, default=-10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--worker-timeout", type=float, default=5.0)
    asked = parser.parse_args()
    config = pecan.Config(
        progress=False, reorder="off", report_folder="", worker_timeout_s=asked.worker_timeout, threads_per_worker=1
    )
    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=50)
    pipe = pecan.PecanPipeline(source, name="starved", config=config).map(burn, on="i").batch(BATCH)
    seen: list[int] = []
    longest = 0.0
    with contextlib.ExitStack() as stack:
        batches = stack.enter_context(pipe.iter_batches(workers=pecan.Workers(local=1), prefetch_bytes=2_000))
        for _ in range(BEFORE):
            seen += map(int, next(batches)["i"])
        stack.enter_context(starving(asked.loops, asked.nice, asked.seconds))
        last = time.monotonic()
        for batch in batches:
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            seen += map(int, batch["i"])
        report = batches.report()
    print(f"{report.workers_lost} workers lost; {len(seen)} elements, {len({*seen})} of {ROWS} different ones")
    print(f"longest wait {longest:.1f} s, load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
