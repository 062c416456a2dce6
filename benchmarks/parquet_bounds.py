"""What the bounds on decoded bytes cost a reader of Parquet: reads with them and without, in turns.

    python -m benchmarks.parquet_bounds [--rounds 7]

Ratios are of this process's CPU time, so that other work on the machine disturbs little; medians, and the extremes.
Beside them stands the share of that time in which bounds are looked for.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from pecan_ray.sources import Parquet, parquet_rows
from pecan_ray.sources import parquet as reading
from pecan_ray.sources.parquet_rows import DECODED_BYTES, MOST_DECODED_ROWS


@dataclass(frozen=True)
class WideTable:
    """A file of numbers, of which every eighth column holds short texts."""

    columns: int
    rows: int
    groups: int

    def write(self, folder: Path) -> Path:
        """Write the file."""
        rng = np.random.default_rng(0)
        texts = pa.array([f"text {number}" for number in range(5000)])
        columns: dict[str, Any] = {}
        for number in range(self.columns):
            numbers = rng.random(self.rows, np.float32)
            taken = pa.array((numbers * len(texts)).astype(np.int32))
            columns[f"c{number}"] = numbers if number % 8 else texts.take(taken)
        path = folder / f"{self.columns}-{self.groups}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=self.rows // self.groups)
        return path


TABLES = (
    WideTable(8, 2_000_000, 4),
    WideTable(100, 200_000, 2),
    WideTable(1000, 50_000, 2),
    WideTable(1000, 20_000, 4),
)


def unbounded(file: Any, metadata: Any, groups: Sequence[int], wanted: Any, most: int | None) -> int:
    """Return how many rows are about so many bytes, however long one of them may be."""
    size: int = sum(metadata.row_group(group).total_byte_size for group in groups)
    rows: int = sum(metadata.row_group(group).num_rows for group in groups)
    return most or max(1, min(MOST_DECODED_ROWS, DECODED_BYTES * rows // max(size, 1)))


@dataclass
class Timed:
    """A function, and the CPU seconds that its calls took."""

    function: Any
    seconds: float = 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.process_time()
        found = self.function(*arguments)
        self.seconds += time.process_time() - began
        return found


def read_s(source: Parquet, bounded: bool) -> tuple[float, float]:
    """Return the seconds of CPU time that reading a source takes, and those of looking for bounds."""
    splits = list(source.splits())
    fitting = Timed(parquet_rows.decode_batch_size if bounded else unbounded)
    checking = Timed(parquet_rows.check_columns if bounded else lambda *_: None)
    with patch.object(reading, "decode_batch_size", fitting), patch.object(reading, "check_columns", checking):
        began = time.process_time()
        for split in splits:
            for _ in source.read_columns(split):
                pass
        return time.process_time() - began, fitting.seconds + checking.seconds


def main() -> None:
    """Measure, and print a line for each table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        for table in TABLES:
            source = Parquet(str(table.write(Path(folder))))
            read_s(source, True)
            ratios, shares = [], []
            for number in range(rounds):
                times = {bounded: read_s(source, bounded) for bounded in ((True, False), (False, True))[number % 2]}
                ratios.append(times[True][0] / times[False][0])
                shares.append(times[True][1] / times[True][0])
            print(
                f"{table}: {times[False][0]:.2f} s; with bounds {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f}), of which looking for them {statistics.median(shares):.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
