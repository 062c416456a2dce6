"""Runs what docs/reproduction.md reports of caches, and writes that part of the page and its picture.

    python -m benchmarks.reproduction.reproduce_caches --out docs/ [--seeds 2]

The rest of the page stays as it is: of placement it is [reproduce](reproduce.py)'s, and what was measured live, behind
the caches, was written by hand.  Seeds are fixed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.reproduction import cachew_caching, pictures, plots, quiver_figures, silod_figures
from benchmarks.reproduction.overview import with_overview
from benchmarks.reproduction.reported_caches import QUIVER_FIGURE6
from benchmarks.reproduction.tables import Section, misses

PAGE, FIGURES, PICTURE = "reproduction.md", "reproduction", "quiver-figure6"
TITLE = "## Caches: SiloD, Quiver, Cachew"
MEASURED = "## Measured live: tf.data service"
"""The last part of the page."""
HEAD = """{title}

What the papers report of caches and of the pipe to remote storage, and what `pecan_ray.cache` does in a simulation of
their clusters ([shared_cache](../benchmarks/reproduction/shared_cache.py): jobs read at constant speeds between events,
and the policies of `allocate`, or of the systems that they are compared with, decide at each event). Made by `python -m
benchmarks.reproduction.reproduce_caches --out docs/`. *Fitted* is what a parameter was set by.

Farther off than 5 % (times in minutes, sizes and bandwidths) or 15 % (all else):

{misses}
"""

WITHOUT_LARGE = """SiloD's clusters of 96 and 400 GPUs (Figures 10, 12, 13) are not on this page: they were left out of
this run (`--seeds 0`). That SiloD has the shortest completion times under FIFO and SJF, and the highest fairness under
Gavel, is tested with 24 GPUs, as a mean over three draws of 40 jobs; it is not so in each draw."""


def run_sections(seeds: Sequence[int], say: Callable[[str], None]) -> tuple[list[Section], quiver_figures.QuiverRuns]:
    """Run all experiments; takes minutes."""
    say("Quiver")
    quiver = quiver_figures.run_quiver()
    silod = silod_figures.run_silod(seeds, say)
    sections = [
        silod_figures.table6(silod),
        silod_figures.cache_table(),
        silod_figures.figure4(),
        silod_figures.figure9(silod),
        *([silod_figures.orderings(silod)] if seeds else []),
        quiver_figures.table3(quiver),
        quiver_figures.figure6(quiver),
        quiver_figures.figure7(quiver_figures.joined()),
        cachew_caching.figure8(),
        cachew_caching.figure9(),
    ]
    return sections, quiver


def write_part(sections: Sequence[Section]) -> str:
    """Return this part of the page."""
    head = HEAD.format(title=TITLE, misses=misses(sections) or "nothing.")
    if not any(section.title == silod_figures.LARGE for section in sections):
        head += f"\n{WITHOUT_LARGE}\n"
    parts = [head]
    for section in sections:
        parts += [f"### {section.title}", section.text, *section.blocks]
        parts += [
            f"![{caption}]({FIGURES}/{name}.png)\n\n[as SVG]({FIGURES}/{name}.svg)" for name, caption in section.plots
        ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def split_page(page: str) -> tuple[str, str]:
    """Return the part of placement, and that of caches and what follows (nothing, if there is none yet)."""
    return _cut(page, TITLE)


def _cut(page: str, title: str) -> tuple[str, str]:
    """Return what stands before a title, and it with what follows."""
    before, found, behind = page.partition(f"\n{title}\n")
    return before, f"{title}\n{behind}" if found else ""


def with_part(page: str, part: str) -> str:
    """Return the page with this part in the place of the one that it has."""
    placement, caches = split_page(page)
    _, measured = _cut(caches, MEASURED)
    return f"{placement.rstrip()}\n\n{part}".lstrip() + (f"\n{measured}" if measured else "")


def draw(runs: quiver_figures.QuiverRuns, folder: Path) -> None:
    """Write the picture of Quiver's Figure 6."""
    points: dict[str, dict[float, float]] = {}
    for (system, size), value in QUIVER_FIGURE6.items():
        points.setdefault(system, {})[size] = value
    figure = pictures.draw_sizes(
        "Three datasets, four jobs on each", {"Quiver": runs.quiver, "LRU": runs.lru}, points, "speed-up", "GB of cache"
    )
    plots.save(figure, folder / PICTURE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction.reproduce_caches", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of reproduction.md")
    parser.add_argument("--seeds", type=int, default=2, help="runs of large clusters; 0: leave them out")
    options = parser.parse_args(arguments)

    def say(what: str) -> None:
        sys.stderr.write(f"{what}\n")
        sys.stderr.flush()

    sections, quiver = run_sections(range(options.seeds), say)
    draw(quiver, options.out / FIGURES)
    page = options.out / PAGE
    page.write_text(with_overview(with_part(page.read_text() if page.exists() else "", write_part(sections))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
