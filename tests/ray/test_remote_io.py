"""What jobs read of a real S3 server: what quotas allow, nothing twice, and what those are told that share the pipe."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.errors import PlanError
from pecan_ray.job.job_views import LiveJob
from pecan_ray.observe.live_jobs import live_jobs
from pecan_ray.runtime import cluster
from pecan_ray.runtime.service import SERVICE
from pecan_ray.storage.throttle import LEAST_PIECE
from pecan_ray.storage.token_bucket import BURST_S
from tests.flaky_http import FlakyProxy
from tests.object_stores import put_objects
from tests.ray.conftest import Bucket
from tests.ray.one_fetches import unchanged
from tests.ray.pipelines import ONE, numbered_lines
from tests.ray.waiting import ENDS_S, until

pytestmark = pytest.mark.usefixtures("no_actor_left")

LINES, LINE = 100, 128
FILES, SHARED_FILES = 40, 20
FILE_BYTES = LINES * LINE
PIPE = 100e6
ROOM = 64 << 20


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> FlakyProxy:
    """The way by which all processes of a cluster reach files with numbered lines."""
    for folder, files in (("lines", FILES), ("small", SHARED_FILES), ("large", SHARED_FILES)):
        put_objects(bucket.endpoint, numbered_lines(folder, files, LINES, LINE))
    return bucket.proxy


def pipe(**settings: Any) -> pecan.PecanPipeline:
    config = pecan.Config(reorder="off", hedged_reads=False, **settings)
    lines = pecan.sources.TextLines("s3://data/lines/*")
    return pecan.PecanPipeline(lines, name="quota", config=config).map(unchanged, on="text").batch(50)


def numbers(batches: list[dict[str, np.ndarray]]) -> list[int]:
    return sorted(int(text) for batch in batches for text in batch["text"])


def test_jobs_at_the_same_time_read_each_object_once_for_all_together_within_their_quotas(
    proxy: FlakyProxy, tmp_path: Path
) -> None:
    quota, jobs = 75_000.0, 2
    mixed = pipe(cache=pecan.Cache(tmp_path, source_bytes=64 << 20), remote_io=quota).shuffle(1)
    with (
        mixed.iter_batches(epochs=2, workers=ONE) as first,
        mixed.iter_batches(epochs=2, workers=ONE) as second,
    ):
        pairs = list(zip(first, second, strict=True))
        reports = first.report(), second.report()
    for found in zip(*pairs, strict=True):
        assert numbers(list(found)) == sorted(list(range(FILES * LINES)) * 2)
    asked = [(one, at) for one, at in zip(proxy.requests, proxy.times, strict=True) if "GET /data/lines/" in one]
    assert len(asked) == len({one for one, _ in asked}) == FILES, "both have fetched the same"
    assert sum(one.remote_bytes for report in reports for one in report.workers.values()) == FILES * FILE_BYTES
    # A worker may have flowed to it, or be given back, a piece that others do not know of.
    early = FILE_BYTES + jobs * (LEAST_PIECE + quota * BURST_S)
    came = [at for _, at in asked]
    assert max(came) - min(came) >= (FILES * FILE_BYTES - early) / (jobs * quota) > 2.0


# --- jobs that share the pipe ---------------------------------------------------------------------------------


@pytest.fixture
def service_ends(no_actor_left: None) -> Iterator[None]:
    """Ends the service that a test has started: it stays until it is told to go."""
    yield
    main(["stop", "--force"])


class Running:
    """A job that a thread reads, and that is held in its first epoch until it is let go, with few batches ahead."""

    def __init__(self, stack: ExitStack, folder: str, shared: pecan.ClusterIo, path: Path, epochs: int = 3) -> None:
        config = pecan.Config(
            reorder="off",
            remote_io=shared,
            cache=pecan.Cache(path, source_bytes=ROOM),
            progress=False,
            ring_bytes=1 << 20,
        )
        lines = pecan.sources.TextLines(f"s3://data/{folder}/*")
        pipe = pecan.PecanPipeline(lines, name=folder, config=config).shuffle(1).batch(50)
        self._epochs, self.found = epochs, list[int]()
        self.batches = stack.enter_context(
            pipe.iter_batches(epochs=epochs, workers=pecan.Workers(1), prefetch_bytes=32 << 10)
        )
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        stack.callback(self._go_on.set)

    def _read(self) -> None:
        for number, batch in enumerate(self.batches):
            self.found += [int(text) for text in batch["text"]]
            if number == 2:
                self._go_on.wait()

    def ends(self) -> None:
        """Let it go on, and check that every element has come once an epoch."""
        self._go_on.set()
        self._thread.join(ENDS_S)
        assert not self._thread.is_alive(), "the job does not end"
        assert sorted(self.found) == sorted(list(range(SHARED_FILES * LINES)) * self._epochs)


def live(name: str) -> LiveJob | None:
    """Return what a pipeline's only job tells of itself."""
    return next((job for job in live_jobs(10.0)[0] if job.pipeline == name), None)


def answer(name: str) -> LiveJob:
    """Return what a pipeline's only job tells of itself, once it answers."""
    found: list[LiveJob] = []

    def answers() -> bool:
        found.extend(filter(None, [live(name)]))
        return bool(found)

    until(answers, f"the job of {name} does not answer")
    return found[0]


def quota(name: str) -> float:
    """Return the quota of a pipeline's job; 0: there is none."""
    job = live(name)
    return (job.storage.remote_io or 0.0) if job is not None and job.storage.room is not None else 0.0


def asked(ideal: float, size: float, **more: Any) -> pecan.ClusterIo:
    """Return what a job shares, whose speed need not be measured."""
    return pecan.ClusterIo(PIPE, ideal_bytes_per_s=ideal, dataset_bytes=size, **more)


def service_of(jobs: int) -> int:
    """Return the process of the service once it knows so many jobs."""
    found: list[int] = []

    def knows() -> bool:
        try:
            service: Any = ray.get_actor(SERVICE, namespace=cluster.NAMESPACE)
            found.append(ray.get(service.place.remote(), timeout=5.0)[1])
            return bool(ray.get(service.io.remote(), timeout=5.0)[1] == jobs)
        except (ray.exceptions.RayError, TimeoutError, ValueError):
            return False

    until(knows, f"no service knows {jobs} jobs")
    return found[-1]


def test_quotas_follow_the_jobs_that_come_and_go_and_top_shows_them_whatever_becomes_of_the_service(
    proxy: FlakyProxy, service_ends: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        small = Running(stack, "small", asked(90e6, 30 << 20, cache_bytes=30 << 20, policy="greedy"), tmp_path)
        until(lambda: quota("small") == pytest.approx(PIPE), "the first job does not have the pipe for itself")
        large = Running(stack, "large", asked(80e6, 300 << 20), tmp_path)
        until(lambda: quota("large") > 0 and quota("small") < 0.95 * PIPE, "the second job has no quota")
        until(lambda: quota("small") + quota("large") == pytest.approx(PIPE, rel=0.05), "they do not make up the pipe")
        rooms = {name: job.storage.room for name in ("small", "large") if (job := live(name)) is not None}
        assert rooms == {"small": 30 << 20, "large": 0}, "the efficient one is cached whole"
        jobs = ("small", "large")
        until(lambda: all(job is not None and job.running.local for job in map(live, jobs)), "no workers run")
        capsys.readouterr()
        assert main(["top", "--once"]) == 0
        told = capsys.readouterr().out.splitlines()
        assert told[0].startswith("2 jobs, 2 workers")
        assert "quota MB/s" in told[1] and "cache GB" in told[1] and len(told) == 4
        assert main(["status"]) == 0
        assert "divides 100 MB/s of object stores and 0.03146 GB of cache among 2 jobs" in capsys.readouterr().out
        with pytest.raises(PlanError, match="its part of what the cluster's jobs share"):
            small.batches.set_remote_io(1e6)
        os.kill(before := service_of(2), signal.SIGKILL)
        for name in jobs:
            assert 0 < (answer(name).storage.remote_io or 0.0) < 0.95 * PIPE, name
        until(lambda: service_of(2) != before, "its journal has not told another process of both jobs")
        ray.kill(ray.get_actor(SERVICE, namespace=cluster.NAMESPACE))  # for good, as `pecan stop` does
        service_of(2)  # the jobs start another one
        small.ends()
        small.batches.close()
        until(lambda: quota("large") == pytest.approx(PIPE), "what the first job had is not given on")
        large.ends()
        report = large.batches.report()
    events = [event.text for event in report.events if event.kind == "remote io"]
    assert events and all("its part of what the cluster's jobs share" in text for text in events)
    assert report.workers_lost == 0
