"""What the python engine costs beside the functions: CPU time of an element that functions hardly touch.

    python benchmarks/engine_overhead.py [--elements 20000] [--rounds 7] [--before ../another-checkout]

An element has 250 numbers (1 KB) and a label that is a number of Python; they go into batches of 256, on two threads.
Each round is a process of its own for each checkout, in turn; the shortest of three passes counts, since other load
only adds.  Medians of the rounds are printed, and of the ratios within them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PASSES = 3


def same(element: Any) -> Any:
    """Return an element as it is."""
    return element


def pipelines(count: int) -> dict[str, Any]:
    """Return the pipelines, by name."""
    import numpy as np

    import pecan_ray as pecan

    x = np.random.default_rng(0).normal(size=(count, 250)).astype(np.float32)
    source = pecan.sources.Items([{"x": x[row], "label": row} for row in range(count)])
    pipe = pecan.PecanPipeline(source)
    return {
        "batch": pipe.batch(256),
        "map, batch": pipe.map(same).batch(256),
        "three maps, batch": pipe.map(same).map(same, name="second").map(same, name="third").batch(256),
        "map of a column, batch": pipe.map(same, on="x").batch(256),
    }


def measured(count: int) -> dict[str, float]:
    """Return the CPU time of an element in microseconds, by pipeline, with the code that is imported."""
    from benchmarks.reorder import OneSlot
    from pecan_ray.engines.contract import EngineOptions
    from pecan_ray.engines.in_process import AllLeases
    from pecan_ray.engines.registry import build_engine

    found = {}
    for name, pipe in pipelines(count).items():
        slots, times = OneSlot(), []
        for _ in range(PASSES):
            engine = build_engine("python", pipe.plan, EngineOptions(threads=2), slots)
            began = time.process_time()
            for produced in engine.batches(AllLeases(list(pipe.plan.sources()), 0, 1)):
                if produced.slot is not None:
                    produced.slot.release()
            times.append(time.process_time() - began)
            engine.close()
        found[name] = 1e6 * min(times) / count
    return found


def of_checkout(folder: Path, count: int) -> dict[str, float]:
    """Return what a checkout takes, measured in a process of its own."""
    code = f"import runpy; runpy.run_path({str(Path(__file__).resolve())!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", code, "--in-process", "--elements", str(count)]
    out = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(out.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--in-process", action="store_true", help="measure here, and print JSON")
    args = parser.parse_args()
    if args.in_process:
        print(json.dumps(measured(args.elements)))
        return
    folders = [HERE, *([args.before.resolve()] if args.before else [])]
    rounds = [[of_checkout(folder, args.elements) for folder in folders] for _ in range(args.rounds)]
    for name in rounds[0][0]:
        now = [made[0][name] for made in rounds]
        text = f"{name}: {statistics.median(now):.1f} us ({min(now):.1f} to {max(now):.1f})"
        if args.before:
            before = [made[1][name] for made in rounds]
            ratios = sorted(a / b for a, b in zip(now, before, strict=True))
            text += f", before {statistics.median(before):.1f} ({min(before):.1f} to {max(before):.1f}); "
            text += f"now over before {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(text, flush=True)


if __name__ == "__main__":
    main()
