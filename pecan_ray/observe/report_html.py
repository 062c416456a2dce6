"""A report as a notebook shows it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pecan_ray.observe.report import Report


def report_html(report: Report) -> str:
    """Return a report as HTML: what its text tells, in tables, with the events folded."""
    text, told = str(report).splitlines(), set(report.event_lines())
    workers = [
        (name, worker.placement, str(worker.elements), str(worker.batches), str(worker.threads or "-"))
        for name, worker in report.workers.items()
    ]
    said = [line.strip() for line in text[1:] if line not in told and not _of_a_worker(line, report)]
    parts = [f"<div><b>{html.escape(text[0])}</b>", "".join(f"<br>{html.escape(line)}" for line in said)]
    if workers:
        parts.append(_table(("worker", "placement", "elements", "batches", "threads"), workers))
    if report.events:
        events = [(f"{event.seconds:.1f} s", event.kind, event.text) for event in report.events]
        parts.append(
            f"<details><summary>{len(events)} events</summary>{_table(('at', 'kind', 'what'), events)}</details>"
        )
    return "".join(parts) + "</div>"


def _of_a_worker(line: str, report: Report) -> bool:
    return any(line.startswith(f"  {name} ({worker.placement}): ") for name, worker in report.workers.items())


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th style='text-align:left'>{html.escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
