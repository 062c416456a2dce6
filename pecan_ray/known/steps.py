"""What known functions consist of: steps on one image, each able to say what it would do to an image of some size.

And the steps of several operators at once.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from pecan_ray.images import REDUCTIONS, cut_out, decoded, reduction
from pecan_ray.part_decoding import JpegHeader, read_header
from pecan_ray.warps import (
    Draw,
    ImageSize,
    Matrix,
    Placed,
    after,
    composed,
    opencv,
    scaled,
    shifted,
    source_bounds,
    transform_image,
)

ImageForm: TypeAlias = Literal["array", "tensor", "picture"]
"""An array of NumPy [height, width, channels], a tensor of PyTorch [channels, height, width], an image of Pillow."""
Forms: TypeAlias = "tuple[ImageForm, ...]"
ARRAYS: Forms = ("array",)


class Cut(NamedTuple):
    """The part of an image that a crop keeps."""

    top: int
    left: int
    height: int
    width: int
    drawn: Any = None
    """What its library has drawn, for `finish`."""


@dataclass(frozen=True)
class KnownStep:
    """One step of a known function."""

    name: str
    """The library's name for it."""
    fn: Any
    """It, as it is called with an image."""
    layout: Forms = ARRAYS
    """What it works on; with anything else it may do nothing."""
    wants_rng: bool = False
    """Whether it is given random numbers."""
    op: str = ""
    """The name of its operator, by which these are drawn."""

    def __call__(self, image: Any, rng: Any) -> Any:
        """Do it, as the function itself would."""
        return self.fn(image, rng=rng(self.op)) if self.wants_rng else self.fn(image)

    def numbers(self, rng: Any) -> Any:
        """Return what it draws with; None if it draws nothing, or with what its library has."""
        return rng(self.op) if self.wants_rng else None


# It is called as it is: only what stands before it may be done otherwise.
class OtherStep(KnownStep):
    """A function of which nothing is known, behind others within one operator."""


@dataclass(frozen=True, kw_only=True)
class ConvertStep(KnownStep):
    """An array to a tensor, or to an image of Pillow, with the same pixels."""

    gives: ImageForm = "tensor"
    view: Callable[[Any], Any] | None = None
    """From an array to what may share its memory; None: it is not known how."""


@dataclass(frozen=True, kw_only=True)
class GeometricStep(KnownStep):
    """Gives a pixel the value at another place.

    What a library's function does is told by functions, each of which is given it first.
    """

    warps: bool = False
    """Whether it rotates, shears or scales, so that one warp of several is worth it where this is among them."""
    place: Callable[[Any, ImageSize, Any], Placed] | None = None
    """What it does to an image of some size; None for a resize or a crop, which say so themselves."""

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Draw, and return what it does to an image of that size."""
        assert self.place is not None
        return self.place(self.fn, size, self.numbers(rng))


@dataclass(frozen=True, kw_only=True)
class ResizeStep(GeometricStep):
    """Resizes, bilinear."""

    aim: Callable[[Any, ImageSize], ImageSize]
    resize: Callable[[Any, Any, ImageSize], Any]

    def target(self, size: ImageSize) -> ImageSize:
        """Return the size of what becomes of an image of that size."""
        return self.aim(self.fn, size)

    def to(self, image: Any, target: ImageSize) -> Any:
        """Resize an image, of which a decoder has made a smaller one, to that size."""
        return self.resize(self.fn, image, target)

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Return what it does to an image of that size."""
        target = self.target(size)
        return Placed(scaled(size, target), target)


@dataclass(frozen=True, kw_only=True)
class CropStep(GeometricStep):
    """Keeps a part, and may resize that."""

    draw: Callable[[Any, ImageSize, Any], Cut | None]
    aim: Callable[[Any], ImageSize] | None = None
    rest: Callable[[Any, Any, Cut], Any] | None = None

    def cut(self, size: ImageSize, rng: Any) -> Cut | None:
        """Draw the part that is kept of an image of that size; None where it is no part (the image is too small)."""
        return self.draw(self.fn, size, self.numbers(rng))

    def target(self) -> ImageSize | None:
        """Return the size to which the part is resized; None where it is not."""
        return None if self.aim is None else self.aim(self.fn)

    def finish(self, image: Any, cut: Cut) -> Any:
        """Do to the part alone what comes behind cutting it out; a decoder may have made it smaller."""
        return image if self.rest is None else self.rest(self.fn, image, cut)

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Draw, and return what it does to an image of that size."""
        cut = self.cut(size, rng)
        if cut is None:
            raise ValueError(f"an image of {size[0]} x {size[1]} is smaller than what {self.name} cuts out")
        kept, target = (cut.height, cut.width), self.target()
        matrix: Matrix = shifted(cut.top, cut.left)
        if target is not None:
            matrix = after(matrix, scaled(kept, target))
        return Placed(matrix, target or kept, cut[:4])


# --- the steps of several operators at once ------------------------------------------------------------------


class KnownRun:
    """Known functions in a row as one: some convert, those behind them move pixels, and others may follow.

    `decodes`: its input is an encoded image.  `reduces`: pixels may be others (decoded smaller, interpolated once).
    """

    draws_by_name = True
    """It is given random numbers for each name."""

    def __init__(self, steps: tuple[KnownStep, ...], *, decodes: bool, reduces: bool) -> None:
        self.decodes, self.reduces, self.steps = decodes, reduces, steps
        self._converts = tuple(itertools.takewhile(lambda step: isinstance(step, ConvertStep), steps))
        behind = steps[len(self._converts) :]
        self.places = [step for step in behind if isinstance(step, GeometricStep)]
        self._others = behind[len(self.places) :]
        turns = any(step.warps for step in self.places)
        # One step alone costs one pass over the pixels either way.
        self.warps = reduces and turns and len(self.places) > 1
        self._may_be_view = reduces or (not turns and in_whole_numbers())

    def __call__(self, value: Any, rng: Draw) -> Any:
        """Return what becomes of an image."""
        header = read_header(value) if self.decodes else None
        if self.decodes and header is None:
            value = decoded(value)
        left: Sequence[KnownStep] = self.places
        if self.warps and (header is not None or (type(value) is np.ndarray and value.ndim in (2, 3))):
            places = self.places
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
        first, *behind = self.places
        cut = first.cut(header.shape, rng) if isinstance(first, CropStep) else None
        if isinstance(first, CropStep) and cut is not None:
            return self._cut_out(encoded, header, first, cut, rng)
        if isinstance(first, ResizeStep) and self.reduces:
            target = first.target(header.shape)
            smaller = decoded(encoded, reduction(header.shape, target))
            return first.to(self._converted(smaller, rng), target), behind
        return self._converted(decoded(encoded), rng), self.places

    def _cut_out(
        self, encoded: Any, header: JpegHeader, first: CropStep, cut: Cut, rng: Draw
    ) -> tuple[Any, Sequence[KnownStep]]:
        """Decode a part, smaller where a resize follows and pixels may be others."""
        behind = self.places[1:]
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
    # Places are those of the middles of pixels: the first small pixel is in the middle of `ratio` large ones.
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
