"""Reports of jobs that are over are left in a folder, and found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.cli import main
from pecan_ray.errors import PlanError
from pecan_ray.job.facts import JobEvent
from pecan_ray.observe import past_jobs
from pecan_ray.observe.past_jobs import PastJob, keep_job, read_job, report_folder
from pecan_ray.observe.report import Report

ENDED = PastJob("a/b c-1", "b", "session_1", "node", 1_700_000_000.25, 1_700_000_060.0, "", "the report", {"job": "x"})


def test_a_job_is_found_again(tmp_path: Path) -> None:
    keep_job(ENDED, tmp_path / "jobs")
    assert list(past_jobs.past_jobs(tmp_path / "jobs")) == [ENDED]
    (file,) = (tmp_path / "jobs").iterdir()
    assert file.name == "01700000000250-a_b_c-1.json" and json.loads(file.read_text())["format"] == 1


def test_the_newest_jobs_stay_and_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_jobs, "KEPT", 3)
    (tmp_path / "of somebody else.json").write_text("{}")
    for number in range(5):
        keep_job(replace(ENDED, job=f"job-{number}", began=ENDED.began + number), tmp_path)
    (tmp_path / "99999999999999-damaged.json").write_text("{")
    assert [one.job for one in past_jobs.past_jobs(tmp_path)] == ["job-4", "job-3", "job-2"]
    assert (tmp_path / "of somebody else.json").exists()


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_job(ENDED, tmp_path / "file" / "below")
    for folder in ("file/below", "nowhere"):
        assert list(past_jobs.past_jobs(tmp_path / folder)) == []


def test_the_folder_is_the_users_unless_another_is_named(cache_folder: Path) -> None:
    assert report_folder() == cache_folder / "pecan_ray" / "jobs"
    assert report_folder("/elsewhere") == Path("/elsewhere") and report_folder("") is None


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
        ("", "neither JSON nor a job's journal"),
        ("{", "neither JSON nor a job's journal"),
        ("[1]", "it has no `text`"),
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
