"""Past jobs on the dashboard: from the JSON of a report to a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pecan_ray.job.facts import JobEvent
from pecan_ray.job.observed import ObservedWindow
from pecan_ray.job.placing import PlacementStep
from pecan_ray.observe.dashboard.from_report import past_line, past_record
from pecan_ray.observe.dashboard.job_page import job_page
from pecan_ray.observe.dashboard_past import PastShelf
from pecan_ray.observe.past_jobs import PastJob, keep_job
from pecan_ray.observe.report import Report, WorkerReport
from pecan_ray.placement import Cost, Prices
from pecan_ray.plan.windows import Decision, Deployment, Window
from tests.unit.observe.dashboard_rig import Reader

WINDOW = Window(batch_time=0.1, queue_size=2.0, batches=10, wait_time=0.02)


def report() -> Report:
    """One of a job that ended after 100 s."""
    targets = [Deployment(1, 0), Deployment(1, 0), Deployment(1, 1), Deployment(1, 1)]
    steps = [
        PlacementStep(10.0 * (n + 1), WINDOW, target, Decision(target, "measure", f"reason {n}"))
        for n, target in enumerate(targets)
    ]
    return Report(
        "old",
        100.0,
        900,
        9000,
        waited_s=20.0,
        epochs=3,
        bad_elements=1,
        workers={"local-0": WorkerReport("local", 9000, 900, 2)},
        events=(JobEvent(1.0, "bad", "photo-7.jpg"), JobEvent(2.0, "worker", "local-0 runs")),
        deployments=((0.0, Deployment(1, 0)), (30.0, Deployment(1, 1))),
        timeline=tuple(steps),
        windows=(ObservedWindow(50.0, targets[0], WINDOW), ObservedWindow(60.0, targets[0], Window(0.1, 0.0, 1))),
        cost=Cost(0.1, 0.02, 0.03),
        prices=Prices(3.6, 0.9),
        trainers=2,
    )


def test_a_past_job_has_a_page() -> None:
    told = json.loads(report().to_json())
    line = past_line("old", "photographs", told, ended="2026-01-02", error="OpError: x", key="17-old.json")
    assert (line.batches, line.epoch, line.waited, line.remote) == (900, 3, 0.2, 1)
    assert line.dollars == pytest.approx(0.12)
    found = past_record(line, told, "the text")
    assert [(one.seconds, one.reason) for one in found.decisions] == [(10.0, "reason 0"), (30.0, "reason 2")]
    assert len(found.windows) == 5 and {one.rate for one in found.windows} == {20.0}
    assert found.cost[-1][0] == 100.0
    assert found.cost[-1][1] == pytest.approx((100 * 3.6 + 70 * 0.9) / 3600)
    page = Reader(job_page("/pecan", found))
    assert page.complaints() == []
    assert not page.all("script"), "a past job does not change"
    assert "photo-7.jpg" in page.text and "the text" in page.text


def test_a_report_of_few_fields_is_enough() -> None:
    found = past_record(past_line("old", "", {}), {}, "")
    assert Reader(job_page("", found)).complaints() == []


def test_the_shelf_shows_what_is_kept_and_leaves_out_what_is_broken(tmp_path: Path) -> None:
    told = json.loads(report().to_json())
    for began, job in ((1000.0, "first"), (2000.0, "second")):
        keep_job(PastJob(job, "p", "c", "n", began, began + 100, "", "text", told), tmp_path)
    (tmp_path / "00000009999999-broken.json").write_text("{")
    (tmp_path / "00000009999998-odd.json").write_text(
        PastJob("odd", "p", "c", "n", 1.0, 2.0, "", "", {"seconds": "x", "workers": 3}).to_json()
    )
    assert PastShelf(tmp_path / "nothing").lines() == []
    shelf = PastShelf(tmp_path)
    assert [line.name for line in shelf.lines()] == ["second", "first"]
    record = shelf.record(shelf.lines()[0].key)
    assert record is not None and record.line.name == "second"
    assert shelf.record("../../etc/passwd") is None and shelf.record("00000009999999-broken.json") is None
