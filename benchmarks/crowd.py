"""A controller under the reports of many workers and trainers that do not exist."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import cloudpickle
import numpy as np
import ray

import pecan_ray as pecan
from pecan_ray.options import Config, IterOptions, Workers
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime.controller import AutoPlacementController, Member
from pecan_ray.runtime.messages import ClientReport, Job, StepTotals, WorkerInfo, WorkerStats

REPORT_S = 5.0
"""Every worker and every trainer reports once in this time (tf.data service's heartbeat)."""
MEASURED_S = 15.0


class CrowdedController(AutoPlacementController):
    """The controller of a job, with members and trainers that only report."""

    async def populate(self, count: int) -> None:
        """Add so many workers and trainers."""
        for number in range(count):
            name = f"worker-{number}"
            info = WorkerInfo(name, f"node-{number}", number, "remote", None)
            self._members[name] = Member(name, "remote", None, "", placed=True, info=info)
            self._ledger.join(name)
            self._clients[number] = f"node-{number}"
        for branch, source in enumerate(self._sources):
            self._ledger.add_splits(branch, list(source.splits()))
            self._ledger.end_listing(branch)
        self._publish()

    async def cpu_seconds(self) -> float:
        """Return the CPU time of this process so far."""
        times = os.times()
        return times.user + times.system


def controller_load(count: int) -> float:
    """Return the CPU seconds that a controller takes for a minute of so many workers and trainers.

    Each worker sends a heartbeat and each trainer a report every 5 s, and each trainer waits for orders all the time.
    """
    plan = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100 * count), split_rows=10)).batch(10).plan
    options = IterOptions(epochs=None, workers=Workers(0, count), world_size=count)
    payload, sources = cloudpickle.dumps(plan), cloudpickle.dumps(list(plan.sources()))
    job = Job("crowd", payload, sources, plan_shape(plan), "python", 0, options, Config(reorder="off"))
    make: Any = ray.remote(CrowdedController)
    controller = make.options(num_cpus=0, max_concurrency=10 * count).remote(job)
    try:
        ray.get(controller.populate.remote(count))
        return asyncio.run(_report(controller, count))
    finally:
        ray.kill(controller)


async def _report(controller: Any, count: int) -> float:
    waiting = [asyncio.ensure_future(controller.orders.remote(rank)) for rank in range(count)]
    await asyncio.gather(*waiting)  # the first answer comes at once
    waiting = [asyncio.ensure_future(controller.orders.remote(rank)) for rank in range(count)]
    before, began = float(await controller.cpu_seconds.remote()), time.monotonic()
    turns: set[asyncio.Task[None]] = set()
    number = 0
    while (now := time.monotonic()) - began < MEASURED_S:
        for turn in range(number, int((now - began) * count / REPORT_S) + 1):
            turns.add(asyncio.create_task(_turn(controller, turn, count)))
            number = turn + 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*turns)
    spent = float(await controller.cpu_seconds.remote()) - before
    for order in waiting:
        order.cancel()
    return spent * 60.0 / (time.monotonic() - began)


async def _turn(controller: Any, number: int, count: int) -> None:
    """Let one worker and one trainer report."""
    worker, rank = f"worker-{number % count}", number % count
    steps = StepTotals(batches=number, seconds=0.1 * number)
    await controller.heartbeat.remote(worker, WorkerStats(elements=number, batches=number // 10))
    await controller.sync.remote(ClientReport(rank, steps=steps))
