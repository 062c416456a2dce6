"""What autocache does to the four example pipelines: no epoch slower than the first, and as fast as was promised.

    python -m benchmarks.cached_examples [--rounds 3] [--epochs 3] [--elements 512] [--examples resnet50]

Points stand behind the source and before the first operator that draws random numbers, where something else stands
between.  Jobs of one local worker, with a trainer that does nothing, in turns: without points, and with them, in a
folder of their own.  Epochs last from their first batch to their last, since before the first batch of a job some of
the work is done already; printed are medians over the rounds: the first epoch and the median of later ones, of either
job, what was chosen, and what was promised of an epoch over what the job says that one took.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray

import pecan_ray as pecan
from examples import asr_transformer, resnet50, retinanet, simclr
from examples.photographs import derived_photographs
from pecan_ray.cache_options import Cache
from pecan_ray.plan.operators import Autocache, ElementOp, wants_rng

GIB = 1 << 30


def example(name: str, elements: int) -> pecan.PecanPipeline:
    """Return an example's pipeline over about so many elements."""
    if name == "resnet50":
        return resnet50.pipeline(derived_photographs(elements))
    if name == "simclr":
        return simclr.pipeline(derived_photographs(elements))
    return retinanet.pipeline(images=elements // 4) if name == "retinanet" else asr_transformer.pipeline()


EXAMPLES = ("resnet50", "simclr", "retinanet", "asr_transformer")


def with_points(pipe: pecan.PecanPipeline) -> pecan.PecanPipeline:
    """Return a pipeline with points behind its source and before its first random operator."""
    ops = pipe.plan.ops
    fixed = list(itertools.takewhile(lambda op: isinstance(op, ElementOp) and not wants_rng(op.fn), ops))
    points = [Autocache(name="source"), *fixed, *([Autocache(name="prefix")] if fixed else [])]
    return pipe._with(dataclasses.replace(pipe.plan, ops=(*points, *ops[len(fixed) :])))


class JobEpochs(NamedTuple):
    """What epochs of a job took, and what it said."""

    first: float
    later: float
    chosen: str
    promised: float
    """Over what an epoch took, as the job says; NaN: nothing was promised."""


def job(pipe: pecan.PecanPipeline, epochs: int) -> JobEpochs:
    """Run a job."""
    folder = Path(tempfile.mkdtemp(prefix="pecan-cached-examples-"))
    chosen = pipe.with_config(cache=Cache(folder, 8 * GIB), order_folder="", progress=False)
    began, ends = dict[int, float](), dict[int, float]()
    with chosen.iter_batches(epochs=epochs, workers=pecan.Workers(local=1)) as batches:
        for _ in batches:
            assert batches.provenance is not None
            began.setdefault(batches.provenance.epoch, time.perf_counter())
            ends[batches.provenance.epoch] = time.perf_counter()
        said = [event.text for event in batches.report().events if event.text.startswith("autocache")]
    shutil.rmtree(folder)
    took = [ends[epoch] - began[epoch] for epoch in range(epochs)]
    found = [re.search(r"an epoch took ([0-9.e+-]+) s, where ([0-9.e+-]+) s were promised", text) for text in said]
    promised = next((float(match[2]) / float(match[1]) for match in found if match), math.nan)
    return JobEpochs(took[0], statistics.median(took[1:]), said[0] if said else "-", promised)


def compare(name: str, elements: int, rounds: int, epochs: int) -> None:
    """Let jobs of an example take turns, and print what they did."""
    pipe = example(name, elements)
    without, kept = list[JobEpochs](), list[JobEpochs]()
    for _ in range(rounds):
        without.append(job(pipe, epochs))
        kept.append(job(with_points(pipe), epochs))

    def middle(jobs: list[JobEpochs], figure: Callable[[JobEpochs], float]) -> float:
        return statistics.median(figure(one) for one in jobs)

    print(
        f"{name:16s} without {middle(without, lambda one: one.first):.2f} {middle(without, lambda one: one.later):.2f}"
        f"   with {middle(kept, lambda one: one.first):.2f} {middle(kept, lambda one: one.later):.2f}"
        f"   later over first {middle(kept, lambda one: one.later / one.first):.2f}"
        f"   promised over taken {middle(kept, lambda one: one.promised):.2f}"
        f" ({min(one.promised for one in kept):.2f} to {max(one.promised for one in kept):.2f})",
        flush=True,
    )
    print(f"  {kept[-1].chosen}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=EXAMPLES)
    parser.add_argument("--elements", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, seconds of an epoch")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for name in asked.examples:
        compare(name, asked.elements, asked.rounds, asked.epochs)


if __name__ == "__main__":
    main()
