"""What keeping costs and gains: photographs that are decoded and resized, kept as bytes, then flipped and normalized.

    python -m benchmarks.autocache [--photographs 1024] [--rounds 5] [--json FILE]

One local worker on a Ray cluster of this machine, a trainer that does nothing, in turns:

- `computed`: an epoch without a point, `filling`: the first epoch of a job that keeps, in a folder of its own;
  ratio: how much slower filling is.
- `kept`: the second epoch of that job; ratio: how much faster than computed.  `promised`: what the job had said that
  such an epoch would take, over what it says that it took.
- `read`: elements out of entries, checked, in this process, against PyArrow that reads the same bytes from the same
  files into arrays (`pyarrow.ipc` of a memory map, copied, not checked); ratio of their times, of the least of three
  each.  `batches`: the same, with the elements copied into batches, by an engine of one thread beside its reader.
  `memory`: elements out of shared memory, against copying these bytes; `first memory`: those that this process has not
  read before, and therefore checks.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import ray

import pecan_ray as pecan
from examples import image_ops
from examples.photographs import derived_photographs
from pecan_ray.autocache.store_speed import WarmSlots
from pecan_ray.cache_options import Cache
from pecan_ray.caching.checked_segments import CheckedSegments
from pecan_ray.caching.store import EntryPlace, EntryStore
from pecan_ray.caching.tiers import HELD_BYTES
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.entry_format import EntryReader
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.python import PythonEngine
from pecan_ray.plan.operators import Autocache, Batch, Plan
from pecan_ray.plan.splits import Lease

GIB = 1 << 30
READ_TIMES = 3


def resize(image: Any) -> Any:
    """Return a photograph of 224 x 224 pixels, as bytes: what is kept should be small."""
    return np.clip(np.rint(image_ops.resize(image)), 0, 255).astype(np.uint8)


def pipeline(root: Path, folder: Path | None) -> pecan.PecanPipeline:
    """Return the pipeline, with a point if there is a folder to keep things in."""
    config = pecan.Config(reorder="off", cache=Cache(folder, 8 * GIB), order_folder="")
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(root, split_files=64), name="autocache", config=config)
    pipe = pipe.map(image_ops.decode_and_random_crop, on="image").map(resize, on="image")
    if folder is not None:
        pipe = pipe.autocache()
    return pipe.map(image_ops.random_flip, on="image").map(image_ops.subtract_mean, on="image").batch(32)


def epochs_s(pipe: pecan.PecanPipeline, epochs: int) -> tuple[list[float], list[str]]:
    """Return the seconds of each epoch, from its first batch to its last, and what was said about what is kept."""
    seconds: list[list[float]] = [[] for _ in range(epochs)]
    with pipe.iter_batches(epochs=epochs, workers=pecan.Workers(local=1)) as batches:
        for _ in batches:
            assert batches.provenance is not None
            seconds[batches.provenance.epoch].append(time.perf_counter())
        said = [event.text for event in batches.report().events if event.text.startswith("autocache")]
    return [times[-1] - times[0] for times in seconds], said


def promised_over_taken(said: Sequence[str]) -> float:
    """Return what a job had promised of an epoch, over what it says that the epoch took."""
    found = [re.search(r"an epoch took ([0-9.e-]+) s, where ([0-9.e-]+) s were promised", text) for text in said]
    took, promised = next(map(float, match.groups()) for match in found if match)
    return promised / took


def read_s(root: Path, folder: Path) -> dict[str, float]:
    """Return the seconds that reading all entries takes: as elements, in batches, by PyArrow alone, and in memory."""
    memory = Path(tempfile.mkdtemp(prefix="pecan-autocache-", dir="/dev/shm"))
    try:
        with (
            EntryStore(folder, max_bytes=8 * GIB, checked=CheckedSegments(HELD_BYTES)) as disk,
            EntryStore(memory, max_bytes=8 * GIB, checked=CheckedSegments(HELD_BYTES, in_memory=True)) as above,
        ):
            for place in disk.locations():
                above.put(place.key, "memory", [disk.get(place.key) or b""], elements=1, seconds=1.0)
            engine, leases = _engine(root, folder, disk.sizes()[0].kind)
            ways: dict[str, Callable[[], int]] = {
                "ours": lambda: _elements(disk),
                "batches": lambda: _rows_in_batches(engine, leases()),
                "pyarrow": lambda: _copied_rows(disk.locations()),
                "memory": lambda: _elements(above),
                "memcpy": lambda: _copied_bytes(above.locations()),
            }
            assert ways["batches"]() == sum(size.elements for size in disk.sizes())
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(READ_TIMES):
                for name, way in ways.items():
                    began = time.perf_counter()
                    assert way() > 0
                    seconds[name].append(time.perf_counter() - began)
        first = {f"{name}, first": times[0] for name, times in seconds.items()}
        return first | {name: min(times) for name, times in seconds.items()}
    finally:
        shutil.rmtree(memory)


def _elements(store: EntryStore) -> int:
    return sum(1 for place in store.locations() for _ in EntryReader(store.get(place.key) or b"").elements(apart=False))


class ListedLeases:
    """Leases that are known beforehand: in a job somebody else lists the files."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._left = deque(leases)

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease."""
        return self._left.popleft() if self._left else None

    def ended(self, lease: Lease, elements: int) -> None:
        """Do nothing: nobody asks."""


def _engine(root: Path, folder: Path, kind: str) -> tuple[PythonEngine, Callable[[], ListedLeases]]:
    """Return an engine that puts what is kept into batches, and what gives it all splits."""
    point = Autocache(name="kept", key=kind)
    plan = Plan(head=pecan.sources.ImageFolder(root, split_files=64), ops=(point, Batch(name="batch", size=32)))
    sources = tuple(plan.sources())
    engine = PythonEngine(plan, sources, EngineOptions(cache=Cache(folder, 8 * GIB)), WarmSlots())
    listing = AllLeases(sources, 0, 1)
    listed = list(iter(listing.take, None))
    return engine, lambda: ListedLeases(listed)


def _rows_in_batches(engine: PythonEngine, leases: ListedLeases) -> int:
    rows = 0
    for made in engine.batches(leases):
        rows += made.rows
        if made.slot is not None:
            made.slot.release()
    return rows


def _copied_rows(places: Sequence[EntryPlace]) -> int:
    """Copy the columns of entries out of their files with PyArrow; return their rows."""
    rows = 0
    for place in places:
        with pa.memory_map(str(place.path)) as file:
            file.seek(place.start)
            batch = pa.ipc.open_stream(pa.py_buffer(file.read_buffer(place.nbytes))).read_next_batch()
            rows += batch.num_rows
            for column in batch.columns:
                for buffer in column.buffers():
                    if buffer is not None:
                        bytearray(buffer)
    return rows


def _copied_bytes(places: Sequence[EntryPlace]) -> int:
    """Copy entries out of mapped files, as they are."""
    copied = 0
    for place in places:
        with pa.memory_map(str(place.path)) as file:
            file.seek(place.start)
            copied += len(bytearray(file.read_buffer(place.nbytes)))
    return copied


def one_round(root: Path) -> dict[str, float]:
    """Measure everything once."""
    folder = Path(tempfile.mkdtemp(prefix="pecan-autocache-"))
    try:
        (computed,), _ = epochs_s(pipeline(root, None), 1)
        (filling, kept), said = epochs_s(pipeline(root, folder), 2)
        assert any("cache at" in text for text in said), said
        read = read_s(root, folder)
        return {
            "computed": computed,
            "filling": filling,
            "kept": kept,
            "filling / computed": filling / computed,
            "computed / kept": computed / kept,
            "promised / taken": promised_over_taken(said),
            "read": read["ours"],
            "read / pyarrow": read["ours"] / read["pyarrow"],
            "batches / pyarrow": read["batches"] / read["pyarrow"],
            "memory / memcpy": read["memory"] / read["memcpy"],
            "first memory / memcpy": read["memory, first"] / read["memcpy"],
        }
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    root = derived_photographs(asked.photographs)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
    ray.init(address="local", num_cpus=max(2, os.cpu_count() or 1), log_to_driver=False, logging_level=logging.WARNING)
    rounds = [one_round(root) for _ in range(asked.rounds)]
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, {asked.rounds} rounds")
    for name in rounds[0]:
        values = sorted(one[name] for one in rounds)
        print(f"{name:20s} {statistics.median(values):7.3f}  ({values[0]:.3f} to {values[-1]:.3f})")
    if asked.json:
        asked.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
