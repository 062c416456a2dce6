"""Names of metrics keep to OpenMetrics, their page tells them all, and the boards ask for nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter as Counts
from pathlib import Path

import pytest
from ray.util.metrics import Counter, Gauge, Metric

from pecan_ray.cli import main
from pecan_ray.observe.grafana_pages import BOARDS, CHOSEN
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.runtime.metrics import JOB_TAGS, JobMetrics
from tests.unit.job.job_rig import JobRig

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
UNITS = ("seconds", "bytes", "ratio", "dollars")
"""Of OpenMetrics, and money; a name without one counts things, which the name says."""
OF_RAY = {"SessionName"}


def metrics() -> dict[str, Metric]:
    """All metrics of a job by the names under which Prometheus has them."""
    made = JobMetrics("job", "pipeline")
    parts = (*vars(made.trainers).values(), *vars(made.workers).values(), *vars(made).values())
    found = [one for one in parts if isinstance(one, Metric)]
    return {f"ray_{one.info['name']}" + "_total" * isinstance(one, Counter): one for one in found}


def rows() -> list[str]:
    made = []
    for name, one in metrics().items():
        kind = "counter" if isinstance(one, Counter) else "gauge"
        tags = ", ".join(f"`{tag}`" for tag in one.info["tag_keys"] if tag not in JOB_TAGS)
        made.append(f"| `{name}` | {kind} | {tags} | {one.info['description']} |")
    return made


def test_the_page_lists_every_metric_as_the_code_has_it() -> None:
    listed = [line for line in PAGE.splitlines() if line.startswith("| `ray_pecan_")]
    assert sorted(listed) == sorted(rows())


def test_names_and_units_are_those_of_openmetrics() -> None:
    for name, one in metrics().items():
        bare = name.removesuffix("_total")
        assert re.fullmatch(r"ray_pecan_[a-z]+(_[a-z]+)*", bare), name
        assert not bare.endswith(("_count", "_sum", "_bucket", "_info", "_created", "_total")), name
        assert not re.search(r"_(ms|millis|kb|mb|percent|share|usd)$", bare), name
        assert isinstance(one, Counter) == name.endswith("_total"), name
        assert not {"job", "instance", "le", "quantile"} & set(one.info["tag_keys"]), name
        if any(unit in bare.split("_") for unit in UNITS):
            assert bare.endswith(UNITS), f"{name}: the unit comes last"
        assert one.info["description"].endswith("."), name


def test_dropped_elements_are_counted_and_rests_of_unknown_length_are_told_until_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, float]] = []

    def noted(metric: Metric, value: float, tags: dict[str, str] | None = None) -> None:
        if "dropped" in metric.info["name"]:
            told.append((metric.info["name"], value))

    monkeypatch.setattr(Counter, "inc", noted)
    monkeypatch.setattr(Gauge, "set", noted)
    state, metrics = JobRig().job, JobMetrics("job", "pipeline")
    metrics.job(state, 0.0)
    assert told == [], "of a job that drops nothing"
    state.ledger.dropped.add("w", [Lease(0, Split(0, elements=3)), Lease(0, Split(1))])
    metrics.job(state, 1.0)
    state.ledger.dropped.ended((0, 0, 1), 7)
    metrics.job(state, 2.0)
    assert told == [
        *[("pecan_dropped_elements", 3), ("pecan_dropped_rests", 1)],
        *[("pecan_dropped_elements", 7), ("pecan_dropped_rests", 0)],
    ]


def test_a_gauge_is_told_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps a value for half a minute."""
    told: list[str] = []
    monkeypatch.setattr(Gauge, "set", lambda metric, value, tags=None: told.append(metric.info["name"]))
    state, metrics = JobRig().job, JobMetrics("job", "pipeline")
    for now in range(3):
        told.clear()
        metrics.job(state, float(now))
        assert Counts(told) == {"pecan_workers": 2, "pecan_workers_wanted": 2}, "local and remote"


def test_every_query_of_the_boards_names_a_metric_and_labels_that_exist() -> None:
    known = metrics()
    asked = set()
    for panel in (panel for panels in BOARDS.values() for panel in panels):
        for query in panel.queries:
            names = re.findall(r"ray_pecan_\w+", query.promql)
            assert names and all(f"{name}{{{CHOSEN}}}" in query.promql for name in names), query.promql
            labels = set.intersection(*({*known[name].info["tag_keys"], *OF_RAY} for name in names))
            used = {*re.findall(r"(\w+)=~", query.promql), *re.findall(r"\{\{(\w+)\}\}", query.legend)}
            used |= {label.strip() for by in re.findall(r"by \(([^)]*)\)", query.expr) for label in by.split(",")}
            assert used <= labels, (query.promql, used - labels)
            asked.update(names)
    assert asked == set(known), "each metric is on a board"


def test_the_command_writes_boards_that_grafana_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "dashboards"
    assert main(["grafana", "--out", str(folder)]) == 0
    files = sorted(folder.iterdir())
    assert [str(path) for path in files] == sorted(capsys.readouterr().out.split())
    boards = [json.loads(path.read_text()) for path in files]
    assert len({board["uid"] for board in boards}) == len(BOARDS)
    variables = {"datasource", "pecan_job", "pipeline", "SessionName"}
    for board in boards:
        assert {one["name"] for one in board["templating"]["list"]} == variables
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
        assert len(set(places)) == len(places) == len({p["id"] for p in board["panels"]})
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    (tmp_path / "file").write_text("")
    assert main(["grafana", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
