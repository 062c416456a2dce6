"""The dashboard on a real Ray Serve: every page of live jobs, read as HTML and opened in a real browser."""

from __future__ import annotations

import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.observe.dashboard.frame import job_address
from pecan_ray.observe.dashboard_cluster import read_jobs, read_view
from pecan_ray.observe.dashboard_command import start, stop
from pecan_ray.placement import Prices
from tests.chromium import browse, needs_chromium
from tests.ray.conftest import Clusters
from tests.ray.waiting import until
from tests.ray.waiting_transforms import Waits, half, refuses_seven
from tests.unit.observe.dashboard_rig import Reader

pytestmark = pytest.mark.timeout(900)  # Ray Serve and two jobs start, on a machine that may be busy
pytest.importorskip("starlette", reason="Ray Serve is not installed: pip install 'ray[serve]'")

HOSTILE = "<script>alert(1)</script> & job"


@pytest.fixture(scope="module")
def page(clusters: Clusters) -> Iterator[str]:
    """The address of the dashboard, on a cluster of two nodes."""
    serve = pytest.importorskip("ray.serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # of a machine that is busy with other things
        clusters.end()
        clusters.of(4, 4)
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        yield start(serve, port=port).rstrip("/")
        stop(serve)
        clusters.end()


@pytest.fixture(scope="module")
def jobs(page: str) -> Iterator[tuple[str, str]]:
    """The names of two jobs that run: one whose workers AutoPlacement decides about, one with a hostile name."""
    ends = threading.Event()
    begun = [threading.Event(), threading.Event()]
    auto = pecan.AutoWorkers(max_local=1, max_remote=1, prices=Prices(5.0, 1.0))
    runs = (("watched", auto, begun[0]), (HOSTILE, pecan.Workers(local=1), begun[1]))
    threads = [threading.Thread(target=run, args=(*one, ends)) for one in runs]
    for thread in threads:
        thread.start()
    try:
        until(lambda: all(one.is_set() for one in begun), "the jobs have not begun")
        until(lambda: all(job.rate for job in read_jobs()[0]), "no window has ended")
        yield "watched", HOSTILE
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def run(job: str, workers: Any, begun: threading.Event, ends: threading.Event) -> None:
    config = pecan.Config(order_folder="", error_budget=0.1, sample_seconds=2, progress=False)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(400)), name="seen", config=config)
    pipe = (
        pipe.map(refuses_seven, on="i", name="check")
        .map(Waits(0.001), on="i", name="slow")
        .map(half, on="i", name="half")
    )
    with pipe.batch(4).iter_batches(epochs=None, workers=workers, on_error="skip", job=job) as batches:
        for _ in batches:
            begun.set()
            if ends.is_set():
                break


def read(address: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_the_list_shows_live_jobs(page: str, jobs: tuple[str, str]) -> None:
    status, text, headers = read(f"{page}/")
    found = Reader(text)
    assert status == 200 and found.complaints() == []
    assert {job_address("/pecan", job) for job in jobs} <= {a["href"] for a in found.all("a")}
    assert set(jobs) <= set(found.text)
    assert "default-src 'none'" in headers["content-security-policy"]


def test_a_jobs_page_shows_what_its_controller_knows(page: str, jobs: tuple[str, str]) -> None:
    wanted, bad = {"rate", "running", "queue", "cost"}, "bad elements were left out"

    def lacks() -> set[str]:
        """Return what is yet to come: plots, which take two windows, and the bad elements."""
        seen = Reader(read(job_address(page, "watched"))[1])
        plots = {one["data-plot"] for one in seen.all("svg") if "data-plot" in one}
        return wanted - plots | ({bad} if bad not in "".join(seen.text) else set())

    until(lambda: not lacks(), lambda: f"the page lacks {lacks()}: {read_view('watched')}")
    view = read_view("watched")
    assert view is not None and view.order_text and view.facts.timeline
    status, text, _ = read(job_address(page, "watched"))
    found = Reader(text)
    assert status == 200 and found.complaints() == []
    shown = "".join(found.text)
    assert "pecan:watched:local-0" in shown and "check" in shown and "AutoOrder" in shown
    assert view.facts.timeline[0].decision.reason in shown
    assert "pecan job watched:" in shown and os.uname().nodename in shown


def test_a_hostile_name_is_a_name_and_what_is_not_there_is_said(page: str, jobs: tuple[str, str]) -> None:
    status, text, _ = read(job_address(page, HOSTILE))
    found = Reader(text)
    assert status == 200 and found.complaints() == []
    assert [one for one in found.all("script") if "src" not in one] == []
    assert f"Job {HOSTILE}" in found.text
    for address in (job_address(page, "no such job"), f"{page}/nothing"):
        status, text, _ = read(address)
        assert status == 404 and Reader(text).complaints() == []


@needs_chromium
def test_a_browser_shows_every_page_and_reads_it_anew(page: str, jobs: tuple[str, str], tmp_path: Path) -> None:
    for address in (f"{page}/", *(job_address(page, job) for job in jobs), f"{page}/nothing"):
        made = Reader(browse(address, tmp_path / "profile", wait_ms=6000))
        assert [one for one in made.complaints() if not one.startswith("<")] == []
        pause = [one for one in made.all("button") if one.get("id") == "pause"]
        assert all("hidden" not in one for one in pause), "the page's script has run"
        assert len(pause) == (not address.endswith("nothing"))
