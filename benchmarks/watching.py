"""What a person waits for: the first batch, and a page with many jobs and workers; and what being watched costs.

    python -m benchmarks.watching [--jobs 50] [--workers 500] [--rounds 9]

- First batch: README's pipeline on a Ray that runs, from the call of `iter_batches()`, with one local worker.
- Pages: Ray Serve shows as many jobs as asked for, each a real actor that answers as a controller does, with what a
  real controller has told of a job; of one of them with so many workers and 600 windows.  From the request to the
  page's last byte, with numbers that nobody has asked for in the second before.
- Metrics: the CPU time of a controller's calls of Ray's metrics, each kind timed in this process, times how many
  come in a second at most.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
from ray import serve
from ray.cluster_utils import Cluster

import pecan_ray as pecan
from benchmarks.first_program import first_pipeline
from pecan_ray.job.heartbeat import HEARTBEAT_S
from pecan_ray.job.job_views import MOST_SEEN, JobView, LiveJob, PlacedWorker
from pecan_ray.job.messages import Receipts, ReceivedBatches, TrainerProgress, TrainerReport, WorkerProgress
from pecan_ray.job.report_pace import REPORT_S
from pecan_ray.observe.dashboard.frame import job_address
from pecan_ray.observe.dashboard_cluster import KEPT_S, read_view
from pecan_ray.observe.dashboard_command import start, stop
from pecan_ray.runtime.cluster import NAMESPACE
from pecan_ray.runtime.metrics import JobMetrics

CALLS = 2000


class Controller:
    """Answers as the controller of a job does."""

    def __init__(self, view: JobView) -> None:
        self._view = view

    def live(self) -> LiveJob:
        """Return what lists show."""
        return self._view.live

    def view(self) -> JobView:
        """Return what the job's page shows."""
        return self._view


def first_batches(rounds: int) -> None:
    """Measure the time to the first batch, and print it."""
    seconds = []
    for number in range(rounds):
        pipe, began = first_pipeline(f"first-{number}"), time.perf_counter()
        with pipe.iter_batches(epochs=1, workers=pecan.Workers(local=1)) as batches:
            next(batches)
            seconds.append(time.perf_counter() - began)
    told = " ".join(f"{one:.2f}" for one in seconds)
    print(f"first batch: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s ({told})", flush=True)


def crowd(view: JobView, workers: int) -> JobView:
    """Return a view of a job with many workers, and with as many windows as a view has at most."""
    placed = tuple(PlacedWorker(f"w{n}", "remote", view.placed[0].node, "runs") for n in range(workers))
    window = view.stats.windows[-1]
    windows = tuple(replace(window, seconds=window.seconds + n) for n in range(MOST_SEEN))
    return replace(view, placed=placed, stats=replace(view.stats, windows=windows))


@contextmanager
def controllers(view: JobView, jobs: int, workers: int) -> Iterator[None]:
    """Let there be controllers of so many jobs, the first with so many workers."""
    remote: Any = ray.remote
    views = [crowd(view, workers), *[view] * (jobs - 1)]
    actors = []
    for number, shown in enumerate(views):
        name = f"job-{number:03}"
        named = replace(shown, live=replace(shown.live, job=name))
        options = {"name": f"pecan:{name}:controller", "namespace": NAMESPACE, "num_cpus": 0}
        actors.append(remote(Controller).options(**options).remote(named))
    ray.get([actor.live.remote() for actor in actors])
    try:
        yield
    finally:
        for actor in actors:
            ray.kill(actor)


def pages(jobs: int, workers: int, rounds: int) -> None:
    """Measure the dashboard's pages, and print it."""
    with first_pipeline("seen").iter_batches(epochs=None, workers=pecan.Workers(local=1), job="seen") as batches:
        view = None
        while view is None or not view.stats.windows:
            next(batches)
            view = read_view("seen")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    address = start(serve, port=port).rstrip("/")
    try:
        with controllers(view, jobs, workers):
            for what, url in (
                (f"list of {jobs} jobs", f"{address}/"),
                (f"job of {workers} workers", job_address(address, "job-000")),
            ):
                seconds, size = [], 0
                for _ in range(rounds):
                    time.sleep(KEPT_S)  # so that the numbers are read anew
                    began = time.perf_counter()
                    with urllib.request.urlopen(url) as answer:
                        size = len(answer.read())
                    seconds.append(time.perf_counter() - began)
                print(
                    f"{what}: median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s, "
                    f"{size / 1024:.0f} KiB",
                    flush=True,
                )
    finally:
        stop(serve)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS


def metrics(workers: int) -> None:
    """Measure what a second of metrics costs a job with one trainer, in CPU time of its controller, and print it."""
    told, numbers = JobMetrics("measured", "measured"), iter(range(1, 10**9))
    received = Receipts(tuple(ReceivedBatches(f"w{n}", 0, {}, 1, 64, 1 << 20) for n in range(4)))
    calls = (
        ("reports of the trainer", 1 / REPORT_S, lambda: told.trainers.reported(report())),
        (
            "a worker's news",
            1 / HEARTBEAT_S,
            lambda: told.workers.note_progress("w", "local", WorkerProgress(next(numbers), 1, 1)),
        ),
    )

    def report() -> TrainerReport:
        number = next(numbers)
        return TrainerReport(
            0, "", number, received, progress=TrainerProgress(number, number, float(number), number + 1.0)
        )

    shares = {}
    for what, per_s, call in calls:
        took = timed(call)
        shares[what] = took * per_s
        print(f"metrics, {what}: {took * 1e6:.0f} us, at most {per_s:g} a second")
    reports, news = shares.values()
    print(
        f"metrics, in all: {reports + news:.4%} of a CPU with a worker, {reports + workers * news:.3%} with {workers}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--workers", type=int, default=500, help="of one of the jobs")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    try:
        first_batches(asked.rounds)
        metrics(asked.workers)
        pages(asked.jobs, asked.workers, asked.rounds)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
