"""Images that are decoded later: a JPEG, and what is to be done to its pixels, with all that was drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pecan_ray import images
from pecan_ray.known.jpeg_tables import has_all_tables
from pecan_ray.known.steps import CropStep, GeometricStep, KnownStep, ResizeStep
from pecan_ray.part_decoding import Pixels, read_header
from pecan_ray.warps import Draw, ImageSize, RandomFlip


class KeptPart(NamedTuple):
    """Keep a part."""

    top: int
    left: int
    height: int
    width: int


class NewSize(NamedTuple):
    """Resize, bilinear."""

    height: int
    width: int


class Mirrored(NamedTuple):
    """Mirror left and right."""


PixelStep: TypeAlias = KeptPart | NewSize | Mirrored
STEPS: dict[str, Callable[..., PixelStep]] = {kind.__name__: kind for kind in (KeptPart, NewSize, Mirrored)}
HEAD_BYTES = 4
"""Before a packed image: how long its head is."""


@dataclass(frozen=True)
class EncodedImage:
    """An image on its way to where it is decoded."""

    data: bytes
    """A JPEG, or pixels where `steps` is None."""
    size: ImageSize
    """Of the image behind all steps."""
    stored: ImageSize
    """As the file says."""
    steps: tuple[PixelStep, ...] | None = ()
    """None: the data are pixels, behind all steps."""

    def packed(self) -> bytes:
        """Return it as bytes, which any column of a batch can hold."""
        steps = None if self.steps is None else [(type(step).__name__, *step) for step in self.steps]
        # No pickle: whoever can write to the way of a batch's columns must not run code here.
        head = json.dumps((self.size, self.stored, steps)).encode()
        return len(head).to_bytes(HEAD_BYTES, "little") + head + self.data

    @classmethod
    def unpacked(cls, packed: bytes) -> EncodedImage:
        """Return what was packed."""
        behind = HEAD_BYTES + int.from_bytes(packed[:HEAD_BYTES], "little")
        size, stored, steps = json.loads(packed[HEAD_BYTES:behind])
        made = None if steps is None else tuple(STEPS[name](*numbers) for name, *numbers in steps)
        return cls(packed[behind:], tuple(size), tuple(stored), made)

    @property
    def pixels(self) -> Pixels:
        """What the data are, if they are pixels."""
        return np.frombuffer(self.data, np.uint8).reshape(*self.size, 3)


def encoded_image(value: Any) -> EncodedImage | None:
    """Return a JPEG that every decoder takes (baseline, 8 bit, gray or YCbCr, whole) to be decoded later.

    None for anything else: it is decoded where it is, and fails there if it cannot be.
    """
    header = read_header(value)
    if header is None or header.sampling is None or header.is_rgb or not has_all_tables(value):
        return None
    return EncodedImage(bytes(value), header.shape, header.shape)


def of_pixels(image: Pixels) -> EncodedImage:
    """Return an image that was decoded, so that it travels among others that were not."""
    size = image.shape[0], image.shape[1]
    return EncodedImage(np.ascontiguousarray(image).tobytes(), size, size, None)


MOVABLE = (images.RandomCrop, images.CenterCrop, images.Resize, RandomFlip)


def is_movable(step: KnownStep) -> bool:
    """Tell whether a step can be done later, behind the decoder."""
    return type(step.fn) in MOVABLE


def with_step(image: EncodedImage, step: GeometricStep, rng: Draw) -> EncodedImage:
    """Return an image with one more step, which draws what it draws now; raises what it raises of such an image."""
    made: PixelStep
    if isinstance(step, CropStep):
        cut = step.cut(image.size, rng)
        assert cut is not None, "the package's crops always keep a part, or raise"
        made = KeptPart(*cut[:4])
    elif isinstance(step, ResizeStep):
        made = NewSize(*step.target(image.size))
    elif step.placed(image.size, rng).matrix[0, 0] > 0:
        return image  # it was drawn not to mirror
    else:
        return replace(image, steps=(*(image.steps or ()), Mirrored()))
    return replace(image, steps=(*(image.steps or ()), made), size=(made.height, made.width))
