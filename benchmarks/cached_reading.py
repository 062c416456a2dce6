"""Batches out of a cache's entries, against PyArrow that reads the same bytes from the same files.

    python -m benchmarks.cached_reading [--megabytes 150] [--passes 15] [--batch 32] [--cold] [--json FILE]

Entries of arrays of 147 KiB (64 in each) and of 4 KiB (512) in a folder of the disk, which the system keeps in its
memory, or (`--cold`) has to read from the disk in each turn; no Ray, no trainer.  Sides take turns, each goes through
all entries:

- `ours`: the python engine, with one thread beside its reader, fills batches in memory that is used again, as that of a
  worker's ring is.  What this process has checked and what has stayed in its pages since is not checked again.
- `ours, first`: the same by an engine that has read nothing yet, and checks all entries.
- `PyArrow`: a memory map of each file, and each buffer of the entry's record batch copied out of it.
- `PyArrow, batches`: the same, and the rows of each column copied into batches, in memory that is used again.
- `PyArrow, file`: each entry read from the file into memory (`pyarrow.OSFile`), as one buffer.

PyArrow checks nothing.  Printed are seconds of the clock and of CPU for a gigabyte, the least and the median of all
passes, and the medians of ours over PyArrow's within a pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from pecan_ray.autocache.store_speed import WarmSlots
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryPlace, EntryStore
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.python import PythonEngine
from pecan_ray.plan.operators import Autocache, Batch, Plan
from pecan_ray.plan.splits import Element, Split

SIZES = ((150528, 64), (4096, 512))
"""Bytes of an element, and elements of an entry."""
OURS, FIRST = "ours", "ours, first"
PEERS = ("PyArrow", "PyArrow, batches", "PyArrow, file")


@dataclass(frozen=True)
class RandomArrays:
    """A source of arrays, in splits of equal length."""

    splits_count: int
    rows: int
    nbytes: int

    def splits(self) -> Iterator[Split]:
        """Yield the splits."""
        for index in range(self.splits_count):
            yield Split(index=index, start=index * self.rows, stop=(index + 1) * self.rows, elements=self.rows)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield arrays that differ from each other."""
        for row in range(split.start + start, split.stop or 0):
            yield {"x": np.random.default_rng(row).integers(0, 256, self.nbytes, np.uint8), "i": row}

    def num_elements(self) -> int:
        """Return how many there are."""
        return self.splits_count * self.rows

    def identity(self) -> str:
        """Return what stands for the data."""
        return repr(self)


class CachedReader:
    """Reads all entries of a folder as batches, by the engine, or as PyArrow does."""

    def __init__(self, folder: Path, source: RandomArrays, batch: int) -> None:
        self._batch, self._rows = batch, source.num_elements()
        plan = Plan(head=source, ops=(Autocache(name="kept", key="noise"), Batch(name="batch", size=batch)))
        self._sources = tuple(plan.sources())
        self._slots = WarmSlots()

        def engine() -> PythonEngine:
            return PythonEngine(plan, self._sources, EngineOptions(cache=Cache(folder, 8 << 30)), self._slots)

        self._new_engine = engine
        self._engine = engine()
        self.ours()  # which fills the cache
        with EntryStore(folder, max_bytes=8 << 30) as store:
            self._positions = store.locations()
        assert len(self._positions) == source.splits_count
        self._memory: dict[int, Any] = {}
        """By the bytes of a row: where PyArrow's side puts its batches."""

    def ours(self) -> int:
        """Return the rows of all batches that the engine makes."""
        rows = 0
        for made in self._engine.batches(AllLeases(self._sources, 0, 1)):
            rows += made.rows
            if made.slot is not None:
                made.slot.release()
        assert rows == self._rows
        return rows

    def forget(self) -> None:
        """Go on with an engine that has read nothing yet."""
        self._engine.close()
        self._engine = self._new_engine()

    def side(self, name: str) -> Callable[[], int]:
        """Return what a side does in a pass."""
        ways = {
            OURS: self.ours,
            FIRST: self.ours,
            PEERS[0]: self._buffers,
            PEERS[1]: self._batches,
            PEERS[2]: self._file,
        }
        return ways[name]

    def _buffers(self) -> int:
        copied = 0
        for place in self._positions:
            for column in _record_batch(place).columns:
                for buffer in filter(None, column.buffers()):
                    copied += len(bytearray(buffer))
        return copied

    def _batches(self) -> int:
        rows = 0
        for place in self._positions:
            found = _record_batch(place)
            for column in found.columns:
                values = np.frombuffer(column.buffers()[-1], np.uint8).reshape(found.num_rows, -1)
                memory = self._memory.setdefault(values.shape[1], np.empty((self._batch, values.shape[1]), np.uint8))
                for start in range(0, found.num_rows, self._batch):
                    piece = values[start : start + self._batch]
                    memory[: len(piece)] = piece
            rows += found.num_rows
        return rows

    def _file(self) -> int:
        read = 0
        for place in self._positions:
            with pa.OSFile(str(place.path)) as file:
                file.seek(place.start)
                read += len(file.read_buffer(place.nbytes))
        return read

    def chill(self) -> None:
        """Let the system forget the files, so that the disk has to read them."""
        for path in {place.path for place in self._positions}:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Let go of the folder."""
        self._engine.close()


def _record_batch(place: EntryPlace) -> Any:
    """Return the record batch of an entry, in a map of its file."""
    with pa.memory_map(str(place.path)) as file:
        file.seek(place.start)
        return pa.ipc.open_stream(pa.py_buffer(file.read_buffer(place.nbytes))).read_next_batch()


def measured(reader: CachedReader, passes: int, *, cold: bool) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of the clock and of CPU of each pass, by side."""
    # A first pass goes before one that is not: its engine reads again then what it has checked.
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in (FIRST, OURS, *PEERS)}
    for _ in range(passes):
        for name, times in seconds.items():
            if name == FIRST or cold:
                reader.forget()
            if cold:
                reader.chill()
            began, spent = time.perf_counter(), time.process_time()
            assert reader.side(name)() > 0
            times.append((time.perf_counter() - began, time.process_time() - spent))
    return seconds


def told(seconds: dict[str, list[tuple[float, float]]], gigabytes: float) -> Iterator[str]:
    """Yield what was measured, in lines."""
    for name, times in seconds.items():
        for which, unit in enumerate(("s", "CPU s")):
            values = [one[which] for one in times]
            least, median = min(values) / gigabytes, statistics.median(values) / gigabytes
            line = f"  {name:18s} {unit:6s} least {least:6.3f}  median {median:6.3f}"
            if name in PEERS:
                for ours in (OURS, FIRST):
                    ratios = _ratios([one[which] for one in seconds[ours]], values)
                    line += f"   {ours} over it: {statistics.median(ratios):4.2f}"
            yield line


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=150)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cold", action="store_true", help="let the disk read the files in each turn")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {asked.passes} passes")
    found = {}
    for nbytes, rows in SIZES:
        source = RandomArrays(max(1, asked.megabytes * 1_000_000 // (nbytes * rows)), rows, nbytes)
        with tempfile.TemporaryDirectory(prefix="pecan-cached-reading-") as folder:
            reader = CachedReader(Path(folder), source, asked.batch)
            try:
                seconds = measured(reader, asked.passes, cold=asked.cold)
            finally:
                reader.close()
        print(f"{source.num_elements()} arrays of {nbytes} bytes, {rows} in an entry, batches of {asked.batch}:")
        for line in told(seconds, source.num_elements() * nbytes / 1e9):
            print(line)
        found[str(nbytes)] = seconds
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
