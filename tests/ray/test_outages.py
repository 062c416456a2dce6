"""Outages of a real S3 server (moto behind a proxy that fails when the test says so), as workers of a job meet them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import StorageOutageError
from pecan_ray.options import Config
from tests.flaky_http import FlakyProxy
from tests.object_stores import put_objects
from tests.ray.conftest import Bucket

pytestmark = pytest.mark.usefixtures("no_actor_left")
FILES, LINES = 120, 5
ANSWERED, REFUSED = 60, 20
"""So many requests are answered, which list the files and read some, before so many are refused."""


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[FlakyProxy]:
    """The way by which all processes of a cluster reach small objects; the store answers again after a test."""
    objects = {
        f"many/{file:03}": b"".join(b"%d\n" % (file * LINES + line) for line in range(LINES)) for file in range(FILES)
    }
    put_objects(bucket.endpoint, objects)
    yield bucket.proxy
    bucket.proxy.faults.clear()


def job(patience_s: float) -> pecan.PecanPipeline:
    config = Config(storage_patience_s=patience_s, hedged_reads=False)
    return pecan.PecanPipeline(pecan.sources.TextLines("s3://data/many/*"), name="outage", config=config).batch(5)


def test_an_outage_shorter_than_the_patience_costs_no_element(proxy: FlakyProxy) -> None:
    proxy.faults = deque(["none"] * ANSWERED + [503] * REFUSED)
    with job(600.0).iter_batches(workers=pecan.Workers(1)) as batches:
        found = list(batches)
        report = batches.report()
    assert sorted(int(text) for batch in found for text in np.atleast_1d(batch["text"])) == list(range(FILES * LINES))
    assert not proxy.faults, "not all requests of the outage were made"
    assert report.bad_elements == 0 and report.workers_lost == 0


@pytest.mark.slow
def test_a_longer_one_ends_the_job_and_names_the_file_also_where_bad_elements_are_skipped(proxy: FlakyProxy) -> None:
    proxy.faults = deque(["none"] * ANSWERED + [503] * 100_000)
    with job(1.0).iter_batches(workers=pecan.Workers(1), on_error="skip") as batches:
        with pytest.raises(StorageOutageError, match=r"s3://data/many/\d+ could not be read: .*503"):
            list(batches)
        assert batches.report().bad_elements == 0
