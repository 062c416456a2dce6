"""What a notebook shows of pipelines and reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.report import Report, WorkerReport
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sampling.budget import BadCount
from pecan_ray.sources import Arrays
from tests.unit.observe.dashboard_rig import Reader


def shown_html(html: str) -> Reader:
    """A reader of HTML whose elements are closed in their order."""
    shown = Reader(html)
    assert shown.wrong == []
    return shown


def numbers(name: str = "rows") -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(4)), name=name)


def test_a_pipeline_shows_its_operators_and_runs_none() -> None:
    def fails(i: int) -> int:
        raise AssertionError("it was run")

    shown = shown_html(numbers("<rows> & more").map(fails, on="i").batch(2)._repr_html_())
    assert shown.of("b") == ["<rows> & more"], "escaped"
    assert shown.of("li") == ["Arrays"]
    first, second = shown.of("code")
    assert first.startswith(".map(") and "fails" in first and second.startswith(".batch(2")


def test_a_join_shows_its_inputs_within() -> None:
    left, right = numbers().map(lambda i: i, on="i", name="left"), numbers().shuffle(2)
    shown = shown_html(left.concat(right).batch(2)._repr_html_())
    assert shown.of("ol", "li") == ["concat", "Arrays", "Arrays"]
    assert len(shown.of("ol", "li", "ol", "li", "code")) == 2, "of the inputs"
    assert [text[:6] for text in shown.of("div", "ol", "li", "code")] == [".batch"]


def test_a_report_shows_what_its_text_tells_and_workers_and_events_in_tables() -> None:
    report = Report.of_debug("rows <1>", 3, 12, BadCount(1), 0, 2.0)
    report = replace(
        report,
        workers={"local-1": WorkerReport("local", 12, 3, 0)},
        events=(JobEvent(0.5, "worker", "local-1 <came>"), JobEvent(1.0, "end", "over")),
    )
    shown = shown_html(report._repr_html_())
    everything = " ".join(shown.text)
    assert shown.of("b")[0] == str(report).splitlines()[0] and "rows <1>" in shown.of("b")[0]
    assert "1 bad elements were left out (on_error)" in shown.of("div")
    workers, events = (
        ["local-1", "local", "12", "3", "-"],
        ["0.5 s", "worker", "local-1 <came>", "1.0 s", "end", "over"],
    )
    assert shown.of("td") == [*workers, *events]
    assert everything.count("local-1 <came>") == 1 and everything.count("12 elements in") == 1, "nothing comes twice"
    assert shown.of("summary") == ["2 events"]
