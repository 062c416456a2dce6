"""Workloads drawn from ranges.

Ranges: see `draw`.  Every range is wider than what the papers' workloads span; seeds below TUNED are for tuning, the
others for judging.
"""

from __future__ import annotations

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.simulator.noise import generator
from pecan_ray.simulator.workload import Workload, build

TUNED = 10_000
"""Seeds from here on judge; those below may be tuned on."""
# Batches for which a converged deployment is watched.
AFTER = 10000


FAMILIES = ("plain", "several trainers", "running ahead")
"""One trainer that asks for a batch when it is done with the last one; two to eight that step together; one whose
program hands batches over before the accelerators are done with them."""


def draw(seed: int, family: str = "plain") -> Workload:
    """Draw a workload of a family."""
    if family not in FAMILIES:
        raise PlanError(f"there is no family {family!r} of random workloads: choose one of {', '.join(FAMILIES)}.")
    rng = generator(seed, "workload")
    run_ahead = family == "running ahead"

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    step = between(0.01, 1.0)
    needed = between(0.5, 30.0)
    cpus_local, cpus_remote = float(rng.integers(2, 17)), float(rng.integers(4, 17))
    work = needed * step * cpus_remote
    host = float(rng.choice([16, 32, 64, 96, 128]))
    clients = int(rng.integers(2, 9)) if family == "several trainers" else 1
    # What the host itself does for a batch leaves some of its CPUs for local workers in every case.
    own = host * step * rng.uniform(0.02, 0.3)
    entries = {
        "trainer.step_s": step,
        "trainer.step_cv": rng.uniform(0.0, 0.15),
        "trainer.disturbance": float(rng.choice([0.0, rng.uniform(0.0, 0.02)])),
        "trainer.overload": rng.uniform(0.0, 0.3),
        "trainer.run_ahead": int(rng.integers(2, 17)) if run_ahead else 0,
        "trainer.dispatch_s": 0.02 * step if run_ahead else 0.0,
        "trainer.sync_every": int(rng.choice([0, 200, 1000])) if run_ahead else 0,
        "trainer.pause_every": int(rng.choice([0, 250])),
        "trainer.pause_s": 8 * step,
        "host.cpus": host,
        "host.load_cpu_s": own / 3,
        "host.receive_cpu_s": own * 2 / 3,
        "local.cpu_s": work * rng.uniform(0.6, 1.3),
        "local.cpus": cpus_local,
        "local.crowding": float(rng.choice([0.0, rng.uniform(0.0, 0.05)])),
        "remote.cpu_s": work,
        "remote.cpus": cpus_remote,
        "nodes.start_s": between(1.0, 120.0),
        "nodes.start_spread": 0.3,
        "nodes.speed_cv": float(rng.choice([0.0, 0.05])),
        "noise.batch_cv": rng.uniform(0.05, 0.4),
        "noise.drift_sd": rng.uniform(0.0, 0.03),
        "clients": clients,
        "batches_per_epoch": 5000,
        "split_batches": between(1.0, 20.0),
        "client_buffer": int(rng.integers(4, 33)),
        "max_local": clients * max(2, min(16, int(host // cpus_local))),
        "max_remote": 64,
    }
    entries["local.ordered_cpu_s"], entries["remote.ordered_cpu_s"] = entries["local.cpu_s"], entries["remote.cpu_s"]
    host_price = between(0.5, 40.0)
    return build(f"random-{seed}", "", Prices(host_price, host_price * between(0.01, 0.3)), entries)
