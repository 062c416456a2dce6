"""Functions that are known: the package's own, and what others have to be for that."""

from __future__ import annotations

import functools
import operator
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from pecan_ray import images
from pecan_ray.known.detect_steps import steps_of
from pecan_ray.known.steps import GeometricStep
from pecan_ray.warps import transform_image
from tests.unit.known.known_functions import photograph


class Loud(images.Resize):
    """One that does something else."""

    def __call__(self, image: Any) -> Any:
        """Shout."""
        return super().__call__(image) // 2


@pytest.mark.parametrize("fn", [images.Resize(64, 80), images.CenterCrop(70, 90)])
def test_pixels_of_a_step_come_from_where_the_operator_takes_them(fn: Any) -> None:
    picture = images.Decode()(photograph(120, 150))
    steps = steps_of(fn)
    assert steps is not None and len(steps) == 1 and isinstance(steps[0], GeometricStep)
    mine, theirs = transform_image(picture, steps[0].placed(picture.shape[:2], None)), fn(picture)
    assert mine.shape == theirs.shape
    assert np.abs(mine.astype(int) - theirs)[2:-2, 2:-2].mean() < 1.0


@pytest.mark.parametrize(
    "fn",
    [
        Loud(8, 8),
        functools.partial(cv2.resize, dsize=(60, 50)),
        functools.partial(ndimage.rotate, angle=12.0, reshape=False, order=1),
        operator.methodcaller("resize", (5, 6), Image.Resampling.BILINEAR),
        lambda image: np.fliplr(image),
        len,
        None,
    ],
)
def test_what_is_another_is_not_known(fn: Any) -> None:
    assert steps_of(fn) is None
