"""What the rule "rows at once" gains: CPU time of a tiny row, each row by itself against many at a time.

    python benchmarks/rows_at_once.py [--rows 20000] [--rounds 5] [--json FILE]

A row has 250 numbers (1 KB) and a label, or 4 numbers; three maps scale, clip and cast them, and `batch(256)` puts them
together.  They come as columns (`Arrays`) or as elements (`Items`).  Both ways run in turn in one process, with two
threads; the medians of the rounds are printed, and how AutoOrder has decided.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import pecan_ray as pecan
from benchmarks.reorder import OneSlot
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.registry import build_engine
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Element


def scaled(element: Element) -> Element:
    """Scale the numbers."""
    return {**element, "x": (element["x"] - np.float32(0.5)) / np.float32(2)}


def clip_range(element: Element) -> Element:
    """Clip them."""
    return {**element, "x": np.clip(element["x"], -1, 1)}


def halved(element: Element) -> Element:
    """Cast them to float16."""
    return {**element, "x": element["x"].astype(np.float16)}


def pipeline(rows: int, width: int, *, columns: bool) -> pecan.PecanPipeline:
    """Return the pipeline of rows of so many numbers."""
    x = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    labels = np.arange(rows)
    elements = [] if columns else [{"x": x[row], "label": labels[row]} for row in range(rows)]
    source: Any = pecan.sources.Arrays({"x": x, "label": labels}) if columns else pecan.sources.Items(elements)
    return pecan.PecanPipeline(source).map(scaled).map(clip_range).map(halved).batch(256)


def passed(plan: Plan) -> tuple[int, float, float, float]:
    """Run a pass; return its rows, a sum over all batches, the CPU time and the wall-clock time of a row in us."""
    engine = build_engine("python", plan, EngineOptions(threads=2), OneSlot())
    rows, total = 0, 0.0
    began, cpu = time.perf_counter(), time.process_time()
    for produced in engine.batches(AllLeases(list(plan.sources()), epoch=0, num_passes=1)):
        rows += produced.rows
        if produced.rows:
            total += float(produced.columns["x"][0, 0])
        if produced.slot is not None:
            produced.slot.release()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    engine.close()
    return rows, total, 1e6 * cpu / rows, 1e6 * wall / rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    for width in (4, 250):
        for columns in (True, False):
            pipe = pipeline(given.rows, width, columns=columns)
            ordering = order_plan(OrderRequest(pipe.plan, mode="strict", seconds=20))
            new, _ = apply_rewrites(ordering.plan, "python", ordering.decoders)
            runs = [(passed(pipe.plan), passed(new)) for _ in range(given.rounds)]
            alone, rows = (statistics.median(run[way][2] for run in runs) for way in (0, 1))
            walls = [statistics.median(run[way][3] for run in runs) for way in (0, 1)]
            case = f"{width} numbers, {'columns' if columns else 'elements'}"
            found[case] = {"one_us": alone, "rows_us": rows, "wall_us": walls, "chosen": list(ordering.decoders)}
            print(
                f"{case}: {alone:.2f} us of CPU time for a row, in rows {rows:.2f} ({alone / rows:.1f}x; wall clock "
                f"{walls[0] / walls[1]:.1f}x); {', '.join(ordering.decoders) or 'nothing chosen'}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
