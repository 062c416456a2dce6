"""Tables with operators between source and `batch`: rows per second of whole jobs, as ratios to those without any.

    python -m benchmarks.tables [--cases NAME ...] [--seconds 8] [--rounds 5] [--json FILE]

Jobs with one local worker on a Ray cluster of this machine, in turns, over a Parquet table of 40 columns of numbers.
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
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

import pecan_ray as pecan
from benchmarks.one_sequence import batches_per_s

ROWS, COLUMNS, BATCH = 200_000, 40, 4096
CASES: dict[str, Callable[[pecan.PecanPipeline], pecan.PecanPipeline]] = {
    "shuffle": lambda pipe: pipe.shuffle(50_000),
    "filter": lambda pipe: pipe.filter(lambda element: element["c0"] > 10),
    "filter on": lambda pipe: pipe.filter(lambda value: value > 10, on="c0"),
    "map on": lambda pipe: pipe.map(lambda value: value + 1, on="c0"),
}


def write_table(folder: str) -> None:
    """Write columns of whole numbers and of float32 in turn."""
    rng = np.random.default_rng(0)
    numbers = [rng.random(ROWS, np.float32) if n % 2 else rng.integers(0, 1000, ROWS) for n in range(COLUMNS)]
    table = pa.table({f"c{n}": column for n, column in enumerate(numbers)})
    pq.write_table(table, f"{folder}/table.parquet", row_group_size=20_000)


def main(argv: list[str] | None = None) -> int:
    """Measure the cases in turn, and print the median of the rounds' ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        write_table(folder)
        config = pecan.Config(reorder="off", progress=False)
        whole = pecan.PecanPipeline(pecan.sources.Parquet(folder), name="table", config=config)

        def rows_per_s(pipe: pecan.PecanPipeline) -> float:
            return BATCH * batches_per_s(pipe.batch(BATCH), 1, options.seconds)

        rounds = [
            (rows_per_s(whole), {name: rows_per_s(CASES[name](whole)) for name in options.cases})
            for _ in range(options.rounds)
        ]
    found = {"plain": [plain for plain, _ in rounds]}
    print(f"plain: {statistics.median(found['plain']):,.0f} rows/s")
    for name in options.cases:
        found[name] = [rates[name] for _, rates in rounds]
        ratios = sorted(rates[name] / plain for plain, rates in rounds)
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{name}: {statistics.median(found[name]):,.0f} rows/s, {spread} of plain")
    summary = json.dumps({"machine": f"{os.cpu_count()} CPUs, {platform.machine()}", "rows per second": found})
    print(summary)
    if options.json:
        Path(options.json).write_text(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
