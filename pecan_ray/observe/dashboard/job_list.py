"""The page that lists the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from pecan_ray.observe.dashboard.amounts import amount, dollars, duration, share
from pecan_ray.observe.dashboard.frame import job_address, page, section
from pecan_ray.observe.dashboard.html_builder import Content, SafeHtml, element, table
from pecan_ray.observe.dashboard.record import JobLine

LIVE = ("job", "pipeline", "runs for", "epoch", "batches", "elements", "batches/s", "waiting", "workers", "bad", "cost")
PAST = ("job", "pipeline", "ended", "took", "epochs", "batches", "elements", "bad", "cost", "how")


def list_page(base: str, live: Sequence[JobLine], past: Sequence[JobLine], silent: Sequence[str] = ()) -> str:
    """Return the list; `silent`: controllers that have not answered."""
    return page(
        "Jobs",
        base,
        section(
            "live",
            "Live jobs",
            live_table(base, live) if live else element("p", "No job runs on this cluster."),
            element("p", f"No answer yet from: {', '.join(silent)}.", class_="error") if silent else None,
        ),
        section(
            "past",
            "Past jobs",
            past_table(base, past) if past else element("p", "No report of a past job is kept on this machine."),
        ),
        live=True,
    )


def live_table(base: str, lines: Sequence[JobLine]) -> SafeHtml:
    """Return the jobs that run."""
    rows = [
        (
            [link(base, one), element("span", f" {one.error}", class_="error") if one.error else None],
            one.pipeline,
            duration(one.seconds),
            str(one.epoch),
            f"{one.batches:,}",
            f"{one.elements:,}",
            amount(one.rate),
            share(one.waited),
            workers(one),
            f"{one.bad_elements:,}",
            dollars(one.dollars),
        )
        for one in lines
    ]
    running = sum(one.running.workers for one in lines)
    caption = f"{several(len(lines), 'job')} with {several(running, 'worker')}"
    return table(caption, LIVE, rows, numbers=frozenset({2, 3, 4, 5, 6, 7, 9, 10}))


def past_table(base: str, lines: Sequence[JobLine]) -> SafeHtml:
    """Return the jobs that have ended, as they are given."""
    rows = [
        (
            link(base, one),
            one.pipeline,
            one.past.ended if one.past else "",
            duration(one.seconds),
            str(one.epoch),
            f"{one.batches:,}",
            f"{one.elements:,}",
            f"{one.bad_elements:,}",
            dollars(one.dollars),
            element("span", one.error, class_="error") if one.error else "finished",
        )
        for one in lines
    ]
    return table(several(len(lines), "past job"), PAST, rows, numbers=frozenset({3, 4, 5, 6, 7, 8}))


def link(base: str, line: JobLine) -> SafeHtml:
    """Return a link to a job's page."""
    return element("a", line.name or "(no name)", href=job_address(base, line.name, line.past.key if line.past else ""))


def workers(line: JobLine) -> Content:
    """Say how many workers run, and how many are wanted if others are."""
    return [
        f"{line.running.local} local + {line.running.remote} remote",
        element("small", f" (wanted: {line.target})") if line.target else None,
    ]


def several(count: int, item_name: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {item_name}{'s' * (count != 1)}"
