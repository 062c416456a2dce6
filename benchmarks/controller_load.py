"""A controller under the reports of many workers and trainers that do not exist, and what Ray's calls alone cost.

    python benchmarks/controller_load.py [--members 10 100 300 1000] [--rounds 3] [--json FILE]

The CPU time is that of the controller's process alone.  The bound is an actor whose methods are empty and that gets the
same calls with the same arguments from the same process: what is above it is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pickle
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import Config, IterOptions, Workers
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.runtime.controller import AutoPlacementController, Member
from pecan_ray.runtime.messages import Acknowledgement, ClientReport, Job, Orders, WorkerInfo, WorkerStats
from pecan_ray.runtime.session import MOST_CALLS
from pecan_ray.runtime.worker import HEARTBEAT_S

REPORT_S = 5.0
"""Every trainer reports once in this time (tf.data service's heartbeat)."""
MEASURED_S = 15.0
SPLIT = 100


@dataclass(frozen=True)
class Traffic:
    """What workers and trainers say."""

    name: str
    heartbeat_s: float
    """Time between two heartbeats of a worker."""
    flows: bool
    """Each trainer has received a batch since its last report, and waits for leave to use it."""


QUIET = Traffic("no batch flows", HEARTBEAT_S, flows=False)
FLOWING = Traffic("a batch for each trainer in 5 s", HEARTBEAT_S, flows=True)
CHATTY = Traffic("no batch flows, workers report as often", REPORT_S, flows=False)


@dataclass(frozen=True)
class Load:
    """What was measured for one actor."""

    share: float
    """Of one core."""
    calls: int
    """Calls that ended while it was measured."""


class CrowdedController(AutoPlacementController):
    """The controller of a job, with members and trainers that only report."""

    async def populate(self, count: int) -> None:
        """Add so many workers and trainers, and give each worker a split."""
        for branch, source in enumerate(self._sources):
            self._ledger.add_splits(branch, list(source.splits()))
            self._ledger.end_listing(branch)
        for number in range(count):
            name = f"worker-{number}"
            info = WorkerInfo(name, f"node-{number}", number, "remote", None)
            self._members[name] = Member(name, "remote", None, "", placed=True, info=info)
            self._ledger.join(name)
            self._ledger.next_stretch(name)
            self._ledger.take(name)
            self._notices.meet(info)
            self._clients[number] = f"node-{number}"
        self._publish()

    async def cpu_seconds(self) -> float:
        """Return the CPU time of this process so far."""
        return cpu_seconds()


class EmptyController:
    """Takes the same calls and does nothing; with batches, trainers are answered as often as by the real one."""

    def __init__(self, count: int, flows: bool) -> None:
        self._count, self._flows = count, flows
        self._synced = 0
        self._answered: set[int] = set()
        self._published = asyncio.Event()

    async def sync(self, pickled: bytes) -> None:
        """Take a report."""
        self._synced += 1
        if self._flows and self._synced % self._count == 0:
            self._published.set()
            self._published = asyncio.Event()

    async def heartbeat(self, worker: str, stats: WorkerStats) -> None:
        """Take a heartbeat."""

    async def orders(self, rank: int, met: int) -> bytes:
        """Answer at first, and when all trainers have reported."""
        if rank in self._answered:
            await self._published.wait()
        self._answered.add(rank)
        return pickle.dumps(Orders())

    async def cpu_seconds(self) -> float:
        """Return the CPU time of this process so far."""
        return cpu_seconds()


def cpu_seconds() -> float:
    """Return the CPU time of this process so far."""
    times = os.times()
    return times.user + times.system


def controller_load(count: int, traffic: Traffic = FLOWING) -> Load:
    """Return what the controller of so many workers and trainers takes.

    Each trainer sends a report every 5 s and waits for orders all the time.
    """
    plan = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(2 * SPLIT * count), split_rows=SPLIT)).batch(1).plan
    options = IterOptions(epochs=None, workers=Workers(0, count), world_size=count)
    payload, sources = cloudpickle.dumps(plan), cloudpickle.dumps(list(plan.sources()))
    job = Job("controller-load", payload, sources, plan_shape(plan), "python", 0, options, Config(reorder="off"))
    make: Any = ray.remote(CrowdedController)
    controller = make.options(num_cpus=0, max_concurrency=MOST_CALLS).remote(job)
    try:
        ray.get(controller.populate.remote(count))
        return asyncio.run(_Crowd(controller, count, traffic).report())
    finally:
        ray.kill(controller)


def empty_load(count: int, traffic: Traffic = FLOWING) -> Load:
    """Return what an actor takes that is called as often and does nothing."""
    make: Any = ray.remote(EmptyController)
    actor = make.options(num_cpus=0, max_concurrency=MOST_CALLS).remote(count, traffic.flows)
    try:
        ray.get(actor.cpu_seconds.remote())
        return asyncio.run(_Crowd(actor, count, traffic).report())
    finally:
        ray.kill(actor)


class _Crowd:
    """The workers and trainers of one actor, all in this process."""

    def __init__(self, actor: Any, count: int, traffic: Traffic) -> None:
        self._actor, self._count, self._traffic = actor, count, traffic
        self._calls = 0

    async def report(self) -> Load:
        """Let all of them report for a while, evenly spread."""
        listening = [asyncio.create_task(self._obey(rank)) for rank in range(self._count)]
        while self._calls < self._count:  # the first answers come at once
            await asyncio.sleep(0.01)
        calls = self._calls
        before, began = float(await self._actor.cpu_seconds.remote()), time.monotonic()
        turns: set[asyncio.Task[None]] = set()
        reports = beats = 0
        while (passed := time.monotonic() - began) < MEASURED_S:
            while reports < passed * self._count / REPORT_S:
                turns.add(asyncio.create_task(self._sync(reports)))
                reports += 1
            while beats < passed * self._count / self._traffic.heartbeat_s:
                turns.add(asyncio.create_task(self._beat(beats)))
                beats += 1
            await asyncio.sleep(0.005)
        await asyncio.gather(*turns)
        spent = float(await self._actor.cpu_seconds.remote()) - before
        share = spent / (time.monotonic() - began)
        calls = self._calls - calls
        for listener in listening:
            listener.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        return Load(share, calls)

    async def _sync(self, number: int) -> None:
        """Let one trainer report, with a batch of one element where batches flow."""
        turn, rank = divmod(number, self._count)
        spans = {(0, 0, rank): [(turn << OUTPUT_BITS, (turn + 1) << OUTPUT_BITS)]}
        acks = (Acknowledgement(f"worker-{rank}", spans, 1, 1, 1 << 20),) if self._traffic.flows else ()
        steps = StepTotals(batches=turn, seconds=0.1 * turn)
        await self._actor.sync.remote(pickle.dumps(ClientReport(rank, acks, elapsed_s=1.0, steps=steps)))
        self._calls += 1

    async def _beat(self, number: int) -> None:
        """Let one worker report."""
        await self._actor.heartbeat.remote(
            f"worker-{number % self._count}", WorkerStats(elements=number, batches=number)
        )
        self._calls += 1

    async def _obey(self, rank: int) -> None:
        """Wait for orders, again and again."""
        met = 0
        while True:
            met = pickle.loads(await self._actor.orders.remote(rank, met)).met
            self._calls += 1


def table(traffic: Traffic, found: dict[int, list[tuple[Load, Load]]]) -> str:
    """Return the medians for one kind of traffic as a table in Markdown."""
    lines = [
        f"### {traffic.name.capitalize()}",
        "",
        "| workers, and as many trainers | calls per second | share of a core | empty actor, same calls | ours |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for count, loads in found.items():
        calls = statistics.median(load.calls for load, _ in loads) / MEASURED_S
        share = statistics.median(load.share for load, _ in loads)
        bound = statistics.median(load.share for _, load in loads)
        lines.append(f"| {count:,} | {calls:.0f} | {share:.1%} | {bound:.1%} | {share - bound:.1%} |")
    return "\n".join(lines)


def measure(traffic: Traffic, members: Sequence[int], rounds: int) -> dict[int, list[tuple[Load, Load]]]:
    """Measure the controller and the empty actor in turn."""
    found: dict[int, list[tuple[Load, Load]]] = {count: [] for count in members}
    for _ in range(rounds):
        for count in members:
            found[count].append((controller_load(count, traffic), empty_load(count, traffic)))
            ours, bound = found[count][-1]
            print(f"{traffic.name}, {count}: {ours.share:.1%} of a core, empty actor {bound.share:.1%}", flush=True)
    return found


def main() -> None:
    """Measure all kinds of traffic and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", nargs="+", type=int, default=[10, 100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    found = {traffic: measure(traffic, args.members, args.rounds) for traffic in (QUIET, FLOWING, CHATTY)}
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, Ray {ray.__version__}"
    print(f"\n{machine}; medians of {args.rounds} rounds\n")
    for traffic, loads in found.items():
        print(table(traffic, loads) + "\n")
    if args.json:
        shares = {
            traffic.name: {
                count: [(ours.share, bound.share, ours.calls) for ours, bound in pairs]
                for count, pairs in loads.items()
            }
            for traffic, loads in found.items()
        }
        args.json.write_text(json.dumps({"machine": machine, "shares": shares}, indent=1))


if __name__ == "__main__":
    main()
