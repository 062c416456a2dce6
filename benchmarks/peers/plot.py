"""A plot of all cases: medians as bars, every round as a point."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.peers.sides import SIDES

COLOURS = {"ours": "#b5651d", "peer": "#5b7c99", "bound": "#c9c9c9"}
COLUMNS = 3


def draw(facts: dict[str, Any], file: Path) -> None:
    """Draw what `table.as_json` returned; PNG, PDF or SVG by the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = facts["cases"]
    columns = min(COLUMNS, len(cases))
    rows = math.ceil(len(cases) / columns)
    most = max(len(case["summary"]) for case in cases.values())
    figure, axes = pyplot.subplots(rows, columns, figsize=(6.2 * columns, (0.9 + 0.3 * most) * rows), squeeze=False)
    for axis in axes.flat[len(cases) :]:
        axis.axis("off")
    for axis, (key, case) in zip(axes.flat, cases.items(), strict=False):
        _draw_case(axis, key, case)
    machine = facts["machine"]
    figure.suptitle(f"{machine['cpus']} CPUs, {machine['machine']}, Python {machine['python']}", fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _draw_case(axis: Any, key: str, case: dict[str, Any]) -> None:
    names = list(case["summary"])
    for place, name in enumerate(names):
        seen = case["summary"][name]
        points = [m["rate"] for m in case["measured"][name] if m["rate"]]
        value = seen["median"]
        if case["first_batch"]:
            value, points = 1 / value, [1 / point for point in points]
        axis.barh(place, value, color=COLOURS[SIDES[name].kind], height=0.7)
        axis.plot(points, [place] * len(points), "k.", markersize=3)
        text = f"{value:.2f} s" if case["first_batch"] else f"{value:,.0f}"
        axis.annotate(
            text, (max([value, *points]), place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.16)
    axis.tick_params(axis="x", labelsize=7)
    unit = "seconds, less is better" if case["first_batch"] else f"{case['unit']}/s"
    axis.set_title(f"{key} ({unit})", fontsize=10)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
