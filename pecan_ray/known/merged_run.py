"""The steps of several operators at once."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.images import REDUCTIONS, cut_out, decoded, reduction
from pecan_ray.known.steps import (
    ConvertStep,
    CropStep,
    Cut,
    GeometricStep,
    KnownStep,
    OtherStep,
    ResizeStep,
)
from pecan_ray.part_decoding import JpegHeader, read_header
from pecan_ray.warps import (
    Draw,
    Matrix,
    Placed,
    after,
    composed,
    opencv,
    shifted,
    source_bounds,
    transform_image,
)

RunSteps: TypeAlias = "tuple[KnownStep, ...]"


class KnownRun:
    """Known functions in a row as one: some convert, those behind them move pixels, and others may follow.

    `decodes`: its input is an encoded image.  `reduces`: pixels may be others (decoded smaller, interpolated once).
    """

    draws_by_name = True
    """It is given random numbers for each name."""

    def __init__(self, steps: RunSteps, *, decodes: bool, reduces: bool) -> None:
        self.decodes, self.reduces = decodes, reduces
        self._converts = tuple(itertools.takewhile(lambda step: isinstance(step, ConvertStep), steps))
        behind = steps[len(self._converts) :]
        self._places = [step for step in behind if isinstance(step, GeometricStep)]
        self._others = behind[len(self._places) :]
        turns = any(step.warps for step in self._places)
        self._warps = reduces and turns and len(self._places) > 1
        self._may_be_view = reduces or (not turns and in_whole_numbers())

    def __call__(self, value: Any, rng: Draw) -> Any:
        """Return what becomes of an image."""
        header = read_header(value) if self.decodes else None
        if self.decodes and header is None:
            value = decoded(value)
        left: Sequence[KnownStep] = self._places
        if self._warps and (header is not None or (type(value) is np.ndarray and value.ndim in (2, 3))):
            places = self._places
            made = warp(places, value, rng) if header is None else decode_and_warp(places, value, header, rng)
            value, left = self._converted(made, rng), []
        elif header is not None:
            value, left = self._decoded(value, header, rng)
        else:
            value = self._converted(value, rng)
        for step in (*left, *self._others):
            if isinstance(step, OtherStep):
                value = as_contiguous(value)
            value = step(value, rng)
        return as_contiguous(value)

    def _decoded(self, encoded: Any, header: JpegHeader, rng: Draw) -> tuple[Any, Sequence[KnownStep]]:
        """Return what the first geometric steps make of a JPEG, and those that are left."""
        first, *behind = self._places
        cut = first.cut(header.shape, rng) if isinstance(first, CropStep) else None
        if isinstance(first, CropStep) and cut is not None:
            return self._cut_out(encoded, header, first, cut, rng)
        if isinstance(first, ResizeStep) and self.reduces:
            target = first.target(header.shape)
            smaller = decoded(encoded, reduction(header.shape, target))
            return first.to(self._converted(smaller, rng), target), behind
        return self._converted(decoded(encoded), rng), self._places

    def _cut_out(
        self, encoded: Any, header: JpegHeader, first: CropStep, cut: Cut, rng: Draw
    ) -> tuple[Any, Sequence[KnownStep]]:
        """Decode a part, smaller where a resize follows and pixels may be others."""
        behind = self._places[1:]
        resize = behind[0] if behind and isinstance(behind[0], ResizeStep) else None
        kept, wanted = (cut.height, cut.width), first.target()
        if wanted is None and resize is not None:
            wanted = resize.target(kept)
        ratio = reduction(kept, wanted) if self.reduces and wanted is not None else 1
        top, left, height, width = (round(side / ratio) for side in cut[:4])
        part = cut_out(encoded, header, (top, left, height, width), ratio)
        image = self._converted(part, rng)
        if resize is None or wanted is None or ratio == 1 or first.target() is not None:
            return first.finish(image, cut._replace(height=part.shape[0], width=part.shape[1])), behind
        return resize.to(image, wanted), behind[1:]

    def _converted(self, image: Any, rng: Draw) -> Any:
        """Convert a picture; without a copy where that leaves pixels equal."""
        for step in self._converts:
            is_bytes = type(image) is np.ndarray and image.dtype == np.uint8 and image.ndim == 3
            if isinstance(step, ConvertStep) and step.view is not None and self._may_be_view and is_bytes:
                image = step.view(image)
            else:
                image = step(image, rng)
        return image


# --- tensors, whose library whoever passes one has imported ------------------------------------------------

VECTORS = ("AVX2", "AVX512")
"""Instructions with which PyTorch resizes bytes in whole numbers, the same ones whatever their order in memory; in
fractions the last bit may differ."""


def in_whole_numbers() -> bool:
    """Tell whether PyTorch resizes bytes in whole numbers on this processor."""
    backends = getattr(sys.modules.get("torch"), "backends", None)
    ask = getattr(getattr(backends, "cpu", None), "get_cpu_capability", None)
    return ask is not None and ask() in VECTORS


def as_contiguous(value: Any) -> Any:
    """Return a tensor with its numbers in the usual order in memory; anything else as it is."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    image = getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)
    if type(value) not in (tensor, image) or value.is_contiguous():
        return value
    made = value.as_subclass(tensor).contiguous()
    return made if type(value) is tensor else sys.modules["torchvision.tv_tensors"].wrap(made, like=value)


# --- several geometric steps as one warp ---------------------------------------------------------------------

MARGIN = 2
"""Pixels (of the reduced image) that are decoded around those that are needed."""


def warp(steps: Sequence[GeometricStep], image: Any, rng: Draw) -> Any:
    """Return an image under one warp for several operators."""
    to, (top, left, height, width) = composed(steps, image.shape[:2], rng)
    return transform_image(image[top : top + height, left : left + width], to)


def decode_and_warp(steps: Sequence[GeometricStep], encoded: Any, header: JpegHeader, rng: Draw) -> Any:
    """Decode what is needed of a JPEG, at a reduced size where that has as many pixels as the result; then warp it."""
    to, part = composed(steps, header.shape, rng)
    ratio = reduction_under(to.matrix)
    matrix = reduced(after(shifted(part[0], part[1]), to.matrix), ratio)
    box = needed(matrix, to.size, part, ratio)
    # All of it lies outside, where pixels are 0.
    if min(box[2:]) < 1:
        return np.zeros((*to.size, 3), np.uint8)
    # OpenCV warps pixels of four bytes in two thirds of the time of those of three, to the same values.
    pixels = cut_out(encoded, header, box, ratio, channels=4)
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
