"""What the examples share: their command line, and what consumes the batches.

The consumer is an emulated accelerator, which takes a fixed time for each batch, or a small real model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pecan_ray as pecan

BatchColumns: TypeAlias = dict[str, Any]
TrainStep: TypeAlias = Callable[[BatchColumns], float]
"""Trains on one batch and returns the loss."""

SPLIT_FILES = 16
"""Photographs in a split: few, so that a small set keeps several workers busy."""
DATA_HELP = (
    "With --remote the folder must be on storage that every node sees; a set made by default is written to "
    "~/.cache/pecan_ray of the machine that runs this program."
)


def command_line(
    description: str, *, engines: Sequence[str] = ("python",), batch: int, count: int, data_help: str
) -> argparse.ArgumentParser:
    """Return the options that all examples have; `count` is how many elements the default set holds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    which = "engine of the workers" if len(engines) > 1 else "engine of the workers; this example has no other"
    parser.add_argument("--engine", choices=engines, default="python", help=which)
    parser.add_argument("--epochs", type=_positive, default=1, help="passes over the data")
    parser.add_argument("--batch", type=_positive, default=batch, help="elements in a batch")
    parser.add_argument("--local", type=int, help="workers on this node; without both, as many as are needed run")
    parser.add_argument("--remote", type=int, help="workers on other nodes")
    parser.add_argument("--data", default=None, help=data_help)
    parser.add_argument("--images", type=_positive, default=count, help="elements of the default set")
    consumer = parser.add_mutually_exclusive_group()
    consumer.add_argument(
        "--step-time",
        type=float,
        default=0.05,
        help="emulate an accelerator that takes so many seconds for each batch",
    )
    consumer.add_argument(
        "--train",
        action="store_true",
        help="train a small model instead, on the CPU: torch, or Keras with --engine tensorflow",
    )
    parser.add_argument("--debug", action="store_true", help="run in this very process, without Ray")
    return parser


def fixed_workers(local: int | None, remote: int | None) -> pecan.Workers | None:
    """Return the numbers of workers that a command line asks for; None: AutoPlacement finds them."""
    if local is None and remote is None:
        return None
    return pecan.Workers(local=1 if local is None else local, remote=remote or 0)


def consume(pipe: pecan.PecanPipeline, args: argparse.Namespace, make_step: Callable[[], TrainStep]) -> int:
    """Feed every batch to the consumer that the command line asks for, print what happened, return the
    batches.

    `make_step` builds the model of ``--train``; it is not called otherwise.
    """
    step = make_step() if args.train else emulated_accelerator(args.step_time)
    print(pipe)
    count = 0
    workers = fixed_workers(args.local, args.remote)
    with pipe.iter_batches(epochs=args.epochs, workers=workers, format="numpy", debug=args.debug) as batches:
        for batch in batches:
            if count == 0:
                print("first batch:", describe(batch))
            loss = step(batch)
            count += 1
            if args.train:
                print(f"step {count}: loss {loss:.4f}", flush=True)
        print(batches.report())
    print(f"{count} batches")
    return count


def emulated_accelerator(step_time_s: float) -> TrainStep:
    """Return a step that takes `step_time_s` seconds and learns nothing."""

    def wait(batch: BatchColumns) -> float:
        time.sleep(step_time_s)
        return 0.0

    return wait


def describe(batch: BatchColumns) -> str:
    """Return columns, shapes and dtypes in words."""
    return ", ".join(f"{name} {tuple(column.shape)} {column.dtype}" for name, column in batch.items())


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {value}")
    return value
