"""Pictures of docs/reproduction.md: the papers' figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.reproduction.plots import HOST, INK, LOCAL, REMOTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALE = 0.45
"""Opacity of the paper's bars beside ours."""


def draw_costs(title: str, bars: Sequence[tuple[str, tuple[float, float], tuple[float, float]]]) -> Figure:
    """Draw costs of an epoch: per configuration (host, remote) of the paper and of ours, stacked."""
    figure, (ax,) = new_figure(7.4, 3.4)
    for place, (_, paper, ours) in enumerate(bars):
        for shift, (host, remote), opacity in ((-0.2, paper, PALE), (0.2, ours, 1.0)):
            ax.bar(place + shift, host, 0.36, color=HOST, alpha=opacity)
            ax.bar(place + shift, remote, 0.36, bottom=host, color=REMOTE, alpha=opacity)
            ax.annotate(
                f"{host + remote:.2f}", (place + shift, host + remote), ha="center", va="bottom", fontsize=7, color=INK
            )
    ax.set_xticks(range(len(bars)), [name.replace(" + ", "\n+ ") for name, _, _ in bars], fontsize=8)
    ax.set_ylabel("$ per epoch", fontsize=9, color=INK)
    ax.set_title(title, fontsize=10, color=INK, loc="left")
    for label, color, opacity in (
        ("trainer's host", HOST, 1.0),
        ("remote workers", REMOTE, 1.0),
        ("paper: pale", HOST, PALE),
    ):
        ax.bar(0, 0, color=color, alpha=opacity, label=label)
    ax.set_ylim(0, 1.25 * max(sum(part) for _, paper, ours in bars for part in (paper, ours)))
    ax.legend(fontsize=8, frameon=False, loc="upper right", ncols=3)
    return figure


def draw_grid(title: str, cells: Mapping[tuple[float, int], tuple[tuple[float, float], tuple[float, float]]]) -> Figure:
    """Draw Table 4: by T and X, (epoch, convergence) of the paper and of ours."""
    figure, axes = new_figure(7.4, 3.2, columns=2)
    thresholds, windows = sorted({t for t, _ in cells}), sorted({x for _, x in cells})
    for side, (ax, name) in enumerate(zip(axes, ("epoch", "to converge"), strict=True)):
        for shade, threshold in enumerate(thresholds):
            color = (LOCAL, REMOTE, INK)[shade % 3]
            paper = [cells[threshold, x][0][side] for x in windows]
            ours = [cells[threshold, x][1][side] for x in windows]
            ax.plot(windows, ours, "o-", color=color, markersize=4, label=f"T = {threshold}")
            ax.plot(windows, paper, "s:", color=color, markersize=4, alpha=PALE)
        ax.set_title(f"$ {name}", fontsize=9, color=INK, loc="left")
        ax.set_xlabel("X, batches of a window", fontsize=9, color=INK)
        ax.set_ylim(0, None)
        ax.set_xticks(windows)
    axes[0].plot([], [], "s:", color=INK, alpha=PALE, markersize=4, label="paper")
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10, color=INK, x=0.02, ha="left")
    return figure


def draw_curve(
    title: str,
    papers: Mapping[str, Mapping[int, float]],
    ours: Mapping[int, Sequence[float]],
    marks: Mapping[str, float],
    ylabel: str,
    log: bool = False,
) -> Figure:
    """Draw a quantity by number of workers: the papers' points, our means and ranges, and choices as vertical lines."""
    figure, (ax,) = new_figure(6.4, 3.6)
    counts = sorted(ours)
    means = [float(np.mean(ours[count])) for count in counts]
    ax.fill_between(
        counts, [min(ours[c]) for c in counts], [max(ours[c]) for c in counts], color=LOCAL, alpha=0.2, linewidth=0
    )
    ax.plot(counts, means, "o-", color=LOCAL, markersize=4, label="ours")
    for (label, points), marker in zip(papers.items(), ("s", "D", "^"), strict=False):
        ax.plot(list(points), list(points.values()), marker, color=REMOTE, markersize=5, fillstyle="none", label=label)
    for place, (label, count) in enumerate(marks.items()):
        ax.axvline(count, color=INK, linestyle=("--", ":", "-.")[place % 3], linewidth=0.9)
        ax.annotate(
            label,
            (count, 1 - 0.07 * place),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color=INK,
            xytext=(6, -10),
            textcoords="offset points",
        )
    ax.set_xticks(whole_numbers(counts))
    if log:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
    else:
        ax.set_ylim(0, None)
    ax.set_xlabel("remote workers", fontsize=9, color=INK)
    ax.set_ylabel(ylabel, fontsize=9, color=INK)
    ax.set_title(title, fontsize=10, color=INK, loc="left")
    ax.legend(fontsize=8, frameon=False, loc="center right")
    return figure


def draw_sizes(
    title: str,
    ours: Mapping[str, Mapping[float, float]],
    papers: Mapping[str, Mapping[float, float]],
    ylabel: str,
    xlabel: str,
) -> Figure:
    """Draw quantities by a size: our curves, and the points of a paper in the same colours."""
    figure, (ax,) = new_figure(6.4, 3.6)
    for (label, points), color in zip(ours.items(), (LOCAL, REMOTE, HOST), strict=False):
        ax.plot(list(points), list(points.values()), "o-", color=color, markersize=4, label=f"{label}, ours")
        paper = papers.get(label, {})
        ax.plot(
            list(paper), list(paper.values()), "s", color=color, markersize=7, fillstyle="none", label=f"{label}, paper"
        )
    ax.set_xlabel(xlabel, fontsize=9, color=INK)
    ax.set_ylabel(ylabel, fontsize=9, color=INK)
    ax.set_title(title, fontsize=10, color=INK, loc="left")
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def whole_numbers(counts: Sequence[int]) -> list[int]:
    """Return ticks for counts of workers: each, or every second one."""
    return list(range(counts[0], counts[-1] + 1, 1 if len(counts) <= 12 else 2))


def draw_excess(title: str, excess: Mapping[str, Sequence[float]], bar: float) -> Figure:
    """Draw, per policy, the share of workloads that end within a share of the cheapest cost."""
    figure, (ax,) = new_figure(6.4, 3.4)
    for (name, values), color in zip(excess.items(), (REMOTE, LOCAL, INK, HOST), strict=False):
        ordered = np.sort(np.maximum(np.asarray(values), 1e-3))
        ax.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=color, label=name)
    ax.axvline(bar, color=INK, linestyle=":", linewidth=0.9)
    ax.annotate(f"{bar:.0%}", (bar, 0.02), fontsize=8, color=INK, xytext=(3, 0), textcoords="offset points")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("cost of an epoch above the cheapest deployment's (0.1 %: or less)", fontsize=9, color=INK)
    ax.set_ylabel("share of workloads", fontsize=9, color=INK)
    ax.set_title(title, fontsize=10, color=INK, loc="left")
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
