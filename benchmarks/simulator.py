"""What the simulator costs: many jobs on one pool of workers, under real policies.

    python benchmarks/simulator.py [--jobs 1000] [--workers 5000] [--batches 3000] [--json FILE]

Jobs are random workloads that arrive within ten minutes, without workers beside their trainers, so that all of them
draw on the pool; each has a policy of its own, most of them `auto`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pecan_ray.simulator import PoolRule, SimulatedJob, Simulation, placement
from pecan_ray.simulator.client import client_of
from pecan_ray.simulator.random_workloads import draw
from pecan_ray.simulator.workload import changed

MODES = ("auto", "auto", "auto", "pecan", "cachew")
DIFFERENT = 50
"""Workloads that are drawn; jobs take them in turn."""
HOUR_S, ARRIVAL_S = 3600.0, 600.0


@dataclass(frozen=True)
class SimulatorSpeed:
    """One run."""

    jobs: int
    workers: int
    most_workers: int
    batches: int
    events: int
    decisions: int
    simulated_s: float
    wall_s: float

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs on {self.workers} workers ({self.most_workers} at once): {self.batches:,} batches, "
            f"{self.events:,} events and {self.decisions:,} decisions in {self.wall_s:.1f} s, for "
            f"{self.simulated_s / HOUR_S:.1f} simulated hours\n"
            f"{1e6 * self.wall_s / self.events:.2f} us per event, {1e6 * self.wall_s / self.batches:.2f} us per batch"
        )


def measure(jobs: int, workers: int, batches: int) -> SimulatorSpeed:
    """Simulate so many jobs."""
    workloads = [changed(draw(seed), max_local=0) for seed in range(DIFFERENT)]
    specs = [
        SimulatedJob(
            workloads[number % DIFFERENT],
            placement(workloads[number % DIFFERENT], MODES[number % len(MODES)]),
            seed=number,
            client=client_of(MODES[number % len(MODES)]),
            starts_s=ARRIVAL_S * number / jobs,
            most_batches=batches,
            after_convergence=None,
        )
        for number in range(jobs)
    ]
    began = time.perf_counter()
    done = Simulation(specs, PoolRule(workers, slots=4, speed_cv=0.05, life_s=100 * HOUR_S)).run()
    wall_s = time.perf_counter() - began
    return SimulatorSpeed(
        jobs=jobs,
        workers=workers,
        most_workers=done.most_workers,
        batches=sum(job.flows.produced for job in done.jobs),
        events=done.events,
        decisions=sum(len(job.timeline) for job in done.jobs),
        simulated_s=done.seconds,
        wall_s=wall_s,
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=5000)
    parser.add_argument("--batches", type=int, default=3000, help="of each job")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measured = measure(options.jobs, options.workers, options.batches)
    print(measured)
    if options.json:
        options.json.write_text(json.dumps(asdict(measured), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
