"""Coordinated reads on real workers: all ranks are in one round in each step, whatever dies, and get everything."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PecanError
from pecan_ray.job import registration
from tests.ray.workers import lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS, BOUNDARIES, SIZES = 1003, [30, 60], [8, 4, 2]


def pipeline(boundaries: list[int] = BOUNDARIES) -> pecan.PecanPipeline:
    def element(row: dict[str, Any]) -> dict[str, Any]:
        return {"i": row["i"], "x": np.full(1 + int(row["i"]) * 7919 % 90, row["i"], np.float32)}

    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=50)
    pipe = pecan.PecanPipeline(source, name="coordinated", seed=3).map(element)
    return pipe.bucket_by_length(boundaries, sizes=SIZES, length="x")


class Step(NamedTuple):
    """What one rank got in one step."""

    worker: str
    rows: list[int]
    shape: tuple[int, ...]


def test_all_ranks_are_in_one_round_in_each_step_and_killed_workers_lose_and_repeat_nothing() -> None:
    gone: list[str] = []

    def train(rank: int) -> tuple[list[Step], int]:
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "killed", "coordinated": True}
        steps = []
        with pipeline().iter_batches(workers=pecan.Workers(local=1, remote=1), prefetch_bytes=1, **options) as batches:
            for batch in batches:
                assert batches.provenance is not None
                steps.append(Step(batches.provenance.worker, batch["i"].tolist(), batch["x"].shape))
                if rank == 0 and len(steps) in (20, 50):
                    gone.append(next(name for name in batches.report().workers if name not in gone))
                    lose(batches, gone[-1])
            report = batches.report()
            assert report.workers_lost == 2
            return steps, report.left_out_elements

    with ThreadPoolExecutor(2) as pool:
        (first, left_out), (second, _) = pool.map(train, range(2))
    for round_ in zip(first, second, strict=True):
        assert len({step.worker for step in round_}) == 1
        full = len({len(step.rows) for step in round_}) == 1 and len(round_[0].rows) in SIZES
        buckets = {int(np.searchsorted(BOUNDARIES, step.shape[1], "right")) for step in round_}
        assert len(buckets) == 1 or not full or len(round_[0].rows) == 2, round_
        assert all(len(step.rows) <= SIZES[min(buckets)] for step in round_)
    used = Counter(i for step in (*first, *second) for i in step.rows)
    assert max(used.values()) == 1 and len(used) == ROWS - left_out and left_out < 2 * 3


DISAGREE = (
    ([30, 61], 2, True, "rank 1 differs from rank 0 in operator bucket_by_length"),
    (BOUNDARIES, 3, True, r"rank 1 differs from rank 0 in iter_batches\(world_size=...\): 3 instead of 2"),
    (BOUNDARIES, 2, False, r"rank 1 differs from rank 0 in iter_batches\(coordinated=...\): False instead of True"),
)
"""Boundaries, ranks and whether reads are coordinated of who comes as rank 1, and what it is told."""


def test_ranks_that_disagree_are_told_in_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tries for some seconds, since a job that was left behind would end meanwhile: here for one, side by side."""
    monkeypatch.setattr(registration, "_patience_s", lambda error: 1.0)
    job, workers = f"disagree-{os.urandom(3).hex()}", pecan.Workers(local=1)

    def come(boundaries: list[int], ranks: int, coordinated: bool, said: str) -> None:
        with pytest.raises(PecanError, match=said):
            pipeline(boundaries).iter_batches(
                rank=1, world_size=ranks, job=job, coordinated=coordinated, workers=workers
            )

    with (
        pipeline().iter_batches(rank=0, world_size=2, job=job, coordinated=True, workers=workers),
        ThreadPoolExecutor(len(DISAGREE)) as pool,
    ):
        for refused in [pool.submit(come, *one) for one in DISAGREE]:
            refused.result()
