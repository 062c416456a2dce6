"""Coordinated reads on real workers: all ranks are in one round in each step, whatever dies, and get everything."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PecanError
from pecan_ray.job import registering
from tests.ray.waiting import until
from tests.ray.workers import kill, living_worker, lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

BOUNDARIES, SIZES = [30, 60], [8, 4, 2]


def element(row: dict[str, Any]) -> dict[str, Any]:
    return {"i": row["i"], "x": np.full(1 + int(row["i"]) * 7919 % 90, row["i"], np.float32)}


def pipeline(rows: int = 1003, **options: Any) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=50)
    pipe = pecan.PecanPipeline(source, name="coordinated", seed=3).map(element)
    return pipe.bucket_by_length(BOUNDARIES, sizes=SIZES, length="x", **options)


class Step(NamedTuple):
    """What one rank got in one step."""

    worker: str
    epoch: int
    rows: list[int]
    shape: tuple[int, ...]


def begun(pipe: pecan.PecanPipeline, ranks: int, job: str, **options: Any) -> list[pecan.Batches]:
    """Begin as all ranks of a job."""
    options = {"workers": pecan.Workers(local=2), **options}

    def begin(rank: int) -> pecan.Batches:
        return pipe.iter_batches(rank=rank, world_size=ranks, job=job, coordinated=True, **options)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(begin, range(ranks)))


def read(batches: pecan.Batches, at: Callable[[int], None] = lambda step: None) -> list[Step]:
    steps = []
    for batch in batches:
        assert batches.provenance is not None
        made = batches.provenance
        steps.append(Step(made.worker, made.epoch, batch["i"].tolist(), batch["x"].shape))
        at(len(steps))
    return steps


def read_all(ranks: list[pecan.Batches], at: Callable[[int], None] = lambda step: None) -> list[list[Step]]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        first = pool.submit(read, ranks[0], at)
        others = list(pool.map(read, ranks[1:]))
        return [first.result(), *others]


def check(steps: list[list[Step]], rows: int, epochs: int = 1, left_out: int = 0) -> None:
    """Each step is one round of one worker, and everything is used once."""
    assert len({len(one) for one in steps}) == 1
    for row in zip(*steps, strict=True):
        assert len({(step.worker, step.epoch) for step in row}) == 1
        full = len({len(step.rows) for step in row}) == 1 and len(row[0].rows) in SIZES
        buckets = {int(np.searchsorted(BOUNDARIES, step.shape[1], "right")) for step in row}
        assert len(buckets) == 1 or not full or len(row[0].rows) == 2, row
        assert all(len(step.rows) <= SIZES[min(buckets)] for step in row)
    used = Counter((step.epoch, i) for one in steps for step in one for i in step.rows)
    assert max(used.values()) == 1
    assert len(used) == rows * epochs - left_out and {i for _, i in used} <= set(range(rows))


def test_all_ranks_get_batches_of_one_bucket_and_one_worker_in_each_step_of_a_finite_epoch() -> None:
    epochs = 6
    ranks = begun(pipeline(), 3, "rounds", epochs=epochs, workers=pecan.Workers(local=1, remote=1), prefetch_bytes=1)

    def both_are_there(step: int) -> None:
        if step == 1:
            until(lambda: len(ranks[0].report().workers) == 2, "the second worker has not come")

    steps = read_all(ranks, both_are_there)
    left_out = ranks[0].report().left_out_elements
    assert left_out < epochs * 3
    check(steps, 1003, epochs=epochs, left_out=left_out)
    makers = Counter(step.worker for step in steps[0])
    assert len(makers) == 2, f"only one worker made rounds: {makers}"


def test_a_worker_that_is_killed_while_rounds_are_used_loses_and_repeats_nothing() -> None:
    ranks = begun(pipeline(2003), 2, "killed", prefetch_bytes=1)

    def at(step: int) -> None:
        if step in (20, 60):
            living = [name for name in ranks[0].report().workers if name not in gone]
            gone.append(living[0])
            lose(ranks[0], living[0])

    gone: list[str] = []
    steps = read_all(ranks, at)
    check(steps, 2003, left_out=ranks[0].report().left_out_elements)
    assert ranks[0].report().workers_lost == 2 and ranks[0].report().left_out_elements < 2 * 3


def first(batches: pecan.Batches, most: int | None) -> list[int]:
    return [i for batch in islice(batches, most) for i in batch["i"].tolist()]


def test_a_run_that_is_cut_off_between_rounds_goes_on_with_other_ranks() -> None:
    ranks = begun(pipeline(), 3, "cut", prefetch_bytes=1)
    with ThreadPoolExecutor(4) as pool:
        used = Counter(i for part in pool.map(first, ranks, [11] * 3) for i in part)
        kill(living_worker("local", but=[]))
        states = [json.loads(json.dumps(one)) for one in pool.map(pecan.Batches.state_dict, ranks)]
        assert states[1:] == states[:-1], "the states of all ranks are the same"
        assert states[0]["batches"] == 11
        left_out = ranks[0].report().left_out_elements
        list(pool.map(pecan.Batches.close, ranks))
        ranks = begun(pipeline(), 4, "cut-off", prefetch_bytes=1, state=states[0])
        used.update(i for part in pool.map(first, ranks, [None] * 4) for i in part)
        left_out += ranks[0].report().left_out_elements
        list(pool.map(pecan.Batches.close, ranks))
    assert max(used.values()) == 1 and len(used) == 1003 - left_out and left_out < 4


DISAGREE = (
    ([30, 61], 2, True, "rank 1 differs from rank 0 in operator bucket_by_length"),
    (BOUNDARIES, 3, True, r"rank 1 differs from rank 0 in iter_batches\(world_size=...\): 3 instead of 2"),
    (BOUNDARIES, 2, False, r"rank 1 differs from rank 0 in iter_batches\(coordinated=...\): False instead of True"),
)
"""Boundaries, ranks and whether reads are coordinated of who comes as rank 1, and what it is told."""


def test_ranks_that_disagree_are_told_in_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tries for some seconds, since a job that was left behind would end meanwhile: here for one, side by side."""
    monkeypatch.setattr(registering, "_patience_s", lambda error: 1.0)
    job, workers = f"disagree-{os.urandom(3).hex()}", pecan.Workers(local=1)

    def come(boundaries: list[int], ranks: int, coordinated: bool, said: str) -> None:
        other = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(1003), split_rows=50), name="coordinated", seed=3)
        other = other.map(element).bucket_by_length(boundaries, sizes=SIZES, length="x")
        with pytest.raises(PecanError, match=said):
            other.iter_batches(rank=1, world_size=ranks, job=job, coordinated=coordinated, workers=workers)

    with (
        pipeline().iter_batches(rank=0, world_size=2, job=job, coordinated=True, workers=workers),
        ThreadPoolExecutor(len(DISAGREE)) as pool,
    ):
        for refused in [pool.submit(come, *one) for one in DISAGREE]:
            refused.result()
