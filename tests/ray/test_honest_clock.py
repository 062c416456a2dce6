"""A report tells where the time went from `iter_batches()` on, and what held the run up."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.job.bottleneck import Bottleneck
from pecan_ray.observe.report import Report
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


def rest(i: int) -> int:
    """Wait for 5 ms."""
    time.sleep(0.005)
    return i


def slight(i: int) -> int:
    return i


def reported(source: Any, fn: Any, *, step_s: float = 0.0, threads: int = 1) -> Report:
    """Read two epochs of a pipeline in a loop that takes so long for a batch, and return the report."""
    config = pecan.Config(threads_per_worker=threads)
    pipe = pecan.PecanPipeline(source, name="clock", seed=1, config=config)
    pipe = pipe.map(slight, on="i").map(fn, on="i").batch(10)
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1)) as batches:
        for _ in batches:
            time.sleep(step_s)
        return batches.report()


def behind_the_start(report: Report) -> Bottleneck:
    """Return what holds up a run whose start, on a busy machine, may take longer than all else."""
    found = report.bottleneck
    assert found is not None, report
    return found.longer or found


def arrays(rows: int) -> Any:
    return pecan.sources.Arrays(i=np.arange(rows))


def test_an_operator_that_waits_is_told_from_one_that_computes() -> None:
    report = reported(arrays(300), rest)
    found = behind_the_start(report)
    assert found.operator == "rest" and "which waits" in found.text, (found, report.workers)
    assert "Config(threads_per_worker=...)" in found.text


def test_the_epoch_that_the_loop_is_in_is_not_finished_though_the_workers_are_ahead() -> None:
    pipe = pecan.PecanPipeline(arrays(40), name="ahead").batch(10)
    with pipe.iter_batches(epochs=5, workers=pecan.Workers(local=1)) as batches:
        for _ in range(6):
            next(batches)
        assert batches.report().epochs == 1
        next(batches), next(batches)
        until(lambda: batches.report().epochs == 2, "its last batch was used, and it is not finished")
        assert len(list(batches)) == 12 and batches.report().epochs == 5
