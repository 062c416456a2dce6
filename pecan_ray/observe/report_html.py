"""A report as a notebook shows it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from pecan_ray.job.stats import JobEvent


def report_html(first: str, lines: Iterable[str], workers: Sequence[Sequence[str]], events: Sequence[JobEvent]) -> str:
    """Return a report as HTML: its lines as text, workers in a table, and the events in a table that is folded.

    Args:
        first: Its first line, which is bold.
        lines: Those of the others that are about no worker and no event.
        workers: For each worker its name, placement, elements, batches and threads.
        events: What happened, in order.
    """
    parts = [f"<div><b>{html.escape(first)}</b>", *(f"<br>{html.escape(line)}" for line in lines)]
    if workers:
        parts.append(_table(("worker", "placement", "elements", "batches", "threads"), workers))
    if events:
        rows = [(f"{event.seconds:.1f} s", event.kind, event.text) for event in events]
        parts.append(f"<details><summary>{len(rows)} events</summary>{_table(('at', 'kind', 'what'), rows)}</details>")
    return "".join(parts) + "</div>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th style='text-align:left'>{html.escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
