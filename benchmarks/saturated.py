"""Does a job's control plane answer while every CPU is used three times over?

    python -m benchmarks.saturated [--loops N] [--nice 15] [--seconds 60]

As many workers as make three to a CPU compute, each without a pause; beside them run `--loops` loops of that niceness
that belong to nobody.  Ray is started as for any program that has none, unless RAY_ADDRESS names one.  Meanwhile a
thread of the trainer asks the controller, another one the keeper of its workers, and a third one waits, again and
again.  Answers that take longer than a second are counted, and the workers that were lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray

import pecan_ray as pecan
from pecan_ray.runtime.cluster import NAMESPACE

CPUS = os.cpu_count() or 1
OVER = 3
"""Processes that compute, for each CPU."""
SHARE = 0.9 / OVER
"""Of a CPU that Ray reserves for each worker."""
PROMISE_S = 1.0
"""Within this time the control plane answers."""
PAUSE_S = 0.25
"""Between two questions."""
LOOP = "import os, sys\nos.nice({nice})\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
ROWS, BATCH, BURN = 1_000_000, 8, 20_000


@dataclass
class Answers:
    """How long each answer of one party took, in seconds."""

    party: str
    meant_s: float = 0.0
    """So long it was to wait by itself."""
    seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        late, worst = sum(one > PROMISE_S for one in self.seconds), max(self.seconds, default=0.0)
        middle = float(np.median(self.seconds)) if self.seconds else 0.0
        return f"| {self.party} | {len(self.seconds)} | {late} | {1000 * middle:.0f} | {worst:.2f} |"


def burn(i: Any) -> Any:
    """Compute, and hold Python's lock meanwhile."""
    total = 0
    for one in range(BURN):
        total += one
    return i


@contextlib.contextmanager
def busy(loops: int, nice: int) -> Iterator[None]:
    """Let so many loops take CPUs meanwhile; they end with this process."""
    with contextlib.ExitStack() as stack:
        for _ in range(loops):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", LOOP.format(nice=nice)]))
            stack.callback(loop.terminate)
        yield


def probe(answers: Answers, ask: Callable[[], object], over: threading.Event) -> None:
    """Ask again and again, until all is over."""
    while not over.wait(PAUSE_S):
        began = time.monotonic()
        ask()
        answers.seconds.append(time.monotonic() - began - answers.meant_s)


def measure(job: str, batches: Any, seconds: float) -> list[Answers]:
    """Ask everybody while batches come, and no longer than so."""
    [keeper] = [
        one["name"]
        for one in ray.util.list_named_actors(all_namespaces=True)
        if str(one["name"]).startswith(f"pecan:{job}:keeper-")
    ]
    controller: Any = ray.get_actor(f"pecan:{job}:controller", namespace=NAMESPACE)
    owner: Any = ray.get_actor(keeper, namespace=NAMESPACE)
    over = threading.Event()
    parties: dict[str, Callable[[], object]] = {
        "controller": lambda: ray.get(controller.process_id.remote()),
        "keeper of workers": lambda: ray.get(owner.has_idle.remote()),
        "a thread of the trainer": lambda: time.sleep(PAUSE_S),
    }
    told = [Answers(party, PAUSE_S if "thread" in party else 0.0) for party in parties]
    threads = [
        threading.Thread(target=probe, args=(answers, parties[answers.party], over), daemon=True) for answers in told
    ]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + seconds
    try:
        for _ in batches:
            if time.monotonic() > ends:
                break
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return told


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saturated", description=__doc__)
    parser.add_argument("--workers", type=int, default=OVER * CPUS)
    parser.add_argument("--loops", type=int, default=0)
    parser.add_argument("--nice", type=int, default=15, help="of the loops; Ray's actors have 15")
    parser.add_argument("--worker-timeout", type=float, default=60.0, help="seconds of silence after which one is lost")
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    job = f"saturated-{os.getpid()}"
    config = pecan.Config(
        progress=False,
        reorder="off",
        report_folder="",
        threads_per_worker=1,
        cpus_per_worker=SHARE,
        worker_timeout_s=asked.worker_timeout,
    )
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    pipe = pecan.PecanPipeline(source, name="saturated", config=config).map(burn, on="i").batch(BATCH)
    with busy(asked.loops, asked.nice):
        began = time.monotonic()
        with pipe.iter_batches(workers=pecan.Workers(local=asked.workers), job=job) as batches:
            next(batches)
            first = time.monotonic() - began
            told = measure(job, batches, asked.seconds)
        report = batches.report()
    print("| who | asked | later than 1 s | median ms | worst s |\n| --- | ---: | ---: | ---: | ---: |")
    print("\n".join(map(str, told)))
    print(f"first batch after {first:.1f} s; {report.workers_lost} workers lost")


if __name__ == "__main__":
    main()
