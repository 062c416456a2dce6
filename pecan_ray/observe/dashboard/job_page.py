"""The page of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.dashboard.amounts import amount, dollars, duration, share, size
from pecan_ray.observe.dashboard.frame import page, section
from pecan_ray.observe.dashboard.html_builder import Content, SafeHtml, element, table
from pecan_ray.observe.dashboard.job_list import several
from pecan_ray.observe.dashboard.job_list import workers as worker_numbers
from pecan_ray.observe.dashboard.plan_tables import plan_tables
from pecan_ray.observe.dashboard.plots import Mark, Plot, PlotSeries, figure
from pecan_ray.observe.dashboard.record import JobLine, JobRecord, SeenDecision, SeenWorker

MOST_LISTED = 100
"""Newest decisions, bad elements and events of a page, of each kind."""
WORKERS_SHOWN = 20
"""Of more workers a table is folded: it would fill the screen."""


def job_page(base: str, job: JobRecord) -> str:
    """Return the page."""
    line = job.line
    return page(
        f"Job {line.name}",
        base,
        element("p", job.lost, class_="error", role="alert") if job.lost else None,
        element("p", line.error, class_="error", role="alert") if line.error else None,
        section("now", "Now" if line.past is None else "In all", main_numbers(line)),
        section("plots", "Over time", element("div", [figure(one) for one in plots(job)], class_="plots")),
        section("decisions", "Decisions about workers", decision_table(job.decision_history)),
        section("plan", "The plan", *plan_tables(job.order_text)) if line.past is None or job.order_text else None,
        section("workers", "Where workers run", workers(job.workers), trainers(job)),
        section("bad", "Bad elements", bad(job)),
        section("events", "Events", events([one for one in job.events if one.kind != "bad"])),
        section("report", "Report", element("pre", job.report, tabindex=0, aria_label="Report")),
        live=line.past is None,
        way=[" / ", element("span", line.name, aria_current="page")],
    )


def main_numbers(line: JobLine) -> SafeHtml:
    """Return the numbers of a job that people look for first."""
    told: list[tuple[str, Content]] = [
        ("pipeline", line.pipeline or "-"),
        ("runs for" if line.past is None else "took", duration(line.seconds)),
        ("epoch" if line.past is None else "epochs", str(line.epoch)),
        ("batches", f"{line.batches:,}"),
        ("elements", f"{line.elements:,}"),
        ("rate lately" if line.past is None else "rate", amount(line.rate, "batches/s")),
        ("waiting lately" if line.past is None else "waiting", share(line.waited)),
        ("workers", worker_numbers(line)),
        ("bad elements", f"{line.bad_elements:,}"),
        ("cost", dollars(line.dollars)),
    ]
    if line.past is not None:
        told.append(("ended", line.past.ended))
    return element(
        "dl", [element("div", element("dt", name), element("dd", value)) for name, value in told], class_="facts"
    )


def plots(job: JobRecord) -> list[Plot]:
    """Return what is plotted of a job."""
    until = job.line.seconds
    changes = zip(("", *(one.target for one in job.decision_history)), job.decision_history, strict=False)
    marks = tuple(Mark(one.seconds, one.reason) for before, one in changes if one.target != before)
    windows = job.windows
    found = [
        Plot(
            "rate",
            "Batches a second",
            (PlotSeries("rate", tuple((w.seconds, w.rate) for w in windows)),),
            amount,
            until=until,
        ),
        Plot(
            "waiting",
            "Share of the time in which trainers waited",
            (PlotSeries("waiting", tuple((w.seconds, w.waited) for w in windows if w.waited is not None)),),
            share,
            until=until,
            most=1.0,
        ),
        Plot(
            "running",
            "Workers by placement",
            (
                PlotSeries("local", tuple((at, float(one.local)) for at, one in job.running), steps=True),
                PlotSeries("remote", tuple((at, float(one.remote)) for at, one in job.running), steps=True),
            ),
            amount,
            points=marks,
            until=until,
        ),
        Plot(
            "queue",
            "Batches that wait at a trainer",
            (PlotSeries("queue", tuple((w.seconds, w.queue) for w in windows)),),
            amount,
            until=until,
        ),
    ]
    if job.cost:
        found.append(Plot("cost", "Cost so far", (PlotSeries("cost", job.cost),), dollars, until=until))
    return found


def decision_table(found: Sequence[SeenDecision]) -> Content:
    """Return the newest decisions with their reasons."""
    if not found:
        return element("p", "Nothing was decided: the numbers of workers are fixed, or no window has ended yet.")
    newest = list(reversed(found))[:MOST_LISTED]
    rows = [(duration(one.seconds), one.target, one.phase, one.reason) for one in newest]
    caption = f"{several(len(newest), 'decision')} that changed something, the newest first"
    return table(caption, ("after", "wanted", "step", "why"), rows)


def workers(found: Sequence[SeenWorker]) -> Content:
    """Return how many workers run on which node, and each of them."""
    if not found:
        return element("p", "No worker has told anything yet.")
    here = [one for one in found if one.state not in ("gone", "")]
    nodes = Counter((one.node or "no place yet", one.placement) for one in here)
    rows = [(node, placement, str(count)) for (node, placement), count in sorted(nodes.items())]
    headings = ("node", "placement", "workers")
    by_node = table("Live workers by node", headings, rows, numbers=frozenset({2})) if rows else None
    each = table(
        several(len(found), "worker"),
        ("worker", "placement", "node", "state", "elements", "batches", "threads", "read of object stores"),
        [_worker_row(one) for one in found],
        numbers=frozenset({4, 5, 6, 7}),
    )
    if len(found) <= WORKERS_SHOWN:
        return [by_node, each]
    return [by_node, element("details", element("summary", f"Each of {len(found):,} workers"), each, id="each-worker")]


def trainers(job: JobRecord) -> Content:
    """Return the ranks of a job."""
    if not job.trainers:
        return None
    rows = [
        (
            str(one.rank),
            one.node,
            f"{one.batches:,}",
            f"{one.elements:,}",
            share(one.waited),
            str(one.queued),
        )
        for one in job.trainers
    ]
    return table(
        several(len(rows), "trainer"),
        ("rank", "node", "batches", "elements", "waited", "queue"),
        rows,
        numbers=frozenset({2, 3, 4, 5}),
    )


def bad(job: JobRecord) -> Content:
    """Return which elements were left out."""
    if not job.line.bad_elements:
        return element("p", "No element was left out.")
    found = [one for one in job.events if one.kind == "bad"]
    message = element("p", job.bad or f"{several(job.line.bad_elements, 'bad element')} were left out.")
    return [message, events(found, caption="Bad elements that the job has told of") if found else None]


def events(found: Sequence[JobEvent], caption: str = "Events") -> Content:
    """Return the newest events."""
    if not found:
        return element("p", "Nothing has happened.")
    newest = list(reversed(found))[:MOST_LISTED]
    rows = [(duration(one.seconds), one.kind, one.text) for one in newest]
    return table(f"{caption}, the newest first", ("after", "kind", "what"), rows)


def _worker_row(one: SeenWorker) -> tuple[str, ...]:
    where = (one.name, one.placement, one.node or "-", one.state or "-")
    read = size(one.remote_bytes) if one.remote_bytes else "-"
    return (*where, f"{one.elements:,}", f"{one.batches:,}", str(one.threads or "-"), read)
