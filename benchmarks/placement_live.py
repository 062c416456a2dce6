"""AutoPlacement on real Ray actors: what it finds, beside the cheapest deployment and what the simulator finds.

    python benchmarks/placement_live.py [--mode auto] [--measured 300] [--json FILE]

Three nodes of a local Ray cluster; transforms and the trainer wait instead of computing, so that two cores stand for
many.  Of each workload: the deployment that AutoPlacement settles on, the windows and seconds that it took, and the
share of the time in which the trainer waits afterwards (the goal is below 3 %).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pecan_ray as pecan
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.placement import Deployment
from pecan_ray.plan.prices import GCP_TPU_V2, Prices
from pecan_ray.simulator.client import ClientRule
from pecan_ray.simulator.cluster import simulate
from pecan_ray.simulator.job import SimulatedJob
from pecan_ray.simulator.policy_driver import placement
from pecan_ray.simulator.workload import Nodes, Noise, Trainer, TrainerHost, Worker, Workload
from tests.ray.waiting_transforms import BATCH, SMALL, train, waiting

WINDOW_BATCHES, WINDOW_S = 40, 2.0
IN_FLIGHT = 4
"""Batches that fit into the ring of a worker, and into the queue of the trainer."""


def cheapest(
    per_element: float, step: float, max_local: int, max_remote: int, prices: Prices = GCP_TPU_V2
) -> Deployment:
    """Search all deployments for the one whose batches cost least: max(step, wait / workers) * price."""

    def cost(deployment: Deployment) -> tuple[float, int]:
        batch_time = max(step, per_element * BATCH / deployment.workers)
        return batch_time * prices.per_hour(1, deployment.remote), deployment.workers

    everything = (Deployment(local, remote) for local in range(max_local + 1) for remote in range(max_remote + 1))
    return min((deployment for deployment in everything if deployment.workers), key=cost)


def settled(timeline: Sequence[PlacementStep]) -> bool:
    """Tell whether nothing has changed for 30 s."""
    return bool(timeline) and timeline[-1].decision.phase == "converged"


@dataclass(frozen=True)
class LiveCase:
    """A workload."""

    name: str
    element_s: float
    """A worker's time for an element."""
    step_s: float
    """The trainer's own time for a batch."""
    max_local: int
    max_remote: int


CASES = (
    LiveCase("remote workers are needed", 0.020, 0.023, 2, 6),
    LiveCase("one local worker suffices", 0.010, 0.050, 2, 6),
    LiveCase("local workers suffice", 0.020, 0.050, 3, 6),
    LiveCase("many remote workers", 0.040, 0.028, 1, 7),
)


@dataclass(frozen=True)
class Found:
    """How a workload ended."""

    workload: str
    cheapest: str
    simulated: str
    live: str
    within_one: bool
    windows: int
    thrown_away: int
    seconds: float
    wait_share: float
    decisions: tuple[str, ...]


@contextlib.contextmanager
def three_nodes() -> Iterator[None]:
    """Run a cluster of three nodes of eight CPUs each."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "object_store_memory": 200 << 20})
    for _ in range(2):
        cluster.add_node(num_cpus=8, object_store_memory=200 << 20)
    ray.init(address=cluster.address, namespace="pecan", log_to_driver=False, logging_level=logging.ERROR)
    cluster.wait_for_nodes()
    try:
        yield
    finally:
        leave: Any = ray.shutdown
        leave()
        cluster.shutdown()


def in_simulator(case: LiveCase, mode: str) -> Deployment:
    """Return where the same policy ends in the simulator."""
    batch_s = BATCH * case.element_s
    worker = Worker(cpu_s=batch_s, ordered_cpu_s=batch_s, cpus=1.0, buffer=IN_FLIGHT)
    workload = Workload(
        case.name,
        GCP_TPU_V2,
        trainer=Trainer(step_s=case.step_s, step_cv=0.02),
        host=TrainerHost(cpus=96.0),
        local=worker,
        remote=worker,
        nodes=Nodes(start_s=2.0),
        noise=Noise(batch_cv=0.05),
        client_buffer=IN_FLIGHT,
        max_local=case.max_local,
        max_remote=case.max_remote,
    )
    rule = ClientRule(window_batches=WINDOW_BATCHES, window_s=WINDOW_S)
    return simulate(SimulatedJob(workload, placement(workload, mode), client=rule)).converged_to


def live(case: LiveCase, mode: Any, measured: int) -> Found:
    """Run a workload until its placement has settled, then so many batches more."""
    best = cheapest(case.element_s, case.step_s, case.max_local, case.max_remote)
    workers = pecan.AutoWorkers(
        mode=mode,
        max_local=case.max_local,
        max_remote=case.max_remote,
        window_batches=WINDOW_BATCHES,
        window_s=WINDOW_S,
    )
    with waiting(case.element_s).iter_batches(workers=workers, **SMALL) as batches:
        train(batches, case.step_s, settled)
        timeline = batches.report().timeline
        before, began = batches.report().waited_s, time.monotonic()
        train(batches, case.step_s, lambda _: True, look_every=measured)
        waited, elapsed = batches.report().waited_s - before, time.monotonic() - began
    found = timeline[-1].decision.target
    at = windows_until_settled(timeline)
    return Found(
        case.name,
        str(best),
        str(in_simulator(case, mode)),
        str(found),
        abs(found.local - best.local) + abs(found.remote - best.remote) <= 1,
        windows=at,
        thrown_away=sum(step.decision.phase == "discarded" for step in timeline[:at]),
        seconds=timeline[at - 1].seconds,
        wait_share=waited / elapsed,
        decisions=tuple(
            f"{step.seconds:.1f} s: {step.deployment}, {1000 * step.window.batch_time:.1f} ms a batch -> "
            f"{step.decision.phase}: {step.decision.reason}"
            for step in timeline
        ),
    )


def windows_until_settled(timeline: Sequence[PlacementStep]) -> int:
    """Return how many windows it took to come to the decisions that changed nothing any more."""
    final = timeline[-1].decision.target
    at = len(timeline)
    for number in range(len(timeline), 0, -1):
        decision = timeline[number - 1].decision
        if decision.target != final or decision.phase not in ("converged", "discarded"):
            break
        if decision.phase == "converged":
            at = number
    return at


def main() -> None:
    """Run all workloads and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="auto", help="search: auto, pecan, cachew, ...")
    parser.add_argument("--measured", type=int, default=300, help="batches over which the wait is measured")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    print(f"mode {options.mode}; windows of {WINDOW_BATCHES} batches or {WINDOW_S} s")
    titles = ("workload", "cheapest", "simulator", "live", "windows", "s", "wait")
    row = "{:<27} {:<20} {:<20} {:<20} {:>12} {:>6} {:>6}"
    print(row.format(*titles))
    results = []
    with three_nodes():
        for case in CASES:
            found = live(case, options.mode, options.measured)
            results.append(found)
            windows = f"{found.windows} (-{found.thrown_away})"
            cells = (found.workload, found.cheapest, found.simulated, found.live, windows)
            print(row.format(*cells, f"{found.seconds:.1f}", f"{found.wait_share:.1%}"), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(found) for found in results], indent=1))


if __name__ == "__main__":
    main()
