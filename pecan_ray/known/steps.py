"""What known functions consist of: steps on one image, each able to say what it would do to an image of some size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from pecan_ray.warps import ImageSize, Matrix, Placed, after, scaled, shifted

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


LEAST_SCALE = 3 / 4
"""A warp that may make an image smaller than that is not known: one warp would skip the coarse image in between."""
