"""Outages of a real S3 server (moto behind a proxy that fails when the test says so), as workers of a job meet them."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Timer

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import StorageOutageError
from pecan_ray.options import Config, OnError
from tests.flaky_http import FlakyProxy
from tests.long_form import some_later
from tests.object_stores import put_objects
from tests.ray.conftest import Bucket

pytestmark = pytest.mark.usefixtures("no_actor_left")
FILES, LINES = 120, 5


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> FlakyProxy:
    """The way by which all processes of a cluster reach small objects."""
    objects = dict[str, bytes]()
    for file in range(FILES):
        objects[f"many/{file:03}"] = b"".join(b"%d\n" % (file * LINES + line) for line in range(LINES))
    put_objects(bucket.endpoint, objects)
    return bucket.proxy


@pytest.fixture(autouse=True)
def up(proxy: FlakyProxy) -> Iterator[None]:
    """The store answers before and after each test."""
    proxy.outage, proxy.refused = None, 0
    proxy.latency_s = 0.1  # so that the store fails in the middle of an epoch, and not behind it
    yield
    proxy.outage, proxy.latency_s = None, 0.0


def job(patience_s: float) -> pecan.PecanPipeline:
    config = Config(storage_patience_s=patience_s)
    return pecan.PecanPipeline(pecan.sources.TextLines("s3://data/many/*"), name="outage", config=config).batch(5)


@pytest.mark.parametrize("on_error", some_later(["raise", "skip"], "raise"))
def test_an_outage_shorter_than_the_patience_costs_no_element(proxy: FlakyProxy, on_error: OnError) -> None:
    with job(60.0).iter_batches(workers=pecan.Workers(1), on_error=on_error) as batches:
        found = [next(batches)]
        proxy.outage = 503
        Timer(1.0, lambda: setattr(proxy, "outage", None)).start()
        found += batches
        report = batches.report()
    assert sorted(int(text) for batch in found for text in np.atleast_1d(batch["text"])) == list(range(FILES * LINES))
    assert proxy.refused > 0, "no request met the outage"
    assert report.bad_elements == 0 and report.workers_lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("on_error", some_later(["raise", "skip"], "raise"))
def test_a_longer_one_ends_the_job_and_names_the_file(proxy: FlakyProxy, on_error: OnError) -> None:
    with job(1.0).iter_batches(workers=pecan.Workers(1), on_error=on_error) as batches:
        next(batches)
        proxy.outage = 503
        with pytest.raises(StorageOutageError, match=r"s3://data/many/\d+ could not be read: .*503"):
            list(batches)
        assert batches.report().bad_elements == 0
