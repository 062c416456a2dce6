"""Batches of one group, and of one bucket for all ranks in a step, on real workers: every element comes."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.pipelines import TWO
from tests.ray.workers import ONE_BY_ONE, lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

IMAGES, SIZE, RANKS, GROUPS = 240, 8, 2, 3


def aspect(number: int) -> int:
    return number * 7919 % 17 % GROUPS


def detection() -> pecan.PecanPipeline:
    def load(row: dict[str, Any]) -> dict[str, Any]:
        number = int(row["i"])
        return {"i": number, "image": np.zeros((8 + aspect(number), 8, 3), np.uint8), "boxes": np.ones((number % 4, 4))}

    def lists(images: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: [image[name] for image in images] for name in images[0]}

    source = pecan.sources.Arrays(i=np.arange(IMAGES), split_rows=10)
    pipe = pecan.PecanPipeline(source, name="detection", seed=3).shuffle(60).map(load)
    return pipe.group_by(lambda image: aspect(image["i"]), SIZE, tail="fill", collate=lists)


def test_detection_on_two_ranks_takes_equally_many_steps_and_loses_no_image_with_a_worker() -> None:
    def train(rank: int) -> list[Any]:
        batches_of: list[Any] = [[], []]
        options: dict[str, Any] = {"rank": rank, "world_size": RANKS, "job": "detection", "epochs": 2}
        with detection().iter_batches(workers=TWO, **options, **ONE_BY_ONE) as batches:
            for batch in batches:
                assert batches.provenance is not None
                batches_of[batches.provenance.epoch].append(batch["i"])
                assert len({image.shape for image in batch["image"]}) == 1 and len(batch["boxes"]) == SIZE
                if rank == 0 and sum(map(len, batches_of)) == 5:
                    lose(batches, next(iter(batches.report().workers)))
            report = batches.report()
            assert (report.workers_lost, report.left_out_elements) == (1, 0)
        return batches_of

    with ThreadPoolExecutor(RANKS) as pool:
        ranks = list(pool.map(train, range(RANKS)))
    least = IMAGES // SIZE // RANKS
    for epoch in range(2):
        first, second = (len(batches[epoch]) for batches in ranks)
        assert first == second and least <= first <= least + GROUPS, "one rest for each group"
        images = [image for batches in ranks for batch in batches[epoch] for image in set(batch)]
        assert sorted(images) == list(range(IMAGES)), "each comes in one batch, perhaps several times in it"


ROWS, BOUNDARIES, SIZES = 1003, [30, 60], [8, 4, 2]


class Step(NamedTuple):
    """What one rank got in one step."""

    worker: str
    rows: list[int]
    shape: tuple[int, ...]


def coordinated() -> pecan.PecanPipeline:
    def element(row: dict[str, Any]) -> dict[str, Any]:
        return {"i": row["i"], "x": np.full(1 + int(row["i"]) * 7919 % 90, row["i"], np.float32)}

    source = pecan.sources.Arrays(i=np.arange(ROWS), split_rows=50)
    pipe = pecan.PecanPipeline(source, name="coordinated", seed=3).map(element)
    return pipe.bucket_by_length(BOUNDARIES, sizes=SIZES, length="x")


def test_ranks_are_in_one_bucket_in_each_step_and_killed_workers_lose_and_repeat_nothing() -> None:
    gone: list[str] = []

    def train(rank: int) -> tuple[list[Step], int]:
        options: dict[str, Any] = {"rank": rank, "world_size": RANKS, "job": "coordinated", "coordinated": True}
        steps = []
        with coordinated().iter_batches(workers=TWO, **options, **ONE_BY_ONE) as batches:
            for batch in batches:
                assert batches.provenance is not None
                steps.append(Step(batches.provenance.worker, batch["i"].tolist(), batch["x"].shape))
                if rank == 0 and len(steps) in (20, 50):
                    gone.append(next(name for name in batches.report().workers if name not in gone))
                    lose(batches, gone[-1])
            report = batches.report()
            assert report.workers_lost == 2
            return steps, report.left_out_elements

    with ThreadPoolExecutor(RANKS) as pool:
        (first, left_out), (second, _) = pool.map(train, range(RANKS))
    for round_ in zip(first, second, strict=True):
        assert len({step.worker for step in round_}) == 1
        full = len({len(step.rows) for step in round_}) == 1 and len(round_[0].rows) in SIZES
        buckets = {int(np.searchsorted(BOUNDARIES, step.shape[1], "right")) for step in round_}
        assert len(buckets) == 1 or not full or len(round_[0].rows) == 2, round_
        assert all(len(step.rows) <= SIZES[min(buckets)] for step in round_)
    used = Counter(i for step in (*first, *second) for i in step.rows)
    assert max(used.values()) == 1 and len(used) == ROWS - left_out and left_out < 2 * 3
