"""What Pecan says of its figures in words: savings against FastFlow and Cachew, means, and how soon it converges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from benchmarks.reproduction.reported import (
    AVERAGES,
    EPOCHS_TO_CONVERGE,
    FASTER_THAN_CACHEW,
    FASTER_THAN_COLLOCATED,
    FASTFLOW_SAVED,
    FEWER_WORKERS,
    SOONER_WITH_AUTOORDER,
    WORKER_COST_SAVED,
    standing_of_ratio,
)
from benchmarks.reproduction.tables import Comparison, Section, comparison_table
from pecan_ray.simulator.client import X
from pecan_ray.simulator.outcome import Outcome, mean
from pecan_ray.simulator.text_tables import table
from pecan_ray.simulator.workload import load

Bars = Mapping[tuple[str, str], Sequence[Outcome]]
Quantity = Callable[[str, Outcome], float]
BOTH = "AutoPlacement + AutoOrder"
UNCHANGED = "retinanet"
"""Its pipeline costs the same in AutoOrder's order (Pecan §6.3)."""


def epoch_cost(_name: str, run: Outcome) -> float:
    """Return $ of an epoch."""
    return run.epoch_cost


def worker_cost(name: str, run: Outcome) -> float:
    """Return what remote workers cost in an epoch."""
    return run.epoch_cost - load(name).epoch_cost(run.batch_s, 0)


def batch_seconds(_name: str, run: Outcome) -> float:
    """Return the time of a batch."""
    return run.batch_s


def remote_workers(_name: str, run: Outcome) -> float:
    """Return how many remote workers a run ended with."""
    return float(run.final.remote)


def seconds_to_converge(_name: str, run: Outcome) -> float:
    """Return when the policy had converged for the first time."""
    return (run.converged or run.end).seconds


def average(runs: Bars, name: str, configuration: str, quantity: Quantity) -> float:
    """Return the mean of a quantity over the runs of one bar."""
    return mean(runs[name, configuration], lambda run: quantity(name, run))


def saved(runs: Bars, name: str, ours: str, theirs: str, quantity: Quantity) -> float:
    """Return % that a configuration saves against another one; 0 where there is nothing to save."""
    base = average(runs, name, theirs, quantity)
    return 100 * (1 - average(runs, name, ours, quantity) / base) if base else 0.0


def cost_reductions(runs: Bars) -> Section:
    """Compare what the text says is saved, workload by workload and on average."""
    names = {name for name, _ in runs}
    rows = []

    def add(item: str, name: str, paper: float, ours: str, theirs: str, quantity: Quantity, fitted: str) -> None:
        if name in names:
            found, value = standing_of_ratio(name, fitted, ours, theirs), saved(runs, name, ours, theirs, quantity)
            rows.append(Comparison(f"{item}, {name}", paper, value, found.status, "%", why=found.why))

    for name, paper in FASTFLOW_SAVED.items():
        add("cost against FastFlow, AutoPlacement", name, paper, "AutoPlacement", "FastFlow", epoch_cost, "cost")
    for name, paper in WORKER_COST_SAVED.items():
        add("cost of remote workers, AutoOrder", name, paper, "Cachew + AutoOrder", "Cachew", worker_cost, "remote")
    for (name, ours), paper in FEWER_WORKERS.items():
        add(f"remote workers, {ours}", name, paper, ours, "Cachew", remote_workers, "remote")
    for (name, ours), paper in FASTER_THAN_CACHEW.items():
        add(f"time, {ours}", name, paper, ours, "Cachew", batch_seconds, "seconds")
    for name, paper in FASTER_THAN_COLLOCATED.items():
        add("time against collocated, both", name, paper, BOTH, "collocated", batch_seconds, "seconds")
    rows += mean_values(runs)
    text = (
        "What the text of §6.2 to §6.4 says beside Table 2 and the figures. Savings against FastFlow are as far off as "
        "FastFlow itself is: the paper runs its code, of which only the number of workers is known here, and in the "
        "simulator two local and two remote workers do more than the paper's FastFlow did. The means are over the five "
        "workloads, some rows of which are fitted; preprocessing cost is what remote workers cost."
    )
    return Section("What the text says is saved", text, (comparison_table(rows, "saved"),), (), tuple(rows))


def mean_values(runs: Bars) -> list[Comparison]:
    """Compare the means over all workloads."""
    names = list(dict.fromkeys(name for name, _ in runs))

    def over_all(ours: str, theirs: str, quantity: Quantity) -> float:
        return fmean(saved(runs, name, ours, theirs, quantity) for name in names)

    found = (
        over_all("AutoPlacement", "Cachew", worker_cost),
        over_all("AutoPlacement", "Cachew", epoch_cost),
        over_all(BOTH, "Cachew", worker_cost),
        over_all(BOTH, "collocated", epoch_cost),
        100 - over_all(BOTH, "Cachew", remote_workers),
    )
    return [
        Comparison(f"on average: {item}", paper, ours, "follows", "%")
        for (item, paper), ours in zip(AVERAGES.items(), found, strict=True)
    ]


def convergence(runs: Bars) -> Section:
    """Compare how soon input stalls are gone with AutoOrder, and how many epochs AutoPlacement takes to converge."""
    names = list(dict.fromkeys(name for name, _ in runs))
    rows = [
        Comparison(
            f"time until stalls are gone, {name}",
            paper,
            saved(runs, name, "Cachew + AutoOrder", "Cachew", seconds_to_converge),
            "follows" if name == UNCHANGED else "predicted",
            "%",
            why="AutoOrder changes nothing there" if name == UNCHANGED else "",
        )
        for name, paper in SOONER_WITH_AUTOORDER.items()
        if name in names
    ]
    lines = []
    for name in names:
        epochs = load(name).batches_per_epoch
        for configuration in ("AutoPlacement", BOTH):
            taken = [(run.converged or run.end).batches / epochs for run in runs[name, configuration]]
            within = sum(count <= EPOCHS_TO_CONVERGE for count in taken)
            said = "" if name == "asr" else f"within {EPOCHS_TO_CONVERGE:g}"
            spread = f"{min(taken):.1f} to {max(taken):.1f}"
            cells = [f"{median(taken):.1f}", spread, f"{within} of {len(taken)}"]
            lines.append([f"{name}, {configuration}", said, *cells])
    text = (
        "§6.4: AutoOrder lets Cachew's autoscaler be done sooner, since fewer workers do; AutoPlacement converges "
        f"within {EPOCHS_TO_CONVERGE:g} epochs on ResNet50, SimCLR and RetinaNet (of ASRTransformer the text says "
        f"nothing). An epoch of RetinaNet has {load('retinanet').batches_per_epoch:,} batches, a window {X}."
    )
    head = ["epochs to converge", "paper", "ours, median", "runs", f"runs within {EPOCHS_TO_CONVERGE:g}"]
    blocks = (comparison_table(rows, "less time with AutoOrder"), table(head, lines))
    return Section("How soon it converges", text, blocks, (), tuple(rows))
