"""What reduced copies gain: large photographs that are decoded, cropped at random and resized, for many epochs.

    python -m benchmarks.reduced_copies [--images 48] [--rounds 5] [--at-most 800] [--data FOLDER]

The large photographs of `benchmarks/rewrites.py` (2000 x 1500) in batches of 16 at 224 x 224.  Sides take turns; each
that keeps something has filled its folder in a pass before, and reads it from then on:

- by hand: the same functions on threads; order as written, mode "safe": the engine, computing all of it.
- files: an `autocache` point behind the source; pixels: one behind `Decode`.
- copies: what AutoOrder may keep at that point, JPEGs or pixels of which the smallest part still covers the target.
- JPEGs, pixels of Reduce: `Reduce(at_most)` before the point, of the encoded photograph and of the decoded one.

Printed are images for a second of CPU time (all threads of this process), the ratio over the order as it is written and
over mode "safe" in the same round (median, lowest, highest), the bytes that are kept of a photograph, and the mean
absolute difference of pixels (of 255) to the order as it is written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cv2
import numpy as np

import pecan_ray as pecan
from benchmarks.reorder import OneSlot
from benchmarks.rewrites import FIRST, LAST, SIDE, SIZES, by_hand, enlarged, photographs
from examples.photographs import derived_photographs
from pecan_ray import images
from pecan_ray.autoorder.job_order import rewritten
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.autoorder.reduced_copies import copy_place
from pecan_ray.cache.store import EntryStore
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.python import PythonEngine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.options import Cache
from pecan_ray.plan.operators import Autocache, Plan

ROOM = 8 << 30
SPLIT, BATCH = 8, 16
CROP, RESIZE = images.RandomCrop(), images.Resize(SIDE, SIDE)
AS_WRITTEN, COST = "order as written", 'mode "safe"'
POINT = "point"


class EpochSide:
    """One way to run the epochs, with what it keeps."""

    def __init__(self, name: str, plan: Plan, threads: int) -> None:
        self.name, self._threads = name, threads
        self.folder = Path(tempfile.mkdtemp(prefix="pecan-reduced-"))
        ops = (replace(op, key="kept") if isinstance(op, Autocache) else op for op in plan.ops)
        self._plan = replace(plan, ops=tuple(ops))
        self._slots = OneSlot()

    def epoch(self) -> float:
        """Run an epoch; return the CPU seconds of an image."""
        engine, leases, rows = *self._engine(self._slots, threads=self._threads), 0
        began = time.process_time()
        for made in engine.batches(leases):
            rows += made.rows
            if made.slot is not None:
                made.slot.release()
        engine.close()
        return (time.process_time() - began) / rows

    def pixels(self) -> list[Any]:
        """Return the images of an epoch, in the order of the source."""
        engine, leases = self._engine(HeapSlots(), order="strict")
        found = [np.array(made.columns["image"]) for made in engine.batches(leases)]
        engine.close()
        return found

    def kept(self) -> int:
        """Return the bytes that are kept."""
        with EntryStore(self.folder, max_bytes=ROOM) as store:
            return sum(size.nbytes for size in store.sizes())

    def _engine(self, slots: Any, **options: Any) -> tuple[PythonEngine, AllLeases]:
        sources = tuple(self._plan.sources())
        settings = EngineOptions(cache=Cache(self.folder, ROOM), **options)
        return PythonEngine(self._plan, sources, settings, slots), AllLeases(sources, 0, 1)


def plan_of(root: Path, *steps: Any) -> Plan:
    """Return the plan of some functions on images; `POINT` is a place where they are kept."""
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(root, split_files=SPLIT), name="reduced")
    for step in steps:
        pipe = pipe.autocache() if step is POINT else pipe.map(step, on="image")
    return pipe.batch(BATCH).plan


def sides(root: Path, at_most: int, threads: int) -> list[EpochSide]:
    """Return all ways to run it."""
    decode, reduce = images.Decode(), images.Reduce(at_most)
    computed, behind = plan_of(root, decode, CROP, RESIZE), plan_of(root, decode, POINT, CROP, RESIZE)
    place = copy_place(behind)
    assert place is not None
    plans = {
        AS_WRITTEN: computed,
        COST: push_down(computed, "python")[0],
        "files": push_down(plan_of(root, POINT, decode, CROP, RESIZE), "python")[0],
        "pixels": behind,
        f"copies ({place.pixels:,} pixels)": rewritten(behind, "python", (place.name,))[0],
        "the same as pixels": rewritten(behind, "python", (replace(place, encoded=False).name,))[0],
        f"JPEGs of Reduce({at_most})": push_down(plan_of(root, reduce, POINT, decode, CROP, RESIZE), "python")[0],
        f"pixels of Reduce({at_most})": push_down(plan_of(root, decode, reduce, POINT, CROP, RESIZE), "python")[0],
    }
    return [EpochSide(name, plan, threads) for name, plan in plans.items()]


def told(ratios: Sequence[float]) -> str:
    """Return the median of ratios, and their bounds."""
    return f"{statistics.median(ratios):5.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def measure(files: list[bytes], at_most: int, rounds: int, threads: int) -> None:
    """Let the sides take turns, and print what each did."""
    root = Path(tempfile.mkdtemp(prefix="pecan-reduced-"))
    (root / "all").mkdir()
    for number, file in enumerate(files):
        (root / "all" / f"{number:05d}.jpg").write_bytes(file)
    ways = sides(root, at_most, threads)
    try:
        filling = {side.name: side.epoch() for side in ways}
        times: dict[str, list[float]] = {"by hand": [], **{side.name: [] for side in ways}}
        for _ in range(rounds):
            times["by hand"].append(by_hand(files, (*FIRST, *LAST), threads))
            for side in ways:
                times[side.name].append(side.epoch())
        usual = ways[0].pixels()
        for name, taken in times.items():
            over = [
                told([one / other for one, other in zip(times[base], taken, strict=True)])
                for base in (AS_WRITTEN, COST)
            ]
            line = f"  {name:24s} {1 / statistics.median(taken):6.0f} a second of a CPU, {'; '.join(over)}"
            kept_here = next((one for one in ways if one.name == name), None)
            if kept_here is not None:
                apart = [np.abs(a.astype(int) - b).mean() for a, b in zip(kept_here.pixels(), usual, strict=True)]
                kept = kept_here.kept() / len(files) / 1000
                line += f", {kept:6.0f} KB kept, difference {np.mean(apart):.2f}, first epoch {1 / filling[name]:.0f}"
            print(line, flush=True)
    finally:
        for folder in (root, *(side.folder for side in ways)):
            shutil.rmtree(folder)


def main() -> None:
    """Measure, and print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of folders of JPEGs (default: photographs derived from scikit-image's)")
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-most", type=int, default=800)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["large"])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    cv2.setNumThreads(1)
    small = photographs(Path(args.data or derived_photographs()), args.images)
    for size in args.sizes:
        files = small if size == "small" else [enlarged(file, SIZES[size]) for file in small]
        mean = statistics.mean(map(len, files)) / 1000
        print(f"{size}: {len(files)} photographs of {mean:.0f} KB on average, {args.threads} threads")
        measure(files, args.at_most, args.rounds, args.threads)


if __name__ == "__main__":
    main()
