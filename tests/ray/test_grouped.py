"""Batches of one group on real workers: few rests, equally many steps for each rank, and every element comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.workers import lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

IMAGES, SIZE, RANKS = 240, 8, 2


def aspect(number: int) -> int:
    return number * 7919 % 17 % 3


def detection(tail: Any, name: str) -> pecan.PecanPipeline:
    def load(row: dict[str, Any]) -> dict[str, Any]:
        number = int(row["i"])
        return {"i": number, "image": np.zeros((8 + aspect(number), 8, 3), np.uint8), "boxes": np.ones((number % 4, 4))}

    def lists(images: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: [image[name] for image in images] for name in images[0]}

    source = pecan.sources.Arrays(i=np.arange(IMAGES), split_rows=10)
    pipe = pecan.PecanPipeline(source, name=name, seed=3).shuffle(60).map(load)
    return pipe.group_by(lambda image: aspect(image["i"]), SIZE, tail=tail, collate=lists)


def torchvisions_batches(rank: int, epoch: int) -> Iterator[list[int]]:
    """Batches of torchvision's `GroupedBatchSampler` over a `DistributedSampler`."""
    order = np.random.default_rng(epoch).permutation(IMAGES)[rank::RANKS]
    groups: dict[int, list[int]] = {}
    seen: dict[int, list[int]] = {}
    steps = len(order) // SIZE
    for number in order.tolist():
        groups.setdefault(aspect(number), []).append(number)
        seen.setdefault(aspect(number), []).append(number)
        if len(groups[aspect(number)]) == SIZE:
            yield groups.pop(aspect(number))
            steps -= 1
    for group, rows in sorted(groups.items(), key=lambda one: -len(one[1]))[:steps]:
        yield (rows + seen[group] * SIZE)[:SIZE]


def test_detection_on_two_ranks_takes_torchvisions_steps_and_loses_no_image_with_a_worker() -> None:
    def train(rank: int) -> list[Any]:
        options: dict[str, Any] = {"rank": rank, "world_size": RANKS, "job": "detection", "epochs": 2}
        batches_of: list[Any] = [[], []]
        with detection("fill", "detection").iter_batches(
            workers=pecan.Workers(local=1, remote=1), **options
        ) as batches:
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
    for epoch in range(2):
        steps = [len(batches[epoch]) for batches in ranks]
        theirs = [list(torchvisions_batches(rank, epoch)) for rank in range(RANKS)]
        assert len(set(steps)) == 1 and steps[0] - max(map(len, theirs)) in (0, 1, 2), "one rest for each of 3 groups"
        images = [image for batches in ranks for batch in batches[epoch] for image in set(batch)]
        assert sorted(images) == list(range(IMAGES)), "each comes in one batch, perhaps several times in it"
    assert all(len({aspect(number) for number in batch}) == 1 for rank in theirs for batch in rank)


@pytest.mark.parametrize("tail", ["keep", "merge", "drop"])
def test_groups_go_on_from_a_state_on_other_ranks_without_repeating_an_image(tail: str) -> None:
    def rest(rank: int) -> tuple[list[list[int]], int]:
        options: dict[str, Any] = {"rank": rank, "world_size": RANKS, "job": f"second-{tail}", "state": state}
        with detection(tail, tail).iter_batches(workers=pecan.Workers(local=2), **options) as batches:
            return [batch["i"] for batch in batches], batches.report().left_out_elements

    used: list[Any] = []
    with detection(tail, tail).iter_batches(workers=pecan.Workers(local=2)) as batches:
        for batch in batches:
            used.append(batch["i"])
            if len(used) == 9:
                state = batches.state_dict()
                break
    with ThreadPoolExecutor(RANKS) as pool:
        (first, left_out), (second, _) = pool.map(rest, range(RANKS))
    assert len(first) == len(second)
    used += first + second
    counts = Counter(number for batch in used for number in batch)
    assert max(counts.values()) == 1 and len(counts) == IMAGES - left_out
    assert left_out < (3 * SIZE + SIZE if tail == "drop" else RANKS)
    mixed = sum(len({aspect(number) for number in batch}) > 1 for batch in used)
    short = sum(len(batch) < SIZE for batch in used)
    assert (mixed == 0) == (tail != "merge") and short <= {"keep": 4, "merge": 2, "drop": 0}[tail]
