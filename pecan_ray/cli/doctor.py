"""`pecan doctor`."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from pecan_ray.observe.diagnostics import ROWS, looks
from pecan_ray.options import Config, TransportChoice, Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources.memory import Arrays


def add_doctor_arguments(added: argparse.ArgumentParser) -> None:
    """Add what `pecan doctor` takes."""
    added.add_argument("--without-ray", action="store_true", help="look at this machine alone, and start nothing")
    added.set_defaults(run=run_doctor)


def run_doctor(asked: argparse.Namespace) -> int:
    """Print what was found of this machine and its cluster, line by line; returns 1 if anything is wrong."""
    wrong = 0
    for line in looks(None if asked.without_ray else small_epoch):
        wrong += bool(line.suggestion)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{wrong} thing(s) to look at\n" if wrong else "nothing is wrong\n")
    return int(wrong > 0)


def small_epoch(transport: TransportChoice) -> tuple[int, list[str]]:
    """Run a small job over a transport; return the elements that came, and by which ways."""
    config = Config(transport=transport, reorder="off", progress=False)
    pipe = PecanPipeline(Arrays(i=np.arange(ROWS)), name="doctor", config=config).batch(16)
    with pipe.iter_batches(workers=Workers(local=1)) as batches:
        rows = sum(len(batch["i"]) for batch in batches)
        events = batches.report().events
    return rows, [event.text.partition(" by ")[2] for event in events if event.kind == "transport"]
