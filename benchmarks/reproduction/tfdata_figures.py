"""tf.data service (SoCC'23): workers of one job (Figures 8, 9) and jobs on one service (Figure 10), in the simulator.

Nobody tells what the models M1 to M4 and their pipelines are.  The paper gives batches a second, numbers of workers and
costs over those without the service; two of them fix a model's worker and trainer, one the price of a worker against
that of an accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.reproduction.experiments import run_fixed
from benchmarks.reproduction.tables import Comparison, Section, Status, comparison_table
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.workload import Noise, Trainer, Worker, Workload

SEEDS = range(3)
BATCHES = 1500
"""Of each run, of which the first window of 500 is left out."""
CPUS = 8.0
"""Of a simulated worker: the paper does not give its size, and only the time of a batch counts here."""
NOISE = Noise(batch_cv=0.2)

M1_ALONE = 0.55
"""Batches a second without the service (§4.2)."""
M1_IDEAL = 12.3 * M1_ALONE
M1_SWEEP = {8: 0.3, 16: 0.64, 64: 2.3, 128: 4.77, 442: 6.47, 512: M1_IDEAL, 640: M1_IDEAL}
"""Batches a second by workers: Figure 9, and with 442 Figure 8."""
SAVINGS: dict[str, tuple[int, int, float, float]] = {
    "M1, 512 workers": (32, 512, 12.3, 11.4),
    "M1, 442 workers": (32, 442, 11.7, 10.8),
    "M2, 421 workers": (8, 421, 110.3, 89.3),
    "M3, 128 workers": (16, 128, 2.9, 2.8),
}
"""Accelerators, workers, times as fast, and times as cheap as without the service (Figures 8, 9)."""
RESNET_STEPS, RESNET_ALONE, RESNET_SERVED, RESNET_WORKERS = 112_320, 1.75, 4.5, 17
"""Steps, batches a second, and workers with the dispatcher (§4.2)."""
RESNET_PRICES = Prices(4.5, 0.08)
"""TPU v2-8 and n2-standard-8 in June 2023 (§4.1)."""
M4_IDEAL, M4_WORKERS = 1.92, 128
M4_SHARED = {4: 1.92, 8: 1.09, 16: 0.64}
"""Batches a second of each job, by jobs on one service without sharing (§4.3, mode B)."""


@dataclass(frozen=True)
class TfDataRuns:
    """Batches a second."""

    workers: Mapping[int, float]
    """Of M1, by workers,"""
    jobs: Mapping[int, float]
    """and of each of so many M4 on one service."""


def model(name: str, ideal: float, worker_s: float, most: int) -> Workload:
    """Return a model whose trainer takes so many batches a second, of which a worker makes one in so many seconds."""
    remote = Worker(cpu_s=worker_s * CPUS, ordered_cpu_s=worker_s * CPUS, cpus=CPUS)
    return Workload(
        name=name,
        prices=Prices(1.0, 1.0),
        trainer=Trainer(step_s=1 / ideal),
        remote=remote,
        noise=NOISE,
        max_local=0,
        max_remote=most,
        batches_per_epoch=BATCHES,
    )


def pace(workload: Workload, workers: int, seeds: Sequence[int]) -> float:
    """Return the batches a second with so many workers."""
    runs = run_fixed(workload, Deployment(0, workers), seeds=seeds, batches=BATCHES)
    return 1 / fmean(run.batch_s for run in runs)


def run_tfdata(seeds: Sequence[int] = SEEDS) -> TfDataRuns:
    """Run everything."""
    m1 = model("M1", M1_IDEAL, 8 / M1_SWEEP[8], max(M1_SWEEP))
    m4 = model("M4", M4_IDEAL, M4_WORKERS / (8 * M4_SHARED[8]), M4_WORKERS)
    # Jobs alike get equal parts of a service: each is a job of its own on its part of the workers.
    return TfDataRuns(
        {workers: pace(m1, workers, seeds) for workers in M1_SWEEP},
        {jobs: pace(m4, M4_WORKERS // jobs, seeds) for jobs in M4_SHARED},
    )


def saved(accelerators: int, workers: int, speedup: float, price: float) -> float:
    """Return how many times as cheap a job is, by the objective that AutoPlacement has."""
    job = replace(model("cost", 1.0, 1.0, workers), prices=Prices(float(accelerators), price))
    return job.epoch_cost(1.0, 0) / job.epoch_cost(1 / speedup, workers)


def price_of_worker() -> float:
    """Return the price of a worker over that of an accelerator which M1's costs with 512 workers give."""
    accelerators, workers, speedup, cheaper = SAVINGS["M1, 512 workers"]
    return accelerators * (speedup / cheaper - 1) / workers


def scale_out(runs: TfDataRuns) -> Section:
    """Compare Figures 8 and 9."""
    rows = []
    for workers, paper in M1_SWEEP.items():
        fitted = workers in (8, 512)
        status: Status = "fitted" if fitted else "follows"
        why = "" if fitted else "between these two" if workers < 512 else "more than enough"
        rows.append(Comparison(f"M1, {workers} workers: batches/s", paper, runs.workers[workers], status, "x", why=why))
    price = price_of_worker()
    for name, (accelerators, workers, speedup, paper) in SAVINGS.items():
        # Where workers cost next to nothing, the saving is the speed-up, which is the paper's.
        told: tuple[Status, str] = (
            ("predicted", "") if name.startswith("M2") else ("follows", "near its speed-up anyhow")
        )
        status, why = ("fitted", "") if name == "M1, 512 workers" else told
        ours = saved(accelerators, workers, speedup, price)
        rows.append(Comparison(f"{name}: times as cheap", paper, ours, status, "x", why=why))
    resnet = replace(model("resnet", 1.0, 1.0, RESNET_WORKERS), prices=RESNET_PRICES, batches_per_epoch=RESNET_STEPS)
    why = "speeds, prices and steps are given"
    for item, paper, pace_, workers in (
        ("without the service", 80.2, RESNET_ALONE, 0),
        ("with 16 workers", 40.6, RESNET_SERVED, RESNET_WORKERS),
    ):
        rows.append(
            Comparison(f"ResNet50, {item}", paper, resnet.epoch_cost(1 / pace_, workers), "follows", "$", why=why)
        )
    text = (
        "Two numbers give M1 its worker and its trainer: the speeds with 8 workers, and with 512. Between them the "
        f"simulator is linear up to {M1_IDEAL / M1_SWEEP[8] * 8:.0f} workers; the paper has no number between 128 and "
        "442. The price of a worker over that of an accelerator, which the paper keeps to itself, is fitted to what M1 "
        f"saves with 512 workers ({price:.2%}), and gives what the other models save at the paper's speeds. Speeds of "
        "M2, M3 and ResNet50 have two numbers each, which would fix the two parameters: nothing is left to predict."
    )
    return Section("tf.data service: more workers (Figures 8, 9)", text, (comparison_table(rows, ""),), (), tuple(rows))


def sharing(runs: TfDataRuns) -> Section:
    """Compare modes B and C of Figure 10."""
    rows = []
    for jobs, paper in M4_SHARED.items():
        status: Status = "fitted" if jobs == 8 else "predicted"
        item = f"B, {jobs} jobs: time of a job over one alone"
        rows.append(Comparison(item, M4_IDEAL / paper, M4_IDEAL / runs.jobs[jobs], status, "x"))
    for jobs in (8, 16):
        item = f"C, {jobs} jobs: cost of preprocessing over one alone"
        why = "each has as many workers of its own"
        rows.append(Comparison(item, float(jobs), float(jobs), "follows", "x", why=why))
    text = (
        f"Jobs of the model M4 on one service of {M4_WORKERS} workers without sharing (B), and on one each (C); mode "
        "A, where they share, was [measured live](#measured-live-tfdata-service). The work of a batch is fitted to "
        "the speed of eight jobs. Cost of preprocessing in B is in proportion to the time. With 16 jobs the paper's "
        "service makes 10.2 batches a second, with 8 jobs 8.7; here workers that are all busy make as many for any "
        "number of jobs."
    )
    return Section(
        "tf.data service: jobs on one service (Figure 10)", text, (comparison_table(rows, ""),), (), tuple(rows)
    )
