"""A trainer that ends in one of many ways, at a moment drawn by a seed: `python endings_program.py KIND SEED`."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import ray

import pecan_ray as pecan
from pecan_ray.batches import Batches
from pecan_ray.errors import ClusterError

chance = random.Random(int(sys.argv[2]))
held: list[Any] = []
"""What is alive when the interpreter ends."""


def begin() -> Batches:
    source = pecan.sources.Arrays(i=np.arange(100_000))
    workers = pecan.Workers(local=chance.choice((1, 2)), remote=chance.choice((0, 1)) if sys.argv[3:] else 0)
    pipe = pecan.PecanPipeline(source, name="ending").map(lambda i: np.full((64, 64), i), on="i")
    batches = pipe.batch(chance.choice((4, 16)))
    return batches.iter_batches(epochs=None, workers=workers, prefetch_bytes=chance.choice((1 << 16, 1 << 24)))


def some(batches: Batches) -> Iterator[Any]:
    """Yield a few batches, at some speed."""
    pause = chance.choice((0.0, 0.01))
    for _ in range(chance.randrange(40)):
        yield next(batches)
        time.sleep(pause)


def dropped_in_a_cycle() -> None:
    """The garbage collector finds it, in whatever thread that runs."""
    circle: list[Any] = [begin()]
    circle.append(circle)
    held.extend(some(circle[0]))
    del circle
    if chance.random() < 0.5:
        gc.collect()
    held.extend([number] for number in range(100_000))


def kept() -> None:
    held.append(begin())
    held.extend(some(held[0]))


def shutdown() -> None:
    with begin() as batches:
        held.extend(some(batches))
        ray.shutdown()
    assert not ray.is_initialized()


def shutdown_midway() -> None:
    """Shut Ray down beside the loop, which must be told."""
    batches = begin()
    next(batches)
    threading.Timer(chance.random(), ray.shutdown).start()
    try:
        for batch in batches:
            held.append(batch["i"][0])
            time.sleep(0.001)
    except ClusterError as error:
        sys.stdout.write(f"told: {error}")
    batches.close()
    assert not ray.is_initialized()


def error_in_loop() -> None:
    kept()
    raise RuntimeError("the program's own")


def process_exit() -> None:
    kept()
    os._exit(7)


def killed_by(number: signal.Signals) -> None:
    batches = begin()
    next(batches)
    threading.Timer(chance.random(), os.kill, (os.getpid(), number)).start()
    for batch in batches:
        held[:] = [batch]


def endless() -> None:
    for number, _ in enumerate(begin()):
        time.sleep(0.01)
        if number == 10:
            sys.stdout.write("running\n")
            sys.stdout.flush()


ENDINGS: dict[str, Callable[[], None]] = {
    "dropped-in-a-cycle": dropped_in_a_cycle,
    "kept": kept,
    "shutdown": shutdown,
    "shutdown-midway": shutdown_midway,
    "error-in-loop": error_in_loop,
    "process-exit": process_exit,
    "sigint": partial(killed_by, signal.SIGINT),
    "sigterm": partial(killed_by, signal.SIGTERM),
    "sigkill": partial(killed_by, signal.SIGKILL),
    "endless": endless,
}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    ENDINGS[sys.argv[1]]()
