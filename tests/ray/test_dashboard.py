"""The dashboard on a real Ray Serve: every page of live jobs, read as HTML and opened in a real browser."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pecan_ray as pecan
from pecan_ray.observe.dashboard.frame import job_address
from pecan_ray.observe.dashboard_cluster import read_jobs, read_view
from pecan_ray.observe.dashboard_command import start, stop
from pecan_ray.placement import Prices
from tests.chromium import PROGRAM, browse
from tests.ray.conftest import Clusters
from tests.ray.pipelines import numbers
from tests.ray.user_programs import free_port
from tests.ray.waiting import ENDS_S, until
from tests.ray.waiting_transforms import WaitLog, half, refuses_seven
from tests.unit.observe.dashboard_rig import Reader

pytest.importorskip("starlette", reason="Ray Serve is not installed: pip install 'ray[serve]'")

JOB = "watched & more"


@contextmanager
def job() -> Iterator[None]:
    """A job that a thread reads meanwhile, about which AutoPlacement decides."""
    workers = pecan.AutoWorkers(max_local=1, max_remote=1, prices=Prices(5.0, 1.0))
    config = pecan.Config(order_folder="", error_budget=0.1, sample_seconds=2, progress=False)
    pipe = numbers(400, "seen", config=config).map(refuses_seven, on="i", name="check")
    pipe = pipe.map(WaitLog(0.001), on="i", name="slow").map(half, on="i", name="half").batch(4)
    ends = threading.Event()

    def run() -> None:
        with pipe.iter_batches(epochs=None, workers=workers, on_error="skip", job=JOB) as batches:
            next(True for _ in batches if ends.is_set())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.fixture
def page(clusters: Clusters) -> Iterator[str]:
    """The dashboard's address on two nodes, where a job runs."""
    serve = pytest.importorskip("ray.serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # of a machine that is busy with other things
        clusters.end()
        clusters.of(4, 4)
        address = start(serve, port=free_port()).rstrip("/")
        with job():
            until(lambda: [bool(one.rate) for one in read_jobs()[0]] == [True], "no window has ended")
            yield address
        stop(serve)
        clusters.end()


def read(address: str) -> tuple[int, Reader, dict[str, str]]:
    """Status, page and headers of an answer."""
    try:
        with urllib.request.urlopen(address, timeout=ENDS_S) as answer:
            return answer.status, Reader(answer.read().decode()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, Reader(error.read().decode()), dict(error.headers)


def test_pages_show_live_jobs_and_what_a_controller_knows_also_in_a_browser(page: str, tmp_path: Path) -> None:
    status, found, headers = read(f"{page}/")
    assert status == 200 and found.complaints() == []
    assert job_address("/pecan", JOB) in {a["href"] for a in found.all("a")} and JOB in found.text
    assert "default-src 'none'" in headers["content-security-policy"]
    wanted, bad = {"rate", "running", "queue", "cost"}, "bad elements were left out"

    def lacks() -> set[str]:
        """Return what is yet to come: plots, which take two windows, and the bad elements."""
        _, seen, _ = read(job_address(page, JOB))
        plots = {one["data-plot"] for one in seen.all("svg") if "data-plot" in one}
        return wanted - plots | ({bad} if bad not in "".join(seen.text) else set())

    until(lambda: not lacks(), lambda: f"the page lacks {lacks()}: {read_view(JOB)}")
    view = read_view(JOB)
    assert view is not None and view.order_text and view.stats.timeline
    status, found, _ = read(job_address(page, JOB))
    assert status == 200 and found.complaints() == []
    shown = "".join(found.text)
    assert all(one in shown for one in (f"pecan job {JOB}:", f"pecan:{JOB}:local-0", "check", "AutoOrder"))
    assert view.stats.timeline[0].decision.reason in shown and os.uname().nodename in shown
    for address in (job_address(page, "no such job"), f"{page}/nothing"):
        status, found, _ = read(address)
        assert status == 404 and found.complaints() == []
    for address in (f"{page}/", job_address(page, JOB), f"{page}/nothing") if PROGRAM else ():
        made = Reader(browse(address, tmp_path / "profile", wait_ms=6000))
        assert [one for one in made.complaints() if not one.startswith("<")] == []
        pause = [one for one in made.all("button") if one.get("id") == "pause"]
        assert all("hidden" not in one for one in pause), "the page's script has run"
        assert len(pause) == (not address.endswith("nothing"))
