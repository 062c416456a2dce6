"""The steps of several operators at once."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.images import REDUCTIONS, cut_out, decoded, jpeg_shape, reduction
from pecan_ray.known.steps import (
    ConvertStep,
    CropStep,
    Cut,
    GeometricStep,
    KnownStep,
    MirrorStep,
    OtherStep,
    ResizeStep,
)
from pecan_ray.warps import (
    Draw,
    ImageSize,
    Matrix,
    Placed,
    after,
    composed,
    opencv,
    shifted,
    source_bounds,
    transform_image,
)

RunSteps: TypeAlias = "tuple[tuple[str, KnownStep], ...]"
"""Names of operators, by which they draw, and their steps."""


class KnownRun:
    """Known functions in a row as one.

    `decodes`: its input is an encoded image.  `reduces`: pixels may be others (decoded smaller, interpolated once).
    """

    draws_by_name = True
    """It is given random numbers for each name."""

    def __init__(self, steps: RunSteps, *, decodes: bool, reduces: bool) -> None:
        self.steps, self.decodes, self.reduces = steps, decodes, reduces
        only = [step for _, step in steps]
        self._convert_count = len(list(itertools.takewhile(lambda step: isinstance(step, ConvertStep), only)))
        behind = only[self._convert_count :]
        self._geometric_steps = len(list(itertools.takewhile(lambda step: isinstance(step, GeometricStep), behind)))
        self._warps = (
            reduces
            and self._geometric_steps > 1
            and any(getattr(step, "warps", False) for step in self._steps_in_place())
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # What `__init__` counts follows from the steps.
        return _known_run, (self.steps, self.decodes, self.reduces)

    def __call__(self, value: Any, rng: Draw) -> Any:
        """Return what becomes of an image."""
        shape = jpeg_shape(value) if self.decodes else None
        if self.decodes and shape is None:
            value = decoded(value)
        if self._warps and (shape is not None or (type(value) is np.ndarray and value.ndim in (2, 3))):
            named = self.steps[self._convert_count : self._convert_count + self._geometric_steps]
            made = warp(named, value, rng) if shape is None else decode_and_warp(named, value, shape, rng)
            value, done = self._converted(made, rng, others_may_see=False), len(named)
        elif shape is not None:
            value, done = self._decoded(value, shape, rng)
        else:
            value, done = (self._converted(value, rng, others_may_see=not self._steps_in_place()), 0)
        return self._finished(value, self.steps[self._convert_count + done :], rng)

    def _steps_in_place(self) -> list[Any]:
        return [step for _, step in self.steps[self._convert_count : self._convert_count + self._geometric_steps]]

    def _decoded(self, encoded: Any, shape: tuple[int, int], rng: Draw) -> tuple[Any, int]:
        """Return what the first geometric steps make of a JPEG, and how many they are."""
        places = self._steps_in_place()
        first = places[0] if places else None
        name = self.steps[self._convert_count][0] if places else ""
        if isinstance(first, CropStep) and (cut := first.cut(shape, _draw(first, name, rng))):
            return self._cut_out(encoded, first, cut, rng)
        if isinstance(first, ResizeStep) and self.reduces:
            target = first.target(shape)
            return first.to(self._converted(decoded(encoded, reduction(shape, target)), rng), target), 1
        return self._converted(decoded(encoded), rng), 0

    def _cut_out(self, encoded: Any, first: CropStep, cut: Cut, rng: Draw) -> tuple[Any, int]:
        """Decode a part, smaller where a resize follows and pixels may be others."""
        behind = self.steps[self._convert_count + 1 : self._convert_count + self._geometric_steps]
        mirrors, resize = mirror_steps_and_resize([step for _, step in behind])
        kept, wanted = (cut.height, cut.width), first.target()
        if wanted is None and resize is not None:
            wanted = resize.target(kept)
        ratio = reduction(kept, wanted) if self.reduces and wanted is not None else 1
        box = tuple(round(side / ratio) for side in cut[:4])
        part = cut_out(encoded, (box[0], box[1], box[2], box[3]), ratio)
        image = self._converted(part, rng)
        if resize is None or wanted is None or ratio == 1 or first.target() is not None:
            return first.finish(image, cut._replace(height=part.shape[0], width=part.shape[1])), 1
        for name, step in behind[:mirrors]:
            image = step(image, _draw(step, name, rng))
        return resize.to(image, wanted), mirrors + 2

    def _converted(self, image: Any, rng: Draw, *, others_may_see: bool = False) -> Any:
        """Convert a picture; without a copy where nothing but known steps is given the result."""
        for name, step in self.steps[: self._convert_count]:
            may_be_a_view = self.reduces or any_layout_is_equal(self._steps_in_place())
            if isinstance(step, ConvertStep) and may_be_a_view and not others_may_see and _is_byte_image(image):
                image = step.apply_without_copy(image)
            else:
                image = step(image, _draw(step, name, rng))
        return image

    def _finished(self, value: Any, steps: RunSteps, rng: Draw) -> Any:
        """Do the other steps."""
        for name, step in steps:
            if isinstance(step, OtherStep):
                value = as_contiguous(value)
            value = step(value, _draw(step, name, rng))
        return as_contiguous(value)


def mirror_steps_and_resize(steps: Sequence[KnownStep]) -> tuple[int, ResizeStep | None]:
    """Return how many steps mirror before a resize, and that; None where there is none behind them."""
    mirrors = len(list(itertools.takewhile(lambda step: isinstance(step, MirrorStep) and not step.warps, steps)))
    behind = steps[mirrors] if mirrors < len(steps) else None
    return mirrors, behind if isinstance(behind, ResizeStep) else None


def _draw(step: KnownStep, name: str, rng: Draw) -> Any:
    """Return what a step draws with, by its operator's name; None for one that draws nothing."""
    return rng(name) if step.wants_rng else None


def _known_run(steps: RunSteps, decodes: bool, reduces: bool) -> KnownRun:
    return KnownRun(steps, decodes=decodes, reduces=reduces)


def _is_byte_image(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype == np.uint8 and value.ndim == 3


# --- tensors, whose library whoever passes one has imported ------------------------------------------------

VECTORS = ("AVX2", "AVX512")
"""Instructions with which PyTorch resizes bytes in whole numbers, the same ones in either layout."""


def any_layout_is_equal(steps: Sequence[Any]) -> bool:
    """Tell whether steps give the same pixels, whatever the order of an image's bytes in memory.

    Moving pixels does, and so does a resize of PyTorch in whole numbers; in fractions the last bit may differ.
    """
    return all(getattr(step, "any_layout", False) for step in steps) and in_whole_numbers()


def in_whole_numbers() -> bool:
    """Tell whether PyTorch resizes bytes in whole numbers on this processor."""
    backends = getattr(sys.modules.get("torch"), "backends", None)
    ask = getattr(getattr(backends, "cpu", None), "get_cpu_capability", None)
    return ask is not None and ask() in VECTORS


def as_contiguous(value: Any) -> Any:
    """Return a tensor with its numbers in the usual order in memory; anything else as it is."""
    return value if not _is_image(value) or value.is_contiguous() else like(plain(value).contiguous(), value)


def like(tensor: Any, other: Any) -> Any:
    """Return a tensor of the same class as another one."""
    if type(other) is sys.modules["torch"].Tensor:
        return tensor
    return sys.modules["torchvision.tv_tensors"].wrap(tensor, like=other)


def plain(tensor: Any) -> Any:
    """Return a tensor without a class of its own."""
    return tensor.as_subclass(sys.modules["torch"].Tensor)


def _is_image(value: Any) -> bool:
    kinds = (
        getattr(sys.modules.get("torch"), "Tensor", None),
        getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None),
    )
    return type(value) in kinds


# --- several geometric steps as one warp ---------------------------------------------------------------------

MARGIN = 2
"""Pixels (of the reduced image) that are decoded around those that are needed."""


def warp(steps: RunSteps, image: Any, rng: Draw) -> Any:
    """Return an image under one warp for several operators."""
    to, (top, left, height, width) = composed(steps, image.shape[:2], rng)
    return transform_image(image[top : top + height, left : left + width], to)


def decode_and_warp(steps: RunSteps, encoded: Any, shape: ImageSize, rng: Draw) -> Any:
    """Decode what is needed of a JPEG, at a reduced size where that has as many pixels as the result; then warp it."""
    to, part = composed(steps, shape, rng)
    ratio = reduction_under(to.matrix)
    matrix = reduced(after(shifted(part[0], part[1]), to.matrix), ratio)
    box = needed(matrix, to.size, part, ratio)
    # All of it lies outside, where pixels are 0.
    if min(box[2:]) < 1:
        return np.zeros((*to.size, 3), np.uint8)
    # OpenCV warps pixels of four bytes in two thirds of the time of those of three, to the same values.
    pixels = cut_out(encoded, box, ratio, channels=4)
    made = transform_image(pixels, Placed(after(shifted(-box[0], -box[1]), matrix), to.size))
    # Where the whole was decoded there are three all the same.
    return made if made.shape[2] == 3 else opencv().cvtColor(made, opencv().COLOR_RGBA2RGB)


def reduction_under(matrix: Matrix) -> int:
    """Return by how much an image may be decoded smaller and still have a pixel for each of the result, either way."""
    apart = min(math.hypot(*matrix[:, 0]), math.hypot(*matrix[:, 1]))
    return next((ratio for ratio in REDUCTIONS if ratio <= apart), 1)


def reduced(matrix: Matrix, ratio: int) -> Matrix:
    """Return the places in an image at 1/`ratio` of its size."""
    # Places are those of the middles of pixels: the first small pixel is in the middle of the first `ratio`
    # large ones.
    return np.asarray(matrix / ratio + np.array([[0.0, 0.0, 0.5 / ratio - 0.5]] * 2))


def needed(matrix: Matrix, size: tuple[int, int], part: Sequence[int], ratio: int) -> tuple[int, int, int, int]:
    """Return what is to be decoded of a part of an image, at 1/`ratio` of its size: top, left, height, width."""
    first_row, last_row, first_column, last_column = source_bounds(matrix, size)
    bounds = [round(side / ratio) for side in (part[0], part[1], part[0] + part[2], part[1] + part[3])]
    top = max(bounds[0], math.floor(first_row) - MARGIN)
    left = max(bounds[1], math.floor(first_column) - MARGIN)
    bottom = min(bounds[2], math.ceil(last_row) + MARGIN + 1)
    right = min(bounds[3], math.ceil(last_column) + MARGIN + 1)
    return top, left, bottom - top, right - left
