"""How time and memory grow with batches, elements, operators, workers, files and epochs, and with a controller's load.

    python benchmarks/scaling.py [--only AXIS ...] [--rounds 3] [--json FILE] [--plots FOLDER]

Each axis is doubled (or more) several times while everything else stays.  The exponent is the slope of total time over
the axis in logarithms, over the upper half of its points: 1 is linear, less is better.  Times are medians; memory is
the proportional set size (PSS) of trainer, controller and workers at the end of a run, without the batches in flight.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pecan_ray as pecan
from benchmarks.controller_load import controller_load

MIB = 1 << 20


@dataclass(frozen=True)
class ScalingPoint:
    """One measurement."""

    x: float
    seconds: float
    """Of the whole run, from its first batch on; or what the axis says."""
    memory_mib: float = 0.0
    first_batch_s: float = 0.0


@dataclass(frozen=True)
class Axis:
    """Something that grows."""

    name: str
    unit: str
    measures: str
    """What the seconds are."""
    points: Sequence[float]
    measure: Callable[[float], ScalingPoint]


def run(pipe: pecan.PecanPipeline, x: float, epochs: int = 1, **options: Any) -> ScalingPoint:
    """Run a pipeline and measure it from its first batch on; starting Ray's processes is another matter."""
    workers = options.pop("workers", pecan.Workers(local=1))
    asked = time.perf_counter()
    began = 0.0
    with pipe.iter_batches(epochs=epochs, workers=workers, **options) as batches:
        for _ in batches:
            began = began or time.perf_counter()
        ended = time.perf_counter()
        memory = memory_mib()
    return ScalingPoint(x, ended - began, memory, began - asked)


def memory_mib() -> float:
    """Return the PSS of this process and of our actors."""
    total = psutil.Process().memory_full_info().pss
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if command.startswith(("ray::PreprocessingWorker", "ray::AutoPlacementController", "ray::WorkerOwner")):
            with suppress(psutil.NoSuchProcess):  # a worker of the run before is still ending
                total += process.memory_full_info().pss
    return float(total) / MIB


def pipeline(source: Any, **config: Any) -> pecan.PecanPipeline:
    """Return an empty pipeline whose order nobody samples."""
    return pecan.PecanPipeline(source, name="scaling", config=pecan.Config(reorder="off", progress=False, **config))


def numbers(count: int) -> Any:
    """Return a source of numbers."""
    return pecan.sources.Arrays(i=np.arange(count))


@dataclass(frozen=True)
class Fill:
    """Make an element of so many bytes."""

    nbytes: int

    def __call__(self, i: Any) -> Any:
        return np.full(self.nbytes, int(i) % 251, np.uint8)


@dataclass(frozen=True)
class Wait:
    """Wait so many seconds instead of computing, so that few CPUs stand for many."""

    seconds: float

    def __call__(self, i: Any) -> Any:
        time.sleep(self.seconds)
        return i


def same(i: Any) -> Any:
    """Do nothing."""
    return i


def by_batch_size(size: float) -> ScalingPoint:
    """200 batches of 1 KiB elements."""
    return run(pipeline(numbers(200 * int(size))).map(Fill(1024), on="i").batch(int(size)), size)


def by_element_size(nbytes: float) -> ScalingPoint:
    """200 batches of 4 elements."""
    return run(pipeline(numbers(800)).map(Fill(int(nbytes)), on="i").batch(4), nbytes)


def by_operators(count: float) -> ScalingPoint:
    """20,000 numbers through functions that do nothing."""
    pipe = pipeline(numbers(20_000))
    for _ in range(int(count)):
        pipe = pipe.map(same, on="i")
    return run(pipe.batch(100), count)


def by_workers(count: float) -> ScalingPoint:
    """250 elements for each worker, each a wait of 20 ms: the time stays as it is where workers do not disturb."""
    pipe = pipeline(numbers(250 * int(count)), threads_per_worker=1, cpus_per_worker=0.01)
    return run(pipe.map(Wait(0.02), on="i").batch(10), count, workers=pecan.Workers(local=int(count)))


def by_files(count: float) -> ScalingPoint:
    """Text files of one line."""
    with text_files(int(count)) as pattern:
        return run(pipeline(pecan.sources.TextLines(pattern)).batch(10), count)


@contextmanager
def text_files(count: int) -> Iterator[str]:
    """Write so many files and yield their pattern."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            (Path(folder) / f"{number:06d}.txt").write_text(f"line {number}\n")
        yield f"{folder}/*.txt"


def by_epochs(count: float) -> ScalingPoint:
    """Epochs of 2,000 numbers."""
    return run(pipeline(numbers(2000)).map(same, on="i").batch(20), count, epochs=int(count))


def by_members(count: float) -> ScalingPoint:
    """Seconds of one core that a controller needs for a minute of workers and clients that report every 5 s."""
    return ScalingPoint(count, 60.0 * controller_load(int(count)).share)


AXES = (
    Axis("batch size", "elements of 1 KiB", "200 batches", (1, 4, 16, 64, 256, 1024), by_batch_size),
    Axis("element size", "bytes", "200 batches of 4", [1 << n for n in range(10, 23, 2)], by_element_size),
    Axis("operators", "maps that do nothing", "20,000 elements", (1, 2, 4, 8, 16, 32, 64), by_operators),
    Axis("workers", "local workers", "250 waits of 20 ms each", (1, 2, 4, 8, 16), by_workers),
    Axis("files", "files of one line", "one pass", (10, 100, 1000, 10_000, 100_000), by_files),
    Axis("epochs", "epochs of 2,000 elements", "all of them", (1, 2, 4, 8, 16, 32, 64), by_epochs),
    Axis("members", "workers, and as many trainers", "CPU of a minute", (10, 30, 100, 300, 1000), by_members),
)


def measure(axis: Axis, rounds: int) -> list[ScalingPoint]:
    """Measure an axis, all its points in turn, and return the medians."""
    found: dict[float, list[ScalingPoint]] = {x: [] for x in axis.points}
    for number in range(rounds):
        for x in axis.points:
            found[x].append(axis.measure(x))
            point = found[x][-1]
            print(
                f"round {number + 1}, {axis.name} {x:g}: {point.seconds:.3f} s, {point.memory_mib:.0f} MiB, "
                f"first batch after {point.first_batch_s:.1f} s",
                flush=True,
            )
    return [median(points) for points in found.values()]


def median(points: Sequence[ScalingPoint]) -> ScalingPoint:
    """Return the medians of several measurements of one point."""
    return ScalingPoint(
        points[0].x,
        statistics.median(point.seconds for point in points),
        statistics.median(point.memory_mib for point in points),
        statistics.median(point.first_batch_s for point in points),
    )


def exponent(points: Sequence[ScalingPoint]) -> float:
    """Return how total time grows over the upper half of an axis."""
    upper = points[len(points) // 2 - 1 :]
    slope, _ = np.polyfit(np.log([point.x for point in upper]), np.log([point.seconds for point in upper]), 1)
    return float(slope)


def table(axis: Axis, points: Sequence[ScalingPoint]) -> str:
    """Return an axis as a table in Markdown."""
    lines = [
        f"### {axis.name.capitalize()}",
        "",
        f"Time: {axis.measures}. Exponent: {exponent(points):.2f}.",
        "",
        f"| {axis.unit} | time | per unit | memory | first batch |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in points:
        memory = f"{point.memory_mib:.0f} MiB" if point.memory_mib else "-"
        first = f"{point.first_batch_s:.1f} s" if point.first_batch_s else "-"
        each = point.seconds / point.x
        lines.append(f"| {point.x:,.0f} | {point.seconds:.3g} s | {1e6 * each:.3g} us | {memory} | {first} |")
    return "\n".join(lines)


def draw(found: dict[str, list[ScalingPoint]], folder: Path) -> None:
    """Write one picture with a panel for each axis, as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = [axis for axis in AXES if axis.name in found]
    columns = min(4, len(axes))
    rows = -(-len(axes) // columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(3.2 * columns, 2.7 * rows), layout="constrained")
    flat = list(np.atleast_1d(panels).flat)
    for panel, axis in zip(flat, axes, strict=False):
        points = found[axis.name]
        xs = np.array([point.x for point in points], float)
        panel.loglog(xs, [point.seconds for point in points], "o-", color="#2f6f9f", label="measured")
        panel.loglog(xs, points[-1].seconds * xs / xs[-1], "--", color="#c9d0d6", label="linear")
        panel.set_title(axis.name, fontsize=9)
        panel.set_xlabel(axis.unit, fontsize=8)
        panel.set_ylabel(f"s: {axis.measures}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    flat[0].legend(fontsize=7, frameon=False)
    for panel in flat[len(axes) :]:
        panel.set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(folder / f"scaling{suffix}", dpi=130)


def main() -> None:
    """Measure the axes and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[axis.name for axis in AXES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path)
    args = parser.parse_args()
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    run(pipeline(numbers(100)).batch(10), 1)  # the first job starts Ray's processes
    found = {axis.name: measure(axis, args.rounds) for axis in AXES if not args.only or axis.name in args.only}
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"\n{machine}; medians of {args.rounds} rounds\n")
    for axis in AXES:
        if axis.name in found:
            print(table(axis, found[axis.name]) + "\n")
    if args.json:
        facts = {name: [asdict(point) for point in points] for name, points in found.items()}
        args.json.write_text(json.dumps({"machine": machine, "axes": facts}, indent=1))
    if args.plots:
        draw(found, args.plots)


if __name__ == "__main__":
    main()
