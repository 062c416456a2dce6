"""Runs what docs/reproduction.md reports of placement, and writes that page and its pictures.

The part of caches is [reproduce_caches](reproduce_caches.py)'s, and stays as it is.

    python -m benchmarks.reproduction.reproduce --out docs/ [--seeds 20] [--workloads 200]

Seeds are fixed: the same version writes the same page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.reproduction import (
    authors_logs,
    cachew_figures,
    pecan_figures,
    pecan_text,
    pictures,
    plots,
    tfdata_figures,
)
from benchmarks.reproduction.judgement import judgement, run_judgement
from benchmarks.reproduction.overview import BEGIN, END, with_overview
from benchmarks.reproduction.policy_evaluation import NEAR, PolicyEvaluation
from benchmarks.reproduction.reported import CACHEW_6A, CONFIGURATIONS, PECAN, TABLE4
from benchmarks.reproduction.reproduce_caches import FIGURES, PAGE, split_page
from benchmarks.reproduction.tables import Section, misses
from pecan_ray.simulator.outcome import Outcome, mean
from pecan_ray.simulator.text_tables import table
from pecan_ray.simulator.workload import load, names, parameters, units

HEAD = """# Reproduction

What figures of the papers come out as. *Predicted blind* are numbers that could have failed: nothing was fitted to
them, no variant and no unit was chosen by them, and no other row fixes them. *Near* are those within one worker, 10 %,
or five percentage points of the paper's.

{begin}{end}

What the papers report of scaling and placement, and what our policies do in the simulator, is made by
`python -m benchmarks.reproduction.reproduce --out docs/`; seeds are fixed. What they report of caches stands
[below](#caches-silod-quiver-cachew), and beside tf.data service's figures [what was measured
live](#measured-live-tfdata-service).

A workload is one parameter file ([the list](#parameters)). Each says of every parameter whether a paper gives it, to
which figure it was fitted, or that it was assumed. The last column says of each row what it is:

- *fitted*: a parameter was set by it;
- *chosen*: a variant of the released policy, or a unit that a paper leaves open, was chosen because it comes nearest
  to this and other rows;
- *follows*: other rows fix it, or it could hardly have come out otherwise, for the reason that it gives. A cost follows
  from workers and time, a time where workers suffice is the trainer's own, a log's batch times between one worker and
  enough of them lie on a line, and means hold fitted rows;
- *predicted*: the rest.

"ours" is the mean over {seeds} seeds, "runs" the range. Errors are relative, for counts and percentages absolute.

Farther off than two workers, ten percentage points, or 15 %:

{misses}
"""


@dataclass(frozen=True)
class Everything:
    """All runs."""

    figure6: Mapping[tuple[str, str], Sequence[Outcome]]
    others: Mapping[tuple[str, str, bool], Sequence[Outcome]]
    table4: Mapping[tuple[float, int], Sequence[Outcome]]
    printed: Mapping[tuple[float, int], Sequence[Outcome]]
    figure7: Sequence[Outcome]
    cachew: cachew_figures.CachewRuns
    traces: Mapping[str, Sequence[Outcome]]
    tfdata: tfdata_figures.TfDataRuns
    verdicts: Mapping[str, Sequence[PolicyEvaluation]]


def run_everything(seeds: Sequence[int], workloads: int, say: Callable[[str], None]) -> Everything:
    """Run all experiments; takes minutes."""
    say("Pecan, Figures 5 and 6")
    figure6 = pecan_figures.run_figure6(seeds)
    say("Pecan, the other modes")
    others = pecan_figures.run_others(seeds)
    say("Pecan, Table 4")
    table4, printed = pecan_figures.run_table4(seeds), pecan_figures.run_table4(seeds, "pecan")
    say("Pecan, Figure 7")
    figure7 = pecan_figures.run_figure7(seeds)
    say("Cachew")
    cachew = cachew_figures.run_cachew(seeds)
    say("the authors' logs")
    traces = {name: authors_logs.run_trace(authors_logs.load_trace(name), seeds) for name in authors_logs.TRACES}
    say("tf.data service")
    tfdata = tfdata_figures.run_tfdata(seeds[: len(tfdata_figures.SEEDS)])
    say("random workloads")
    verdicts = run_judgement(workloads)
    return Everything(figure6, others, table4, printed, figure7, cachew, traces, tfdata, verdicts)


def sections_of(runs: Everything) -> list[Section]:
    """Compare everything."""
    return [
        *pecan_figures.figure6(runs.figure6),
        pecan_figures.figure1(runs.figure6),
        pecan_figures.reductions(runs.figure6),
        pecan_text.cost_reductions(runs.figure6),
        pecan_text.convergence(runs.figure6),
        pecan_figures.others(runs.others, runs.figure6),
        pecan_figures.table4(runs.table4, runs.printed),
        pecan_figures.figure7(runs.figure7),
        cachew_figures.figure6a(runs.cachew),
        cachew_figures.figure7(runs.cachew),
        cachew_figures.figure11(runs.cachew),
        tfdata_figures.scale_out(runs.tfdata),
        tfdata_figures.sharing(runs.tfdata),
        *(authors_logs.section(authors_logs.load_trace(name), found) for name, found in runs.traces.items()),
        judgement(runs.verdicts, runs.others),
    ]


def write_page(sections: Sequence[Section], seeds: int) -> str:
    """Return the page."""
    parts = [HEAD.format(begin=BEGIN, end=END, seeds=seeds, misses=misses(sections))]
    for section in sections:
        parts += [f"## {section.title}", *([section.text] if section.text else []), *section.blocks]
        parts += [
            f"![{caption}]({FIGURES}/{name}.png)\n\n[as SVG]({FIGURES}/{name}.svg)" for name, caption in section.plots
        ]
    parts += ["## Parameters", *(parameter_block(name) for name in names())]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def parameter_block(name: str) -> str:
    """Return the parameters of a workload, with where they come from."""
    workload, unit = load(name), units()
    rows = [
        [path, f"{value:g}", unit[path], workload.source_refs.get(path, "")]
        for path, value in parameters(workload)
        if not workload.source_refs.get(path, "").startswith("default")
    ]
    prices = f"${workload.prices.accelerator_host} and ${workload.prices.remote_worker} per hour"
    head = f"**{name}**: {workload.title}. Host and remote worker {prices} ({workload.source_refs.get('prices', '')})."
    return f"{head}\n\n{table(['parameter', 'value', 'unit', 'origin'], rows)}"


def draw_everything(runs: Everything, folder: Path) -> None:
    """Write all pictures."""
    for name in dict.fromkeys(workload for workload, _ in runs.figure6):
        plots.save(pictures.draw_costs(load(name).title, cost_bars(name, runs.figure6)), folder / f"figure6-{name}")
    cells = {
        cell: (
            paper,
            (
                mean(runs.table4[cell], lambda run: run.epoch_cost),
                mean(runs.table4[cell], lambda run: run.convergence_cost),
            ),
        )
        for cell, paper in TABLE4.items()
    }
    plots.save(pictures.draw_grid("ResNet50 v2-8 over T and X", cells), folder / "table4")
    nearest = pecan_figures.nearest(runs.figure7)
    plots.save(plots.draw_path(nearest.timeline, "ResNet50 v2-8, both policies"), folder / "figure7")
    draw_cachew(runs.cachew, folder)
    for name, found in runs.traces.items():
        draw_trace(name, found, folder)
    excess = {
        f"{mode}, {family}": [
            comparison_result.excess for comparison_result in verdicts if comparison_result.mode == mode
        ]
        for family, verdicts in runs.verdicts.items()
        for mode in ("auto", "pecan")
        if family == "plain"
    }
    plots.save(pictures.draw_excess("Random workloads", excess, NEAR), folder / "random")


def cost_bars(
    name: str, runs: Mapping[tuple[str, str], Sequence[Outcome]]
) -> list[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Return host's and remote workers' cost of an epoch, the paper's and ours, of the bars that compare well."""
    workload, bars = load(name), []
    for configuration in CONFIGURATIONS[:4]:
        paper, found = PECAN[name][configuration], runs[name, configuration]
        host = workload.epoch_cost(mean(found, lambda run: run.batch_s), 0)
        paper_host = paper.seconds / 3600 * workload.prices.accelerator_host
        total = fmean(run.epoch_cost for run in found)
        bars.append((configuration, (paper_host, max(0.0, paper.cost - paper_host)), (host, total - host)))
    return bars


def draw_cachew(runs: cachew_figures.CachewRuns, folder: Path) -> None:
    """Write the picture of Cachew's Figure 6a."""
    batches = load("cachew-resnet50").batches_per_epoch
    ours = {count: [batches * run.batch_s for run in found] for count, found in runs.sweep.items()}
    marks = {
        "HPA": mean(runs.hpa, lambda run: float(run.final.remote)),
        "Cachew": mean(runs.cachew, lambda run: float(run.final.remote)),
    }
    papers = {f"artifact, result {key}": {n: float(s) for n, s in points.items()} for key, points in CACHEW_6A.items()}
    figure = pictures.draw_curve("ResNet50 on four V100", papers, ours, marks, "seconds per epoch")
    plots.save(figure, folder / "cachew-6a")


def draw_trace(name: str, runs: Sequence[Outcome], folder: Path) -> None:
    """Write the picture of a published log: batch time by remote workers, without local ones."""
    trace = authors_logs.load_trace(name)
    paper = {ran.remote: 1000 * batch_s for ran, batch_s in trace.windows if not ran.local and batch_s > 0}
    found = authors_logs.by_deployment(runs)
    ours = {
        ran.remote: [1000 * time for time in times]
        for ran, times in found.items()
        if not ran.local and ran.remote in paper
    }
    figure = pictures.draw_curve(name, {"authors' log": paper}, ours, {}, "ms per batch", log=True)
    plots.save(figure, folder / f"trace-{name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction.reproduce", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of reproduction.md")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each experiment")
    parser.add_argument("--workloads", type=int, default=200, help="random workloads of each family")
    options = parser.parse_args(arguments)

    def say(what: str) -> None:
        sys.stderr.write(f"{what}\n")
        sys.stderr.flush()

    runs = run_everything(range(options.seeds), options.workloads, say)
    sections = sections_of(runs)
    options.out.mkdir(parents=True, exist_ok=True)
    draw_everything(runs, options.out / FIGURES)
    page = options.out / PAGE
    _, caches = split_page(page.read_text() if page.exists() else "")
    page.write_text(with_overview(write_page(sections, options.seeds) + (f"\n{caches}" if caches else "")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
