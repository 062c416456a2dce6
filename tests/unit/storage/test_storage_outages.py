"""What an outage of a bucket may do to an epoch, and to whoever reads or writes at that time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from threading import Timer

import numpy as np
import pytest

from pecan_ray import PecanPipeline, storage
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.in_process import run_produced
from pecan_ray.errors import StorageOutageError
from pecan_ray.options import EngineName, OnError
from pecan_ray.sources import TextLines, files
from pecan_ray.storage import retry
from tests.flaky_http import FlakyProxy
from tests.object_stores import Bucket
from tests.ray.waiting import until

FILES, LINES, AHEAD = 24, 5, 4
ENGINES = ("python", "tensorflow")
ON_ERROR = ("raise", "skip", "quarantine")
ALL = sorted(f"{n} {line}" for n in range(FILES) for line in range(LINES))


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry._patience, "seconds", 0.3)


@contextlib.contextmanager
def running(bucket: Bucket, engine: EngineName, on_error: OnError) -> Iterator[Generator[Produced, None, None]]:
    """Read many files, fetching so little ahead that an outage behind the first element meets requests."""
    bucket.put({f"many/{n:02}": b"".join(b"%d %d\n" % (n, line) for line in range(LINES)) for n in range(FILES)})
    pipe = PecanPipeline(TextLines(f"{bucket.url}/many/*"), engine=engine).map(lambda element: element)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SPLITS_AHEAD", AHEAD)
        with contextlib.closing(run_produced(pipe.plan, engine=engine, on_error=on_error)) as produced:
            yield produced


def check_outage(bucket: Bucket, engine: EngineName, on_error: OnError, begin: Callable[[FlakyProxy], object]) -> None:
    """Let a store fail in the middle of an epoch; every element must come."""
    with running(bucket, engine, on_error) as produced:
        found = [next(produced)]
        begin(bucket.proxy)
        found += produced
    assert sorted(text for one in found for text in np.atleast_1d(one.columns["text"]).astype(str)) == ALL
    assert [bad for one in found for bad in one.bad] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_an_outage_in_which_each_fetch_fails_twice_costs_no_element(bucket: Bucket, engine: EngineName) -> None:
    check_outage(bucket, engine, "skip", lambda proxy: proxy.faults.extend([503] * 2 * AHEAD))
    assert not bucket.proxy.faults


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
@pytest.mark.parametrize("on_error", ON_ERROR)
@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("engine", ENGINES)
def test_outages_cost_no_element(bucket: Bucket, engine: EngineName, seconds: float, on_error: OnError) -> None:
    def begin(proxy: FlakyProxy) -> None:
        proxy.outage = 503
        Timer(seconds, lambda: setattr(proxy, "outage", None)).start()

    check_outage(bucket, engine, on_error, begin)
    assert bucket.proxy.rejected > 0


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("on_error", ON_ERROR)
def test_a_longer_outage_ends_the_job_and_is_no_bad_element(bucket: Bucket, on_error: OnError) -> None:
    with running(bucket, "python", on_error) as produced:
        found = [next(produced)]
        bucket.proxy.outage = 503
        with pytest.raises(StorageOutageError, match="503"):
            found += produced
    assert [bad for one in found for bad in one.bad] == []
    if on_error == "raise":  # who writes waits no longer either
        with pytest.raises(StorageOutageError, match=r"could not be written: the storage failed \d+ times"):
            storage.write_file(f"{bucket.url}/key", b"z")
        with pytest.raises(StorageOutageError, match="could not be removed"):
            storage.delete_file(f"{bucket.url}/key")


def test_a_pipeline_that_is_closed_tries_nothing_again(bucket: Bucket) -> None:
    with running(bucket, "python", "raise") as produced:
        next(produced)
        bucket.proxy.outage = 503
        for _ in range(LINES):
            next(produced)
        until(retry.retries.longest, "nothing is fetched ahead")
    until(lambda: retry.retries.longest() is None, "what a closed pipeline would have read is tried again")
