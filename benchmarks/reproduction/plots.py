"""Pictures of simulations, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pecan_ray.simulator.job import Turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REMOTE, LOCAL, HOST, INK, FAINT = "#c2571a", "#2f6f9f", "#5b6770", "#20262b", "#c9d0d6"
SUFFIXES = (".png", ".svg")


def new_figure(width: float = 7.0, height: float = 3.6, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    # Otherwise names inside of an SVG are drawn at random.
    matplotlib.rcParams["svg.hashsalt"] = "pecan_ray"
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(FAINT)
        ax.tick_params(colors=INK, labelsize=8, which="both")
        ax.grid(axis="y", color=FAINT, linewidth=0.5)
        ax.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure under a name without suffix, as PNG and as SVG; the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    for file in files:
        figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
    return files


def draw_path(turns: Sequence[Turn], title: str, by_batches: bool = True) -> Figure:
    """Draw workers and batch time over the batches (or seconds) of a job."""
    figure, (ax,) = new_figure(7.4, 3.6)
    when = [float(turn.batches if by_batches else turn.seconds) for turn in turns]
    ax.step(when, [turn.decision.target.remote for turn in turns], where="post", color=REMOTE, label="remote workers")
    ax.step(when, [turn.decision.target.local for turn in turns], where="post", color=LOCAL, label="local workers")
    ax.set_xlabel("batches" if by_batches else "seconds", fontsize=9, color=INK)
    ax.set_ylabel("workers asked for", fontsize=9, color=INK)
    ax.set_title(title, fontsize=10, color=INK, loc="left")
    times = ax.twinx()
    times.plot(when, [1000 * turn.window.batch_time for turn in turns], color=HOST, linewidth=0.9, label="batch time")
    times.set_yscale("log")
    times.set_ylabel("ms per batch", fontsize=9, color=HOST)
    times.tick_params(colors=HOST, labelsize=8, which="both")
    times.yaxis.set_major_formatter("{x:g}")
    times.yaxis.set_minor_formatter("{x:g}")
    times.spines[["top", "left"]].set_visible(False)
    times.spines[["right", "bottom"]].set_color(FAINT)
    lines = [*ax.get_lines(), *times.get_lines()]
    ax.legend(lines, [str(line.get_label()) for line in lines], fontsize=8, frameon=False, loc="upper center", ncols=3)
    ax.set_ylim(0, 1.25 * max(1, *ax.get_ylim()))
    return figure
