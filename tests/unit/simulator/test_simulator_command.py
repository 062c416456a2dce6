"""`pecan simulate` and `pecan tune` as a user runs them: what they print, and what they say to nonsense."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pecan_ray.cli import main
from pecan_ray.observe.report import Report, WorkerReport
from pecan_ray.placement import Cost
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Deployment


def finished() -> str:
    """The report of a run: two remote workers, the trainer waited half of the time."""
    worker = WorkerReport("remote", elements=400, batches=100, threads=2)
    return Report(
        job="resnet",
        seconds=20.0,
        batches=200,
        elements=800,
        waited_s=10.0,
        epochs=1,
        workers={"remote-0": worker, "remote-1": worker},
        deployments=((0.0, Deployment(0, 2)),),
        cost=Cost(host=0.03, remote=0.01, wasted=0.02),
    ).to_json()


def test_simulate_tells_the_path_of_a_policy_and_where_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--workload", "retinanet", "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert "RetinaNet on TPUv2-8" in said
    assert "on average 1.0 local + 0.0 remote workers" in said
    assert "per epoch" in said


def test_what_a_report_says_of_workers_is_read_by_name_and_stays_an_object_in_json() -> None:
    text = finished()
    assert json.loads(text)["workers"]["remote-1"] == {
        "placement": "remote",
        "elements": 400,
        "batches": 100,
        "threads": 2,
        "remote_bytes": 0,
        "node_bytes": 0,
        "stages": {**asdict(StageSeconds()), "operators": [], "in_processes": []},
        "hedged": 0,
        "hedges_won": 0,
    }
    worker = WorkerReport("local", elements=40, batches=10, threads=0)
    assert worker["batches"] == worker.batches == 10
    report = Report(job="one", seconds=2.0, batches=10, elements=40, workers={"local-0": worker})
    assert "local-0 (local): 40 elements in 10 batches\n" in f"{report}\n"
    report = replace(report, workers={"local-0": replace(worker, hedged=3, hedges_won=2)})
    assert "in 10 batches, 3 late reads asked for twice (2 won)\n" in f"{report}\n"


def test_simulate_draws_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["simulate", "--workload", "asr", "--seeds", "1", "--plot", str(tmp_path / "path.png")]) == 0
    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "path.svg").read_text()


def test_simulate_says_what_other_workers_would_have_done_for_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(finished())
    assert main(["simulate", "--from", str(file)]) == 0
    assert "0 local + 4 remote: +100%" in capsys.readouterr().out
    assert main(["simulate", "--from", str(file), "--remote", "3"]) == 0
    assert "what if    0 local + 3 remote: +50%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workload", "resnet"], "no workload 'resnet': choose one of"),
        (["--workload", "absent.json"], "no parameter file absent.json"),
        (["--from", "absent.json"], "no report absent.json"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--threshold", "nan"], "threshold must be a share"),
        (["--threshold", "-1"], "threshold must be a share"),
    ],
)
def test_simulate_refuses_nonsense_in_a_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b"\xff\xfe\x00", b'{"profile": {"job": "x"}}'])
def test_a_file_that_is_no_report_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(content)
    assert main(["simulate", "--from", str(file)]) == 2
    assert "this is no report of a run" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [["--local", "2"], ["--remote", "-1"], ["--remote", "0"]])
def test_deployments_that_a_run_cannot_tell_are_refused(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    file.write_text(finished())
    assert main(["simulate", "--from", str(file), *asked]) == 2
    assert capsys.readouterr().err.startswith("pecan: ")


def test_tune_prints_a_table_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    assert main(["tune", "--mode", "cachew", "--trials", "2", "--workloads", "1"]) == 0
    assert "| default | 0.03 | 100 |" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--trials", "0"], ["--workloads", "0"]])
def test_tune_refuses_nonsense_in_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 2
    assert capsys.readouterr().err.startswith("pecan: ")
