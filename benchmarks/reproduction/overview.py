"""The table with which docs/reproduction.md begins: of each figure, what could have failed, and how near it came.

It is read from the tables of the page itself, because two programs write the page, a part each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BEGIN, END = "<!-- overview -->", "<!-- end of overview -->"
KINDS = {"fitted": "fitted", "chosen": "by a variant chosen afterwards", "follows": "follow from these"}
"""Statuses of rows that are not blind, as the table spells them."""
NEAR = {"points": 5.0, "%": 10.0, "": 1.0}
"""Errors up to which a prediction is near the paper: percentage points, percent, and workers."""
NOT_REPLAYED = (
    ("Pecan: Figure 2", "epochs and costs over a grid of workers are in a picture whose numbers the text lacks"),
    ("Pecan: Figure 3", "measured live, on other CPUs: [ordering](benchmarks/ordering.md)"),
    ("Pecan: Table 1", "orders of operators, and no number"),
    (
        "Pecan: Table 3",
        "accuracy after full trainings: [small models](benchmarks/ordering.md#cached-first-and-a-detector) instead",
    ),
    ("Cachew: Figures 1, 2, 6b, 6c", "pictures whose numbers the text lacks"),
    ("Cachew: Figure 7", "spread of decisions, without numbers: [ours](#cachews-threshold-figure-7)"),
    (
        "Cachew: overhead of the service",
        "30 to 50 % more CPU for gRPC, on other machines: [ours](#overhead-of-the-service), by shared memory",
    ),
    ("tf.data service: Figures 1, 2, 12", "statistics of Google's fleet"),
    (
        "tf.data service: cross-region",
        "with more workers M3 is as fast as with near data: how many, and how far away the data are, is not told",
    ),
    ("tf.data service: Figures 10 (mode A), 11", "[measured live](#measured-live-tfdata-service), on other models"),
    (
        "Quiver: Tables 1, 2, Figure 2",
        "accuracy after 90 and 30 epochs: [a small model](benchmarks/ordering.md#cached-first-and-a-detector) instead",
    ),
    ("Quiver: Figures 3 to 5", "timelines without numbers"),
    ("Quiver: Figure 7", "without numbers; [its sentences](#quiver-jobs-that-come-late-figure-7) are so here"),
    ("SiloD: Figures 1 to 3", "growth of datasets and GPUs, and a storage fabric"),
    ("SiloD: Figure 9", "curves without numbers: [ours](#silod-throughput-over-time-figure-9)"),
    ("SiloD: Figure 11", "curves without numbers, of a trace that is not public"),
    (
        "SiloD: Figures 10, 12, 13",
        "bars without numbers, of a trace that is not public: "
        "[who is best](#silod-96-and-400-gpus-figures-10-12-13) with drawn jobs",
    ),
)
"""Figures of the papers that the page does not compare with, and why."""


@dataclass(frozen=True)
class Row:
    """A row of a comparison, as the page spells it."""

    title: str
    """Of the section,"""
    item: str
    error: str
    status: str

    @property
    def distance(self) -> float:
        """The error, in units of what is near."""
        found = re.fullmatch(r"([+-][\d.,]+)\s*(%|points|)", self.error)
        if found is None:
            raise ValueError(f"{self.title}, {self.item}: {self.error!r} is no error in %, points or a number.")
        value, unit = found.groups()
        return abs(float(value.replace(",", ""))) / NEAR[unit]


def rows_of(page: str) -> Iterator[Row]:
    """Yield the rows of all comparisons: tables of six columns, of which the last one is a status."""
    title = ""
    for line in page.splitlines():
        if line.startswith("##"):
            title = line.lstrip("# ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        status = cells[-1].partition(":")[0]
        if len(cells) == 6 and status in ("predicted", *KINDS):
            yield Row(title, cells[0], cells[4], status)


def figure_cells(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a line of the table."""
    blind = [row for row in rows if row.status == "predicted"]
    counts = Counter(row.status for row in rows)
    worst = max(blind, key=lambda row: row.distance, default=None)
    return [
        name,
        f"{sum(row.distance <= 1 for row in blind)} of {len(blind)}" if blind else "none",
        f"{worst.item}: {worst.error}" if worst is not None else "",
        ", ".join(f"{counts[kind]} {words}" for kind, words in KINDS.items() if counts[kind]),
    ]


def overview(page: str) -> str:
    """Return the table of a page."""
    rows = list(rows_of(page))
    lines = [figure_cells("**all**", rows)]
    for title in dict.fromkeys(row.title for row in rows):
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        lines.append(figure_cells(f"[{title}](#{anchor})", [row for row in rows if row.title == title]))
    lines += [[figure, "not replayed", why, ""] for figure, why in NOT_REPLAYED]
    head = ["figure", "predicted blind, and near", "farthest of these, or why there are none", "not blind"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def with_overview(page: str) -> str:
    """Return the page with the table that belongs to it."""
    before, found, rest = page.partition(BEGIN)
    if not found:  # of placement, with which a page begins, nothing is written yet
        return page
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}\n\n{overview(behind)}\n\n{END}{behind}"
