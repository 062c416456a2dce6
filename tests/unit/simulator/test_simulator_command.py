"""`pecan simulate` and `pecan tune` as a user runs them: what they print, and what they say to nonsense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pecan_ray.cli import main
from pecan_ray.errors import PlanError
from pecan_ray.observe.report import Report
from pecan_ray.observe.report_staff import WorkerReport
from pecan_ray.placement import Cost
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.random_workloads import TUNED
from pecan_ray.simulator.tune import DEFAULTS, report, tune


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the report of a run in the folder: two remote workers, the trainer waited half of the time."""
    worker = WorkerReport(400, 100, 2, placement="remote")
    report = Report("resnet", 20.0, 200, 800, waited_s=10.0, epochs=1, workers={"remote-0": worker, "remote-1": worker})
    report = replace(report, deployments=((0.0, Deployment(0, 2)),), cost=Cost(host=0.03, remote=0.01, wasted=0.02))
    (tmp_path / "report.json").write_text(report.to_json())
    (tmp_path / "none.json").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)


def test_simulate_tells_the_path_of_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--workload", "retinanet", "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert "RetinaNet on TPUv2-8" in said and "per epoch" in said
    assert "on average 1.0 local + 0.0 remote workers" in said


@pytest.mark.usefixtures("finished")
def test_simulate_says_what_other_workers_would_have_done_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--from", "report.json"]) == 0
    assert "0 local + 4 remote: +100%" in capsys.readouterr().out
    assert main(["simulate", "--from", "report.json", "--remote", "3"]) == 0
    assert "what if    0 local + 3 remote: +50%" in capsys.readouterr().out


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("simulate --workload resnet", "no workload 'resnet': choose one of"),
        ("simulate --from absent.json", "no report absent.json"),
        ("simulate --from none.json", "this is no report of a run"),
        ("simulate --from report.json --local 2", "no local worker"),
        ("simulate --seeds 0", "--seeds must be at least 1"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(command: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith("pecan: ") and told in said.err and said.out == ""


def test_tune_tries_the_defaults_too_says_what_all_cost_and_does_the_same_with_the_same_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("optuna")
    assert main(["tune", "--mode", "cachew", "--trials", "2", "--workloads", "1"]) == 0
    assert "| default | 0.03 | 100 |" in capsys.readouterr().out
    study, again = (tune("pecan", trials=2, workloads=1, ladder={"threshold": (0.1,)}, seed=3) for _ in range(2))
    assert study == again and len(study.attempts) == 2
    assert any(one.settings == DEFAULTS["pecan"] for one in study.attempts)
    assert study.attempts[0].cost <= study.attempts[-1].cost
    assert all(0.95 < one.cost < 3 for one in study.attempts), "1 is the cheapest deployment from the first batch on"
    assert [(name, value) for name, value, _ in study.alone] == [("threshold", 0.1)]
    page = report(study)
    assert "| default | 0.03 |" in page and "| threshold = 0.1 |" in page


@pytest.mark.parametrize(
    ("mode", "trials", "workloads"),
    [("pecan", 0, 1), ("pecan", 1, 0), ("pecan", 1, TUNED), ("auto", 1, 1)],
)
def test_a_study_that_cannot_be_is_refused(mode: str, trials: int, workloads: int) -> None:
    with pytest.raises(PlanError):
        tune(mode, trials=trials, workloads=workloads)


def test_the_horizontal_pod_autoscaler_is_a_baseline_that_sees_utilization_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--workload", "asr", "--mode", "hpa", "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert "CPU utilization" in said and "where 80% is wanted" in said
    assert "on average 0.0 local" in said, "it scales remote workers, whatever local ones would spare"
