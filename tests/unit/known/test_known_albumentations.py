"""Transforms of Albumentations that are known: what they draw is drawn by them, and pixels are theirs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from pecan_ray import images
from pecan_ray.images import ByName
from pecan_ray.known.detect_steps import steps_of
from tests.unit.known.known_functions import at_once, found, generators, photograph, usual

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks the network whether there is a newer one
    A = pytest.importorskip("albumentations")

RUNS: dict[str, Callable[[], list[Any]]] = {
    "training": lambda: [A.RandomResizedCrop((96, 90)), A.HorizontalFlip(), A.Normalize()],
    "crop": lambda: [A.RandomCrop(200, 210), A.VerticalFlip(), A.Resize(60, 50)],
    "middle": lambda: [A.CenterCrop(201, 199), A.RandomBrightnessContrast(p=1.0)],
    "resize": lambda: [A.Resize(60, 50)],
    "turned": lambda: [
        A.RandomResizedCrop((120, 130)),
        A.HorizontalFlip(),
        A.Rotate(20, p=0.8),
        A.Affine(scale=(0.9, 1.1), shear=(-8, 8), translate_percent=0.1, p=0.7),
    ],
}
"""Makes transforms in a row: each draws from a generator of its own."""


def seeded(name: str, seed: int, composed: bool) -> list[Any]:
    """The functions of a run, whose generators begin with a seed."""
    transforms = RUNS[name]()
    for number, one in enumerate(transforms):
        one.set_random_seed(seed + number)
    if not composed:
        return [ByName(one) for one in transforms]
    # All draw from the generators of what holds them.
    whole = A.Compose(transforms)
    whole.set_random_seed(seed)
    return [ByName(whole)]


WAYS = [
    (name, reduces)
    for name in RUNS
    for known in [found([ByName(A.Compose(RUNS[name]()))])]
    for reduces in (False, True)
    if known is not None and (known.unequal if reduces else known.equal)
]


def test_what_is_done_at_once() -> None:
    equal, unequal = ({name for name, reduces in WAYS if reduces == wanted} for wanted in (False, True))
    assert equal == RUNS.keys() - {"resize"}
    assert unequal == RUNS.keys() - {"middle"}


@pytest.mark.parametrize(("name", "reduces"), WAYS)
@pytest.mark.parametrize("composed", [True, False])
def test_the_same_numbers_are_drawn_and_the_same_comes_out(name: str, reduces: bool, composed: bool) -> None:
    for seed in range(3):
        encoded = photograph(400, 500, seed)
        expected = usual(list(itertools.takewhile(steps_of, seeded(name, seed, composed))), encoded, seed)
        run = at_once(list(itertools.takewhile(steps_of, seeded(name, seed, composed))), reduces=reduces)
        made = run(encoded, generators(seed))
        assert made.shape == expected.shape and made.dtype == expected.dtype and made.flags.c_contiguous
        apart = np.abs(made.astype(float) - expected)
        assert apart.mean() <= (0.4 * expected.std() if reduces else 0), (seed, apart.mean(), expected.std())


Louder = type("Louder", (A.HorizontalFlip,), {"apply": lambda self, img, **params: 255 - img})
"""One that does something else."""


@pytest.mark.parametrize(
    "fn",
    [
        A.RandomCrop(32, 32),
        ByName(Louder()),
        ByName(A.RandomCrop(32, 32, p=0.5)),
        ByName(A.RandomResizedCrop((32, 32), interpolation=cv2.INTER_AREA)),
        ByName(A.Resize(32, 32, p=0.9)),
        ByName(A.Rotate(9, border_mode=cv2.BORDER_REFLECT)),
        ByName(A.Affine(shear=3, fit_output=True)),
        ByName(A.Compose([A.RandomCrop(32, 32)], p=0.5)),
        ByName(A.OneOf([A.RandomCrop(32, 32)])),
        ByName(A.ColorJitter()),
        ByName(lambda image: {"image": image}),
    ],
)
def test_what_is_another_is_not_known(fn: Any) -> None:
    assert steps_of(fn) is None


def test_errors_are_those_of_the_transforms() -> None:
    with pytest.raises(Exception, match="Crop size"):
        at_once([ByName(A.RandomCrop(640, 64))], reduces=False)(photograph(), generators(0))


def test_by_name_calls_by_name() -> None:
    picture = images.Decode()(photograph())
    assert np.array_equal(images.ByName(A.HorizontalFlip(p=1.0))(picture), picture[:, ::-1])
