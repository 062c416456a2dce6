"""Tables of the reproduction: what the paper says, what we get, how far apart, fitted or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["fitted", "predicted", "chosen", "follows"]
"""What a workload was fitted to; what could have failed; that for which a variant or a unit was chosen, having seen it;
and what other rows fix: a log's batch times with one worker and with enough fix those between."""


@dataclass(frozen=True)
class Comparison:
    """One number of a paper beside ours."""

    item: str
    paper: float
    ours: float
    status: Status
    unit: str = ""
    """"$", "%", "s", "ms", "min", "TB", "MB/s", "x", or empty for counts."""
    low: float | None = None
    """Least over our runs."""
    high: float | None = None
    """Greatest over our runs."""
    why: str = ""
    """Why the row has this status, if the page does not say it of all such rows."""

    @property
    def error(self) -> float:
        """Ours less the paper's: absolute for counts and percentages, else relative."""
        difference = self.ours - self.paper
        return difference if self.unit in ("", "%") else difference / self.paper if self.paper else difference


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str
    text: str
    blocks: tuple[str, ...] = ()
    """Tables and other Markdown."""
    plots: tuple[tuple[str, str], ...] = ()
    """(file name without suffix, caption)."""
    comparisons: tuple[Comparison, ...] = ()


def number(value: float, unit: str) -> str:
    """Write a number with its unit."""
    if unit == "$":
        return f"${value:.2f}"
    if unit == "%":
        return f"{value:.0f} %"
    if unit == "s":
        return f"{value:,.0f} s"
    if unit == "ms":
        return f"{value:.1f} ms"
    if unit == "min":
        return f"{value:,.0f} min"
    if unit in ("TB", "MB/s"):
        return f"{value:.1f} {unit}"
    if unit == "x":
        return f"{value:.2f}"
    return f"{value:.1f}".removesuffix(".0")


def error(row: Comparison) -> str:
    """Write the error of a row."""
    if row.unit == "%":
        return f"{row.error:+.0f} points"
    if row.unit == "":
        return f"{row.error:+.1f}"
    return f"{row.error:+.0%}"


def comparison_table(rows: Sequence[Comparison], what: str = "") -> str:
    """Return a table of comparisons."""
    lines = [f"| {what} | paper | ours | runs | error | |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for row in rows:
        spread = ""
        if row.low is not None and row.high is not None:
            spread = f"{number(row.low, row.unit)} to {number(row.high, row.unit)}"
        status = f"{row.status}: {row.why}" if row.why else row.status
        cells = [row.item, number(row.paper, row.unit), number(row.ours, row.unit), spread, error(row), status]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


FAR = {"": 2.0, "%": 10.0, "$": 0.15, "s": 0.15, "ms": 0.15, "x": 0.15, "min": 0.05, "TB": 0.05, "MB/s": 0.05}
"""Errors from which on a row is listed as a miss, by unit: workers, points, else shares."""


def misses(sections: Sequence[Section]) -> str:
    """List every row that is far from the paper, worst first of each part."""
    lines = []
    for part in sections:
        rows = sorted(
            (row for row in part.comparisons if abs(row.error) > FAR[row.unit]),
            key=lambda row: -abs(row.error) / FAR[row.unit],
        )
        if rows:
            told = [
                f"{row.item} {number(row.ours, row.unit)} where the paper has {number(row.paper, row.unit)}"
                + (" (fitted)" if row.status == "fitted" else "")
                for row in rows
            ]
            lines.append(f"- {part.title}: {'; '.join(told)}")
    return "\n".join(lines)
