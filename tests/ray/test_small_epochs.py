"""Epochs at their limits: fewer elements than ranks want, none at all, more batches held than files may be open."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import psutil
import pytest
import ray

import pecan_ray as pecan
from tests.long_form import some_later
from tests.ray.conftest import living_actors

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

CONFIG = pecan.Config(cpus_per_worker=0.1, reorder="off", journal="off")
SIZE = 4


def numbers(rows: int, name: str) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=5)
    return pecan.PecanPipeline(source, name=name, config=CONFIG)


def mib(pid: int) -> float:
    """Memory of a process that is its own, in MiB."""
    return float(psutil.Process(pid).memory_full_info().uss) / (1 << 20)


@pytest.mark.parametrize("engine", some_later(["python", "tensorflow"], "tensorflow"))
def test_an_endless_run_over_epochs_in_which_nothing_is_kept_ends(engine: Any) -> None:
    source = pecan.sources.Arrays(i=np.arange(1000))
    pipe = pecan.PecanPipeline(source, name="none", engine=engine, config=CONFIG).filter(lambda i: i < 0, on="i")
    with pipe.batch(SIZE).iter_batches(epochs=None, workers=pecan.Workers(local=1)) as batches:
        assert list(batches) == []
        assert batches.report().epochs == 1, "a second epoch would have been as empty"


@pytest.mark.slow
def test_memory_stays_flat_where_nothing_is_kept() -> None:
    rows, at_most_mib = 300_000, 15.0
    seen: dict[str, list[float]] = {}

    def measure() -> None:
        controller: Any = ray.get_actor("pecan:nothing:controller", namespace="pecan")
        pids = {"trainer": os.getpid(), "controller": int(ray.get(controller.process_id.remote()))}
        (worker,) = (name for name in living_actors() if ":local-" in name)
        pids["worker"] = int(ray.get(ray.get_actor(worker, namespace="pecan").placed.remote())[1])
        for who, pid in pids.items():
            seen.setdefault(who, []).append(mib(pid))

    # The first element and the last one are kept, so that memory is looked at before and after all others.
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(rows)), name="nothing", config=CONFIG)
    pipe = pipe.filter(lambda i: i in (0, rows - 1), on="i").batch(1)
    kept = []
    with pipe.iter_batches(job="nothing", workers=pecan.Workers(local=1)) as batches:
        for batch in batches:
            kept += batch["i"].tolist()
            measure()
    assert sorted(kept) == [0, rows - 1]
    for who, (before, after) in seen.items():
        assert after - before < at_most_mib, f"{who}: from {before:.0f} to {after:.0f} MiB"
