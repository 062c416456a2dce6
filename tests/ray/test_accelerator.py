"""Photographs that workers leave to the trainer's accelerator, for which its CPU stands in: on real workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import images
from tests.ray.workers import ONE_BY_ONE, lose, maker, told
from tests.unit.known.known_functions import photograph
from tests.unit.known.test_image_run import BROKEN

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

COUNT = 90
BAD = 57
EPOCHS = 5
"""A worker that has made all before it is killed is not lost."""
FILES = [photograph(60 + 10 * (n % 4), 90, n) for n in range(COUNT)]


def file_of(number: Any) -> bytes:
    return FILES[int(number)]


def file_or_broken(number: Any) -> bytes:
    return BROKEN if number == BAD else file_of(number)


def pipeline(make: Any = file_of) -> pecan.PecanPipeline:
    numbers = np.arange(COUNT)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=numbers, image=numbers), config=pecan.Config(reorder="off"))
    pipe = pipe.map(make, on="image", name="read").map(images.Decode(), on="image", name="decode")
    return pipe.map(images.RandomCrop(), on="image").map(images.Resize(32, 24), on="image").batch(8)


def workers(accelerator: Any = "always", local: int = 2) -> pecan.AutoWorkers:
    return pecan.AutoWorkers(min_local=local, max_local=local, max_remote=0, accelerator=accelerator)


def by_number(batches: list[Any]) -> dict[int, Any]:
    """Each photograph by its number; each must have come once."""
    found = [(int(i), image) for batch in batches for i, image in zip(batch["i"], batch["image"], strict=True)]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture(scope="module")
def alone() -> dict[int, Any]:
    """What workers make of all photographs that decode themselves."""
    with pipeline().iter_batches(workers=1) as batches:
        return by_number(list(batches))


def check(made: dict[int, Any], alone: dict[int, Any], but: tuple[int, ...] = ()) -> None:
    assert made.keys() == alone.keys() - set(but)
    for number, image in made.items():
        assert image.dtype == np.uint8 and image.shape == (32, 24, 3)
        assert np.abs(image.astype(int) - alone[number]).max() <= 2


@pytest.mark.parametrize("order", ["relaxed", "strict"])
def test_photographs_are_decoded_by_the_trainer_also_behind_a_killed_worker_and_a_saved_state(
    order: Any, alone: dict[int, Any]
) -> None:
    pipe = pipeline()
    with pipe.iter_batches(workers=workers(), order=order, epochs=EPOCHS, **ONE_BY_ONE) as batches:
        kept = [next(batches) for _ in range(3)]
        lose(batches, maker(batches))
        kept += [next(batches) for _ in range(2)]
        state, report = batches.state_dict(), batches.report()
    assert "decode, RandomCrop, Resize run on cpu from the start" in told(report)
    assert "batches of all workers: decode, RandomCrop, Resize run where batches arrive, on the accelerator" in told(
        report
    )
    with pipe.iter_batches(workers=workers(), order=order, epochs=EPOCHS, state=state) as batches:
        kept += list(batches)
    check(by_number(kept[: len(kept) // EPOCHS]), alone)
    assert Counter(int(i) for batch in kept for i in batch["i"]) == dict.fromkeys(range(COUNT), EPOCHS)
    full = [len(batch["i"]) for batch in kept].count(8)
    assert full == EPOCHS * (COUNT // 8), "but for the remainder batches are full"


def test_an_image_that_nobody_can_decode_is_left_out_by_its_worker_and_all_others_go_on(alone: dict[int, Any]) -> None:
    with pipeline(file_or_broken).iter_batches(workers=workers(), on_error="skip") as batches:
        made, report = by_number(list(batches)), batches.report()
    check(made, alone, but=(BAD,))
    assert report.bad_elements == 1 and len(report.workers) == 2, "nobody is replaced"
