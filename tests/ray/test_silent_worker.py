"""A worker that stands still holds up no rows in order, nor the end of the data."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.waiting import until
from tests.ray.workers import living_worker, process_of

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS, BATCH = 1000, 16
NEVER_LOST = pecan.Config(reorder="off", threads_per_worker=1, worker_timeout_s=3600.0)
"""Else the job would wait for the worker, and then replace it."""


def slow(row: Any) -> Any:
    """Take so long that both workers have rows when one is stopped."""
    time.sleep(0.01)
    return row


@pytest.mark.parametrize(
    "whole",
    [pytest.param(False, id="rows are joined"), pytest.param(True, id="rows are numbered")],
)
def test_rows_come_in_order_to_their_end_while_a_worker_stands_still(whole: bool) -> None:
    source = pecan.sources.Arrays(x=np.arange(ROWS))
    pipe = pecan.PecanPipeline(source, config=NEVER_LOST).map(slow, on="x").batch(BATCH)
    pipe = pipe.map(dict) if whole else pipe
    with pipe.iter_batches(workers=pecan.Workers(2)) as batches:
        seen: list[int] = []

        def both_work() -> bool:
            seen.extend(next(batches)["x"])
            made = batches.report().workers.values()
            return len(made) == 2 and all(worker.elements for worker in made)

        until(both_work, "a worker has not begun")
        stopped = process_of(living_worker("local", []))
        os.kill(stopped, signal.SIGSTOP)
        try:
            seen += [row for batch in batches for row in batch["x"]]
        finally:
            os.kill(stopped, signal.SIGCONT)
    assert seen == list(range(ROWS)) and batches.report().workers_lost == 0
