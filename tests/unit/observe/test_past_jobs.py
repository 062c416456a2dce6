"""Reports: what a notebook shows of them, and those of jobs that are over, with their pages of the dashboard."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.cli import main
from pecan_ray.errors import PlanError
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobEvent
from pecan_ray.job.windows import ObservedWindow
from pecan_ray.observe import past_jobs
from pecan_ray.observe.dashboard.from_report import past_line, record_of_report
from pecan_ray.observe.dashboard.job_list import list_page
from pecan_ray.observe.dashboard.job_page import job_page
from pecan_ray.observe.dashboard.record import PastRun
from pecan_ray.observe.dashboard_past import PastReports
from pecan_ray.observe.past_jobs import PastJob, keep_job, read_job, report_folder
from pecan_ray.observe.report import Report
from pecan_ray.observe.report_staff import WorkerReport
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.placement import Cost, Prices, PriceTier
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.sampling.budget import BadCount
from pecan_ray.sources import Arrays
from tests.unit.observe.dashboard_rig import Reader

ENDED = PastJob("a/b c-1", "b", "session_1", "node", 1_700_000_000.25, 1_700_000_060.0, "", "the report", {"job": "x"})


def test_the_newest_jobs_are_found_again_in_a_folder_that_can_be_written(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_jobs, "KEPT", 3)
    folder = tmp_path / "jobs"
    keep_job(ENDED, folder)
    (file,) = folder.iterdir()
    assert file.name == "01700000000250-a_b_c-1.json" and json.loads(file.read_text())["format"] == 1
    (folder / "of somebody else.json").write_text("{}")
    long = "写" * 100  # file systems count a name's bytes
    for number, name in enumerate(("2", "3", long), 1):
        keep_job(replace(ENDED, job=name, began=ENDED.began + number), folder)
    assert [one.job for one in past_jobs.past_jobs(folder)] == [long, "3", "2"]
    (folder / "99999999999999-damaged.json").write_text("{")
    assert [one.job for one in past_jobs.past_jobs(folder)] == [long, "3", "2"]
    assert (folder / "of somebody else.json").exists()
    (tmp_path / "file").write_text("")
    keep_job(ENDED, tmp_path / "file" / "below")
    assert list(past_jobs.past_jobs(tmp_path / "file/below")) == []
    assert report_folder() == cache_folder / "pecan_ray" / "jobs"
    assert report_folder("/elsewhere") == Path("/elsewhere") and report_folder("") is None


ODD: list[Any] = [float("inf"), float("nan"), 10**400, -1, "x", None, [[]], {"a": {}}]
FIELDS = ("seconds", "batches", "epochs", "elements", "waited_s", "bad_elements", "deployments")


def test_a_report_that_no_job_wrote_hides_no_other_one(tmp_path: Path) -> None:
    keep_job(ENDED, tmp_path)
    for field, value in itertools.product(FIELDS, ODD):
        keep_job(replace(ENDED, job="odd", report={**ENDED.report, "seconds": 1.0, field: value}), tmp_path)
        shown = PastReports(tmp_path).lines()
        assert ENDED.job in [line.name for line in shown] and list_page("", [], shown, []), (field, value)


def test_the_command_prints_saved_and_kept_reports(cache_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("train-1", 2.0, 10, 100, events=(JobEvent(1.0, "transport", "by shared memory"),))
    (cache_folder / "saved.json").write_text(report.to_json())
    assert main(["report", str(cache_folder / "saved.json")]) == 0
    assert capsys.readouterr().out == f"{report}\n"
    keep_job(ENDED, cache_folder / "jobs")
    keep_job(replace(ENDED, job="c-2", pipeline="c", error="OpError: no\nmore", began=2e9), cache_folder / "jobs")
    at = ["--folder", str(cache_folder / "jobs")]
    assert main(["report", "--list", *at]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("c-2 (pipeline c) ended at ") and first.endswith("with OpError: no")
    assert second.startswith("a/b c-1 (pipeline b) ended at ") and second.endswith(" well")
    assert main(["report", str(next((cache_folder / "jobs").glob("*a_b_c*"))), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job": "x"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "neither JSON nor a job's journal"),
        ("{}", "it has no `text`"),
        ('{"format": 1}', ""),
        ('{"format": 9}', "is of format 9"),
    ],
)
def test_a_file_that_is_no_report_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert main(["report", str(tmp_path / "x.json")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pecan: ") and said.count("\n") == 1 and words in said
    with pytest.raises(PlanError, match=r"x\.json is"):
        read_job(tmp_path / "x.json")


WINDOW = Window(batch_time=0.1, queue_size=2.0, batches=10, wait_time=0.02)


def report() -> Report:
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
        workers={"local-0": WorkerReport(9000, 900, 2, placement="local")},
        events=(JobEvent(1.0, "bad", "photo-7.jpg"), JobEvent(2.0, "worker", "local-0 runs")),
        deployments=((0.0, Deployment(1, 0)), (30.0, Deployment(1, 1))),
        timeline=tuple(steps),
        windows=(ObservedWindow(50.0, WINDOW, targets[0]), ObservedWindow(60.0, Window(0.1, 0.0, 1), targets[0])),
        cost=Cost(0.1, 0.02, 0.03),
        prices=Prices(3.6, 0.9, (PriceTier("spot", 0.9, 4),)),
        trainers=2,
    )


def test_a_past_job_has_a_page_of_what_its_report_says() -> None:
    told = json.loads(report().to_json())
    line = past_line("old", "photographs", told, PastRun("2026-01-02", "17-old.json"), error="OpError: x")
    assert (line.batches, line.epoch, line.waited, line.running.remote) == (900, 3, 0.2, 1)
    assert line.dollars == pytest.approx(0.12)
    found = record_of_report(line, told, "the text")
    assert [(one.seconds, one.reason) for one in found.decision_history] == [(10.0, "reason 0"), (30.0, "reason 2")]
    assert len(found.windows) == 5 and {one.rate for one in found.windows} == {20.0}
    assert found.cost[-1][0] == 100.0
    assert found.cost[-1][1] == pytest.approx((100 * 3.6 + 70 * 0.9) / 3600)
    page = Reader(job_page("/pecan", found))
    assert page.complaints() == []
    assert not page.all("script"), "a past job does not change"
    assert "photo-7.jpg" in page.text and "the text" in page.text
    found = record_of_report(past_line("old", "", {}, PastRun("")), {}, "")
    assert Reader(job_page("", found)).complaints() == []


def test_the_shelf_gives_the_record_of_a_kept_report_and_of_no_other_file(tmp_path: Path) -> None:
    told = json.loads(report().to_json())
    keep_job(PastJob("kept", "p", "c", "n", 1000.0, 1100.0, "", "text", told), tmp_path)
    (tmp_path / "00000009999999-broken.json").write_text("{")
    assert PastReports(tmp_path / "nothing").lines() == []
    shelf = PastReports(tmp_path)
    (line,) = shelf.lines()
    record = line.past and shelf.record(line.past.key)
    assert record and record.line.name == "kept"
    assert shelf.record("../../etc/passwd") is None and shelf.record("00000009999999-broken.json") is None


def test_a_pipeline_shows_its_operators_and_inputs_and_runs_none() -> None:
    def fails(i: int) -> int:
        raise AssertionError("it was run")

    numbers = PecanPipeline(Arrays(i=np.arange(4)), name="<rows> & more")
    shown = Reader(numbers.map(fails, on="i").concat(numbers.shuffle(2)).batch(2)._repr_html_())
    assert shown.wrong == []
    assert shown.of("b") == ["<rows> & more"], "escaped"
    assert "fails" in shown.of("code")[0]
    assert shown.of("ol", "li") == ["concat", "Arrays", "Arrays"]
    assert len(shown.of("ol", "li", "ol", "li", "code")) == 2, "of the inputs"
    assert shown.of("div", "ol", "li", "code") == [".batch(2)"]
    assert repr(numbers.shuffle(9, reshuffle=False).batch(2)).endswith(".shuffle(9).batch(2)"), "numbers alone"


def test_a_report_shows_what_its_text_tells_and_workers_and_events_in_tables() -> None:
    report = Report.of_debug("rows <1>", 3, 12, BadCount(1), 0, 2.0)
    report = replace(
        report,
        workers={"local-1": WorkerReport(12, 3, placement="local")},
        events=(JobEvent(0.5, "worker", "local-1 <came>"), JobEvent(1.0, "end", "over")),
    )
    shown = Reader(report._repr_html_())
    assert shown.wrong == []
    everything = " ".join(shown.text)
    assert shown.of("b")[0] == str(report).splitlines()[0] and "rows <1>" in shown.of("b")[0]
    assert "1 bad elements were left out (on_error)" in shown.of("div")
    workers = ["local-1", "local", "12", "3", "-"]
    assert shown.of("td") == [*workers, "0.5 s", "worker", "local-1 <came>", "1.0 s", "end", "over"]
    assert everything.count("local-1 <came>") == 1 and everything.count("12 elements in") == 1, "nothing comes twice"
    assert shown.of("summary") == ["2 events"]
