"""Plots as SVG, with what they show as text beside them.

Lines are drawn in a square that is stretched to the room there is; all text is HTML around it, so that it keeps its
size in narrow windows.  Lines differ by dashes as well as by colour, and the numbers are in a table below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pecan_ray.observe.dashboard.amounts import duration
from pecan_ray.observe.dashboard.html_builder import Content, SafeHtml, element, table

# Units of a plot's own grid; the browser stretches it to the page.
WIDE, HIGH = 1000, 300
MOST_POINTS = 300
"""Of a line: more cannot be seen."""
MOST_ROWS = 20
"""Of the table of numbers beside a plot, which is for those who cannot see the plot."""
MOST_MARKS = 60
"""Newest ones; a table tells them all."""

Spelled = Callable[[float], str]


@dataclass(frozen=True)
class PlotSeries:
    """One line of a plot."""

    label: str
    points: tuple[tuple[float, float], ...]
    """(seconds, value), in their order."""
    steps: bool = False
    """A value holds until the next one."""


@dataclass(frozen=True)
class Mark:
    """A moment that is marked by a vertical line and a number."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Plot:
    """What is plotted."""

    key: str
    """Names it in the page."""
    title: str
    plot_series: tuple[PlotSeries, ...]
    to_str: Spelled
    """Spells a value out."""
    points: tuple[Mark, ...] = ()
    until: float = 0.0
    """The end of the time that is shown, at least."""
    most: float | None = None
    """The upper end of the scale; None: as far as the values go."""


def figure(plot: Plot) -> SafeHtml:
    """Return a plot with its title, a summary in words, and its numbers in a table."""
    plot_series = [curve for curve in plot.plot_series if curve.points]
    title = element("h3", plot.title, id=f"{plot.key}-title")
    if not plot_series:
        return element("figure", title, element("p", "Nothing was measured yet.", class_="nothing"), class_="plot")
    first = min(0.0, *(curve.points[0][0] for curve in plot_series))
    last = max(plot.until, *(curve.points[-1][0] for curve in plot_series))
    most = plot.most or next_round_number(max(value for curve in plot_series for _, value in curve.points))
    message = summary(plot, plot_series)
    return element(
        "figure",
        title,
        legend(plot_series) if len(plot_series) > 1 else None,
        element(
            "div",
            element("div", [element("span", plot.to_str(most * part)) for part in (1, 0.5, 0)], class_="values"),
            draw_lines(plot, plot_series, (first, last, most)),
            element(
                "div",
                [element("span", duration(first + (last - first) * part)) for part in (0, 0.5, 1)],
                class_="times",
            ),
            class_="canvas",
            aria_hidden="true",
        ),
        element("figcaption", message, id=f"{plot.key}-said"),
        numbers(plot, plot_series),
        class_="plot",
    )


def legend(plot_series: Sequence[PlotSeries]) -> SafeHtml:
    """Name the lines beside what they look like."""
    return element(
        "p",
        [
            element(
                "span",
                element(
                    "svg",
                    element("line", x1=0, y1=5, x2=28, y2=5, class_=f"curve curve-{number}"),
                    viewBox="0 0 28 10",
                    class_="key",
                    aria_hidden="true",
                ),
                f" {curve.label} ",
            )
            for number, curve in enumerate(plot_series)
        ],
        class_="legend",
    )


def draw_lines(plot: Plot, plot_series: Sequence[PlotSeries], scale: tuple[float, float, float]) -> SafeHtml:
    """Return the lines themselves."""
    first, last, most = scale
    # All points may be of one moment, and nothing is divided by 0.
    span = max(last - first, 1e-9)

    def place(seconds: float, value: float) -> tuple[float, float]:
        return WIDE * (seconds - first) / span, HIGH * (1 - min(max(value / most, 0.0), 1.0))

    grid = [element("line", x1=0, y1=y, x2=WIDE, y2=y, class_="grid") for y in (0, HIGH / 2, HIGH)]
    marks = [
        element("line", x1=f"{x:.1f}", y1=0, x2=f"{x:.1f}", y2=HIGH, class_="mark")
        for x in (place(mark.seconds, 0)[0] for mark in plot.points[-MOST_MARKS:])
    ]
    lines = []
    for number, curve in enumerate(plot_series):
        points = [place(*point) for point in points_to_draw(curve, last)]
        told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(element("polyline", points=told, class_=f"curve curve-{number}"))
        # A line of one point is drawn as nothing.
        if len(points) == 1:
            x, y = points[0]
            lines.append(element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4, class_=f"dot curve-{number}"))
    return element(
        "svg",
        [*grid, *marks, *lines],
        viewBox=f"0 0 {WIDE} {HIGH}",
        # Width and height are stretched apart, as wide as the page is.
        preserveAspectRatio="none",
        class_="lines",
        data_plot=plot.key,
        focusable="false",
    )


def points_to_draw(curve: PlotSeries, last: float) -> list[tuple[float, float]]:
    """Return the points to draw: not too many, and with corners where a value holds until the next one."""
    points = sampled_points(curve.points)
    if not curve.steps:
        return points
    corners: list[tuple[float, float]] = []
    for seconds, value in points:
        if corners:
            corners.append((seconds, corners[-1][1]))
        corners.append((seconds, value))
    return [*corners, (max(last, corners[-1][0]), corners[-1][1])]


def sampled_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most so many points, the lowest and the highest of each stretch that is left out among them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    # Two of each stretch, and the first and the last of all.
    stride = math.ceil(len(points) / (MOST_POINTS // 2 - 1))
    kept: dict[int, None] = {0: None}
    for begin in range(0, len(points), stride):
        here = range(begin, min(begin + stride, len(points)))
        low, high = min(here, key=lambda i: points[i][1]), max(here, key=lambda i: points[i][1])
        kept.update(dict.fromkeys(sorted((low, high))))
    kept[len(points) - 1] = None
    return [points[number] for number in sorted(kept)]


def summary(plot: Plot, plot_series: Sequence[PlotSeries]) -> str:
    """Say in words what a plot shows."""
    messages = []
    for curve in plot_series:
        values = [value for _, value in curve.points]
        name = f"{curve.label}: " if len(plot_series) > 1 else ""
        messages.append(
            f"{name}{plot.to_str(values[-1])} at the end; between {plot.to_str(min(values))} and "
            f"{plot.to_str(max(values))}."
        )
    if plot.points:
        shown = len(plot.points[-MOST_MARKS:])
        messages.append(
            f"Vertical lines: {shown} decision{'s' * (shown != 1)} to run other workers; a table below says why."
        )
    return " ".join(messages)


def numbers(plot: Plot, plot_series: Sequence[PlotSeries]) -> SafeHtml:
    """Return some of the numbers as a table, folded."""
    times = sorted({seconds for curve in plot_series for seconds, _ in curve.points})
    chosen = (
        times if len(times) <= MOST_ROWS else [times[i * (len(times) - 1) // (MOST_ROWS - 1)] for i in range(MOST_ROWS)]
    )
    rows: list[list[Content]] = [
        [
            duration(at),
            *(plot.to_str(value) if (value := value_at(curve, at)) is not None else "-" for curve in plot_series),
        ]
        for at in chosen
    ]
    columns = frozenset(range(1, len(plot_series) + 1))
    return element(
        "details",
        element("summary", f"Numbers of “{plot.title}”"),
        table(
            f"{plot.title}: {len(chosen)} of {len(times)} moments",
            ["after", *(curve.label for curve in plot_series)],
            rows,
            numbers=columns,
        ),
        id=f"{plot.key}-numbers",
    )


def value_at(curve: PlotSeries, at: float) -> float | None:
    """Return the newest value of a line at a time."""
    found = None
    for seconds, value in curve.points:
        if seconds > at:
            break
        found = value
    return found


def next_round_number(value: float) -> float:
    """Return the next round number: 1, 2 or 5 with noughts."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # A value that rounding has put just above a round number has that one.
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * 1.000001)
