"""One side in a process of its own: it starts, then measures whenever the harness asks, and is idle in between.

Commands come as lines of JSON on standard input, answers go to the file descriptor named on the command line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.recipe import BatchIterator, shapes_of

SendAnswer = Callable[..., None]

WAITS = 10
LONGEST_S = 15.0
"""A window holds so many of its longest waits, if it does not become longer than that: of a side whose batches come in
bursts a short one counts one burst too many, or none."""


@dataclass(frozen=True)
class PeerWindow:
    """What was taken between two batches."""

    elements: int
    bytes: int
    batches: int
    seconds: float
    longest_wait_s: float


def window(batches: BatchIterator, warm_s: float, seconds: float, warm: Callable[[], None]) -> PeerWindow:
    """Take batches for `warm_s`, which empties what waited; tell; then count those of about `seconds`.

    It begins and ends with the arrival of a batch, and is longer where the trainer waits for long.
    """
    clock = time.perf_counter
    end = clock() + warm_s
    batch = next(batches)
    while clock() < end:
        batch = next(batches)
    warm()
    began = last = clock()
    elements = nbytes = count = 0
    longest = 0.0
    while last - began < max(seconds, min(WAITS * longest, LONGEST_S)):
        batch = next(batches)
        now = clock()
        longest, last = max(longest, now - last), now
        columns = list(batch.values())
        elements += len(columns[0])
        nbytes += sum(column.nbytes for column in columns)
        count += 1
    return PeerWindow(elements, nbytes, count, last - began, longest)


def start(
    module: str, function: str, case: str, data: str, options: dict[str, Any]
) -> tuple[BatchIterator, dict[str, Any]]:
    """Build a side's pipeline and take its first batch; return the pipeline, and how long that took."""
    began = time.perf_counter()
    side = importlib.import_module(module)
    recipe = importlib.import_module("benchmarks.peers.cases").by_key(case).recipe(data)
    if hasattr(side, "prepare"):
        side.prepare(**options)
    prepared = time.perf_counter()
    batches: BatchIterator = getattr(side, function)(recipe, **options)
    first = next(batches)
    done = time.perf_counter()
    facts = {
        "shapes": shapes_of(first),
        "prepare_s": prepared - began,
        "first_batch_s": done - prepared,
        "note": getattr(side, "NOTE", ""),
    }
    return batches, facts


def main() -> None:
    """Serve the harness until it says stop, or is gone."""
    request = json.loads(sys.argv[1])
    answers = os.fdopen(request.pop("answers"), "w", buffering=1)

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers)

    try:
        batches, facts = start(**request)
        answer(event="ready", **facts)
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "stop":
                break
            taken = window(batches, command["warm_s"], command["seconds"], lambda: answer(event="warm"))
            answer(event="done", **vars(taken))
        close = getattr(batches, "close", None)
        if close is not None:
            close()
    except ImportError as error:
        traceback.print_exc()
        answer(event="missing", error=f"{type(error).__name__}: {error}")
    except BaseException as error:
        traceback.print_exc()
        answer(event="failed", error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    finally:
        _leave_ray()


def _leave_ray() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


if __name__ == "__main__":
    main()
