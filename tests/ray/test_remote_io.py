"""What workers of a job read of a real S3 server: what its quota allows, nothing twice, and all of it after outages."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import StorageOutageError
from pecan_ray.options import Config
from pecan_ray.storage.throttle import LEAST_PIECE
from pecan_ray.storage.token_bucket import BURST_S
from tests.flaky_http import FlakyProxy
from tests.object_stores import put_objects
from tests.ray.conftest import Bucket
from tests.ray.pipelines import ONE, numbered_lines
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("no_actor_left")
FILES, LINES, LINE = 40, 100, 128
FILE_BYTES = LINES * LINE


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> FlakyProxy:
    """The way by which all processes of a cluster reach files with numbered lines."""
    put_objects(bucket.endpoint, numbered_lines("lines", FILES, LINES, LINE))
    return bucket.proxy


def pipe(**settings: object) -> pecan.PecanPipeline:
    config = Config(reorder="off", hedged_reads=False, **settings)  # type: ignore[arg-type]  # a test's own settings
    return pecan.PecanPipeline(pecan.sources.TextLines("s3://data/lines/*"), name="quota", config=config).batch(50)


def numbers(batches: list[dict[str, np.ndarray]]) -> list[int]:
    return sorted(int(text) for batch in batches for text in batch["text"])


def test_workers_together_keep_to_the_quota_and_miss_nothing(proxy: FlakyProxy) -> None:
    quota, workers = 150_000.0, 2
    with pipe(remote_io=quota).iter_batches(workers=pecan.Workers(workers)) as batches:
        found = [next(batches)]
        until(lambda: len(batches.report().workers) == workers, "the other worker does not come")
        found += batches
    assert numbers(found) == list(range(FILES * LINES))
    came = [at for one, at in zip(proxy.requests, proxy.times, strict=True) if one.startswith("GET /data/lines/")]
    assert len(came) == FILES, "each file is smaller than the least piece"
    # A worker may have flowed to it, or be given back, a piece that others do not know of.
    early = FILE_BYTES + workers * (LEAST_PIECE + quota * BURST_S)
    assert max(came) - min(came) >= (FILES * FILE_BYTES - early) / quota > 2.5


def test_jobs_at_the_same_time_read_each_object_once_for_all_together(proxy: FlakyProxy, tmp_path: Path) -> None:
    mixed = pipe(cache=pecan.Cache(tmp_path, source_bytes=64 << 20)).shuffle(1)
    before = len(proxy.requests)
    with (
        mixed.iter_batches(epochs=2, workers=ONE) as first,
        mixed.iter_batches(epochs=2, workers=ONE) as second,
    ):
        pairs = list(zip(first, second, strict=True))
        reports = first.report(), second.report()
    for found in zip(*pairs, strict=True):
        assert numbers(list(found)) == sorted(list(range(FILES * LINES)) * 2)
    gets = [one for one in proxy.requests[before:] if one.startswith("GET /data/lines/")]
    assert sorted(gets) == sorted(set(gets)) and len(gets) == FILES, "both have fetched the same"
    assert sum(one.remote_bytes for report in reports for one in report.workers.values()) == FILES * FILE_BYTES


# --- outages --------------------------------------------------------------------------------------------------

ANSWERED = 20
"""So many requests are answered, which list the files and read some,"""
REFUSED = 20
"""before so many are refused."""


def test_an_outage_shorter_than_the_patience_costs_no_element(proxy: FlakyProxy) -> None:
    proxy.faults = deque(["none"] * ANSWERED + [503] * REFUSED)
    with pipe(storage_patience_s=600.0).iter_batches(workers=ONE) as batches:
        assert numbers(list(batches)) == list(range(FILES * LINES))
        report = batches.report()
    assert not proxy.faults, "not all requests of the outage were made"
    assert report.bad_elements == 0 and report.workers_lost == 0


@pytest.mark.slow
def test_a_longer_one_ends_the_job_and_names_the_file_also_where_bad_elements_are_skipped(proxy: FlakyProxy) -> None:
    proxy.faults = deque(["none"] * ANSWERED + [503] * 100_000)
    with pipe(storage_patience_s=1.0).iter_batches(workers=ONE, on_error="skip") as batches:
        with pytest.raises(StorageOutageError, match=r"s3://data/lines/\d+ could not be read: .*503"):
            list(batches)
        assert batches.report().bad_elements == 0
    proxy.faults.clear()
