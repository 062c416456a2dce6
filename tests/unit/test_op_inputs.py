"""What single operators are given in other orders: which are asked what they make of it, and which are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_inputs import moves_pixels
from pecan_ray.images import CenterCrop, RandomCrop, Resize
from pecan_ray.plan.operators import Filter, Map
from pecan_ray.warps import RandomFlip, RandomRotate, RandomShear

BRIGHT_AND_DARK = np.random.default_rng(0).choice([0, 255], (96, 80, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    "op",
    [
        RandomFlip(1.0),
        RandomRotate((-30.0, 30.0)),
        RandomShear((-0.3, 0.3)),
        RandomCrop((0.2, 0.9)),
        CenterCrop(40, 40),
        Resize(131, 57),
        Resize(20, 24),
    ],
    ids=lambda op: type(op).__name__,
)
def test_operators_that_move_pixels_do_so_alike_in_bytes_and_floats(op: Callable[..., Any]) -> None:
    draws = "Random" in type(op).__name__
    given = [BRIGHT_AND_DARK, BRIGHT_AND_DARK.astype(np.float32)]
    whole, exact = (op(one, **({"rng": np.random.default_rng(1)} if draws else {})) for one in given)
    assert (whole.dtype, exact.dtype) == (np.uint8, np.float32) and whole.shape == exact.shape
    assert exact.min() >= 0.0 and exact.max() <= 255.0, "nothing would be clipped"
    assert np.abs(whole - exact).max() <= 1.0


class Brighter(Resize):
    """A resize of the user's own, which clips bytes and not floats."""

    def __call__(self, image: Any) -> Any:
        made = super().__call__(image).astype(np.float32) * 2
        return np.minimum(made, 255).astype(np.uint8) if image.dtype == np.uint8 else made


@pytest.mark.parametrize(("resize", "known"), [(Resize(64, 64), True), (Brighter(64, 64), False)])
def test_only_the_librarys_own_are_known(resize: Resize, known: bool) -> None:
    sample = OpSample(Map(name="resize", fn=resize, on="image"))
    assert moves_pixels(sample) is known
    assert not moves_pixels(replace(sample, op=Filter(name="some", fn=bool, on="image")))
