"""The boards for Grafana, asked of a real Prometheus that scrapes a real Ray: each query returns data."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.observe.grafana_pages import BOARDS
from pecan_ray.placement import Prices
from pecan_ray.storage.access import write_file
from tests.object_stores import reaching_s3, s3_bucket, serving_s3
from tests.ray.conftest import Clusters
from tests.ray.user_programs import free_port
from tests.ray.waiting import until
from tests.ray.workers import lose, maker

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus on this machine (Debian: apt-get install prometheus)"
)
SCRAPE_S = 5
"""A scrape that takes longer is thrown away."""
LINES = 2000


@pytest.fixture(scope="module")
def cluster_with_a_bucket(clusters: Clusters) -> Iterator[None]:
    """A head and a node for remote workers, whose processes reach an S3 with one file."""
    with serving_s3() as endpoint, reaching_s3(endpoint), s3_bucket(endpoint):
        # Of Parquet it is known how many rows a worker held that is lost.
        table, file = pa.table({"text": [f"line {number}" for number in range(LINES)]}), io.BytesIO()
        pq.write_table(table, file, row_group_size=LINES // 10)
        write_file("s3://data/lines.parquet", file.getvalue())
        clusters.end()  # raylets hand the environment of their start on to workers
        clusters.of(3, 3)
        yield
        clusters.end()


@pytest.fixture
def prometheus(cluster_with_a_bucket: None, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the cluster's nodes."""
    nodes: Any = ray.nodes
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes()]
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [{"job_name": "ray", "static_configs": [{"targets": targets}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # which is YAML too
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "log").open("wb"),
        env={**os.environ, "GOMAXPROCS": "1"},
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def answer(prometheus: str, query: str) -> list[Any]:
    """What Prometheus has for a query now; nothing while it starts."""
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as told:
            found = json.load(told)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except OSError:
        return []
    assert found["status"] == "success", found
    return list(found["data"]["result"])


def chosen(query: str, job: str) -> str:
    """A query as Grafana sends it, with a job chosen."""
    for name, value in (("pecan_job", job), ("pipeline", ".*"), ("SessionName", ".*"), ("__rate_interval", "1m")):
        query = query.replace(f"${name}", value)
    assert "$" not in query
    return query


def fail_for_some(text: str) -> str:
    if text.endswith("77"):
        raise ValueError("one of the bad ones")
    return text


def slowly(text: str) -> str:
    time.sleep(0.0005)
    return text


def test_each_query_of_the_boards_returns_data(prometheus: str) -> None:
    config = pecan.Config(order_folder="", error_budget=0.1, sample_seconds=30)
    pipe = pecan.PecanPipeline(pecan.sources.Parquet("s3://data/lines.parquet"), name="boards", config=config)
    pipe = pipe.map(fail_for_some, on="text", name="check").map(slowly, on="text", name="slow").batch(20)
    queries = {one.promql: one.legend for panels in BOARDS.values() for panel in panels for one in panel.queries}
    missing = set(queries)
    workers = pecan.AutoWorkers(max_local=1, max_remote=1, prices=Prices(5.0, 1.0))
    asked: dict[str, Any] = {"epochs": None, "workers": workers, "on_error": "skip", "visitation": "at_most_once"}
    with pipe.iter_batches(job="boards", **asked) as batches:
        next(batches)
        lose(batches, maker(batches))  # so that something is dropped

        def all_there() -> bool:
            for _ in range(20):
                assert isinstance(next(batches)["text"], np.ndarray)
            for query in sorted(missing):
                found = answer(prometheus, chosen(query, "boards"))
                labels = {part.split("}}")[0] for part in queries[query].split("{{")[1:]}
                if found and all(labels <= set(one["metric"]) for one in found):
                    missing.discard(query)
            return not missing

        until(all_there, lambda: f"nothing is returned for {sorted(missing)}", timeout_s=300)
        jobs = answer(prometheus, "group by (pecan_job, pipeline) (ray_pecan_workers)")
        assert [one["metric"] for one in jobs] == [{"pecan_job": "boards", "pipeline": "boards"}]
        assert answer(prometheus, '{__name__=~"ray_pecan_.*",exported_job!=""}') == []
