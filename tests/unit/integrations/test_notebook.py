"""What a notebook shows of pipelines and reports."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from pecan_ray.job.facts import JobEvent
from pecan_ray.observe.report import Report, WorkerReport
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sampling.budget import BadCount
from pecan_ray.sources import Arrays


class Shown(HTMLParser):
    """The texts between tags, each with the tags around it; fails where these are not closed in their order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((" ".join(self.open), data))

    def of(self, *tags: str) -> list[str]:
        return [text for around, text in self.texts if around.split()[-len(tags) :] == list(tags)]


def numbers(name: str = "rows") -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(4)), name=name)


def test_a_pipeline_shows_its_operators_and_runs_none() -> None:
    def fails(i: int) -> int:
        raise AssertionError("it was run")

    shown = Shown(numbers("<rows> & more").map(fails, on="i").batch(2)._repr_html_())
    assert shown.of("b") == ["<rows> & more"], "escaped"
    assert shown.of("li") == ["Arrays"]
    first, second = shown.of("code")
    assert first.startswith(".map(") and "fails" in first and second.startswith(".batch(2")


def test_a_join_shows_its_inputs_within() -> None:
    left, right = numbers().map(lambda i: i, on="i", name="left"), numbers().shuffle(2)
    shown = Shown(left.concat(right).batch(2)._repr_html_())
    assert shown.of("ol", "li") == ["concat", "Arrays", "Arrays"]
    assert len(shown.of("ol", "li", "ol", "li", "code")) == 2, "of the inputs"
    assert [text[:6] for around, text in shown.texts if around == "div ol li code"] == [".batch"]


def test_a_report_shows_what_its_text_tells_and_workers_and_events_in_tables() -> None:
    report = Report.of_debug("rows <1>", 3, 12, BadCount(1), 2.0)
    report = replace(
        report,
        workers={"local-1": WorkerReport("local", 12, 3, 0)},
        events=(JobEvent(0.5, "worker", "local-1 <came>"), JobEvent(1.0, "end", "over")),
    )
    shown = Shown(report._repr_html_())
    everything = " ".join(text for _, text in shown.texts)
    assert shown.of("b")[0] == str(report).splitlines()[0] and "rows <1>" in shown.of("b")[0]
    assert "1 bad elements were left out (on_error)" in shown.of("div")
    workers, events = (
        ["local-1", "local", "12", "3", "-"],
        ["0.5 s", "worker", "local-1 <came>", "1.0 s", "end", "over"],
    )
    assert shown.of("td") == [*workers, *events]
    assert everything.count("local-1 <came>") == 1 and everything.count("12 elements in") == 1, "nothing comes twice"
    assert shown.of("summary") == ["2 events"]
