"""Case (f): rows of a Parquet table as recommenders read them: 13 dense and 26 categorical columns and a label."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Element, Recipe

if TYPE_CHECKING:
    from pecan_ray.options import EngineName

ROWS, FILES, GROUP = 200_000, 4, 20_000
DENSE, CATEGORICAL = 13, 26
BATCH = 4096


def files() -> tuple[str, ...]:
    """Write the table on the first call: log-normal dense columns, Zipf-distributed categories, 3 % clicks."""
    import pyarrow as pa
    from pyarrow import parquet

    folder = Path.home() / ".cache" / "pecan_ray" / f"clicks-{ROWS}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
        for number in range(FILES):
            rng = np.random.default_rng(number)
            rows = ROWS // FILES
            columns: dict[str, Any] = {"label": (rng.random(rows) < 0.03).astype(np.float32)}
            for place in range(DENSE):
                columns[f"dense{place}"] = rng.lognormal(1, 2, rows).astype(np.float32)
            for place in range(CATEGORICAL):
                columns[f"category{place}"] = np.minimum(rng.zipf(1.2, rows), 1 << 20).astype(np.int64)
            parquet.write_table(pa.table(columns), unfinished / f"{number}.parquet", row_group_size=GROUP)
        os.rename(unfinished, folder)
    return tuple(sorted(str(path) for path in folder.glob("*.parquet")))


def pipeline(_engine: EngineName) -> Any:
    """Return our pipeline."""
    import pecan_ray as pecan

    source = pecan.sources.Parquet(list(files()), split_bytes=8 << 20)
    return pecan.PecanPipeline(source, name="tables").repeat(None).batch(BATCH)


def row(_item: Any, _rng: np.random.Generator) -> Element:
    """Refuse a side that makes single elements: those of this case read tables by ways of their own."""
    raise TypeError("the case 'tables' has no single elements: give it sides that read tables")


def recipe(_data: str) -> Recipe:
    """Return the case's work."""
    return Recipe(files(), row, BATCH, pipeline, files=files())


TABLES = PeerCase(
    key="tables",
    title="Parquet rows of 40 columns to batches of 4096",
    unit="rows",
    recipe=recipe,
    sides=(
        "pecan python",
        "tf.data, tables",
        "torch DataLoader, tables",
        "Ray Data, tables",
        "PyArrow, this process",
    ),
    targets=(
        Target("pecan python", "Ray Data, tables", 3.0),
        Target("pecan python", "torch DataLoader, tables"),
        Target("pecan python", "tf.data, tables"),
        Target("pecan python", "PyArrow, this process"),
    ),
)
