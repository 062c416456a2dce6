"""Transforms of torchvision (v2) as steps.

What they draw is drawn by their own `make_params`, with PyTorch's generator; what they do to pixels is done by their
own `transform`, but for those that one warp takes over.  Both are what torchvision has users override.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from pecan_ray.known.steps import (
    ARRAYS,
    ConvertStep,
    CropStep,
    Cut,
    Forms,
    KnownStep,
    MirrorStep,
    ResizeStep,
    WarpStep,
    mirrored,
)
from pecan_ray.warps import ImageSize, Matrix, Placed

MODULE = "torchvision.transforms.v2"
PIXELS: Forms = ("tensor", "picture")
"""What transforms work on; arrays go through most of them as they are."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
OVERRIDDEN = ("forward", "make_params", "transform", "check_inputs")
"""What an object must not have of its own: then it does something else than its class."""


class TorchConvert(ConvertStep):
    """`ToImage`."""

    def without_copying(self, image: Any) -> Any:
        """Return an array as an image of torchvision that shares its memory."""
        tensor = sys.modules["torch"].from_numpy(image).permute(2, 0, 1)
        return sys.modules["torchvision.tv_tensors"].Image(tensor)


class TorchResize(ResizeStep):
    """`Resize`."""

    any_layout: ClassVar[bool] = True

    def target(self, size: ImageSize) -> ImageSize:
        """Return the size of what becomes of an image of that size: one number is that of the shorter side."""
        wanted = self.fn.size
        if len(wanted) == 2:
            return wanted[0], wanted[1]
        height, width = size
        if height <= width:
            return wanted[0], int(wanted[0] * width / height)
        return int(wanted[0] * height / width), wanted[0]

    def to(self, image: Any, target: ImageSize) -> Any:
        """Resize by the library."""
        return functional().resize(
            image, list(target), interpolation=self.fn.interpolation, antialias=self.fn.antialias
        )


class TorchCrop(CropStep):
    """`RandomResizedCrop`, `RandomCrop`."""

    any_layout: ClassVar[bool] = True

    def cut(self, size: ImageSize, rng: Any) -> Cut | None:
        """Have the transform draw the part."""
        drawn = self.fn.make_params([picture_of(size)])
        return Cut(drawn["top"], drawn["left"], drawn["height"], drawn["width"], drawn)

    def finish(self, image: Any, cut: Cut) -> Any:
        """Have the transform cut out all of the part, and do what it does with it."""
        return self.fn.transform(image, {**cut.drawn, "top": 0, "left": 0, "height": cut.height, "width": cut.width})


class TorchResizedCrop(TorchCrop):
    """`RandomResizedCrop`."""

    def target(self) -> ImageSize:
        """Return the size to which the part is resized."""
        return self.fn.size[0], self.fn.size[1]


class TorchCenterCrop(CropStep):
    """`CenterCrop`."""

    any_layout: ClassVar[bool] = True

    def cut(self, size: ImageSize, rng: Any) -> Cut | None:
        """Have the transform cut out of a picture that has the numbers of its rows, and of its columns, as pixels."""
        torch, (height, width) = sys.modules["torch"], self.fn.size
        if height > size[0] or width > size[1]:
            return None  # it would be padded
        rows = torch.arange(size[0]).reshape(1, -1, 1).expand(1, *size)
        columns = torch.arange(size[1]).reshape(1, 1, -1).expand(1, *size)
        top, left = (int(self.fn(numbers)[0, 0, 0]) for numbers in (rows, columns))
        return Cut(top, left, height, width)


class TorchMirror(MirrorStep):
    """`RandomHorizontalFlip`, `RandomVerticalFlip`."""

    any_layout: ClassVar[bool] = True
    axis: ClassVar[int] = 1

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Draw whether to mirror, as the transform does, and return what that does to an image of that size."""
        mirrors = not bool(sys.modules["torch"].rand(1) >= self.fn.p)
        return mirrored((self.axis,) if mirrors else (), size)


class TorchUpsideDown(TorchMirror):
    """`RandomVerticalFlip`."""

    axis: ClassVar[int] = 0


class TorchAffine(WarpStep):
    """`RandomRotation` and `RandomAffine`, about the middle."""

    def placed(self, size: ImageSize, rng: Any) -> Placed:
        """Have the transform draw, and return what that does to an image of that size."""
        drawn = self.fn.make_params([picture_of(size)])
        if "scale" not in drawn:  # a rotation, counter-clockwise
            return Placed(turned(-drawn["angle"], (0, 0), 1.0, (0, 0), size), size)
        return Placed(turned(drawn["angle"], drawn["translate"], drawn["scale"], drawn["shear"], size), size)


def turned(angle: float, moved: Sequence[float], scale: float, shear: Sequence[float], size: ImageSize) -> Matrix:
    """Return where pixels of a result come from if an image is sheared, scaled, rotated (clockwise) and moved."""
    rotation, (x, y) = math.radians(angle), (math.radians(one) for one in shear)
    cos, sin = math.cos(rotation), math.sin(rotation)
    turn = np.array([[cos, -sin], [sin, cos]])
    sheared = np.array([[1.0, 0.0], [-math.tan(y), 1.0]]) @ np.array([[1.0, -math.tan(x)], [0.0, 1.0]])
    back = np.linalg.inv(scale * turn @ sheared)
    middle = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    start = middle - back @ (middle + np.asarray(moved, np.float64))
    return np.hstack([back, start[:, np.newaxis]])


def functional() -> Any:
    """Return torchvision's functions."""
    return sys.modules[f"{MODULE}.functional"]


def picture_of(size: ImageSize) -> Any:
    """Return an image of that size that takes no memory: what transforms draw depends on its size alone."""
    torch = sys.modules["torch"]
    return sys.modules["torchvision.tv_tensors"].Image(torch.zeros(1, dtype=torch.uint8).expand(3, *size))


# --- which transforms are known ------------------------------------------------------------------------------


def torchvision_step(fn: Any) -> KnownStep | None:
    """Return the step of a transform of torchvision; None where it is none, or not known."""
    v2 = _transforms()
    for name, (kind, parameters, fits) in KNOWN_TRANSFORMS.items() if v2 is not None else ():
        if _is(fn, v2, name):
            known = _untouched(fn) and all(hasattr(fn, one) for one in parameters) and fits(fn)
            return kind(f"torchvision {name}", fn, ARRAYS if kind is TorchConvert else PIXELS) if known else None
    return None


def transforms_in(fn: Any) -> list[Any] | None:
    """Return the functions that a `Compose`, or a `Sequential` of PyTorch, calls in a row; None: it is none."""
    v2, sequential = _transforms(), getattr(getattr(sys.modules.get("torch"), "nn", None), "Sequential", None)
    if v2 is None or sequential is None or not (_is(fn, v2, "Compose") or type(fn) is sequential):
        return None
    return list(fn.transforms if _is(fn, v2, "Compose") else fn) if _untouched(fn) else None


def _transforms() -> Any:
    """Return torchvision's module of transforms, if it is imported with what is needed of it."""
    needed = (MODULE, f"{MODULE}.functional", "torchvision.tv_tensors")
    return sys.modules[MODULE] if all(name in sys.modules for name in needed) else None


def _is(fn: Any, v2: Any, name: str) -> bool:
    kind = getattr(v2, name, None)
    return kind is not None and type(fn) is kind


def _untouched(fn: Any) -> bool:
    """Tell whether an object does what its class does."""
    own = vars(fn)
    return not any(own.get(name) for name in HOOKS) and not any(name in own for name in OVERRIDDEN)


def _bilinear(fn: Any) -> bool:
    return str(getattr(fn.interpolation, "value", fn.interpolation)) in ("bilinear", "2")


def _smooth(fn: Any) -> bool:
    return _bilinear(fn) and fn.antialias is True


def _makes_params(fn: Any) -> bool:
    return callable(getattr(fn, "make_params", None)) and callable(getattr(fn, "transform", None))


def _sized(fn: Any) -> bool:
    return isinstance(fn.size, (list, tuple)) and len(fn.size) == 2


KNOWN_TRANSFORMS: dict[str, tuple[Callable[..., KnownStep], tuple[str, ...], Callable[[Any], bool]]] = {
    "ToImage": (TorchConvert, (), lambda fn: True),
    "RandomResizedCrop": (
        TorchResizedCrop,
        ("size", "scale", "ratio", "interpolation", "antialias"),
        lambda fn: _makes_params(fn) and _smooth(fn) and _sized(fn),
    ),
    "RandomCrop": (
        TorchCrop,
        ("size", "padding", "pad_if_needed"),
        lambda fn: _makes_params(fn) and fn.padding is None and fn.pad_if_needed is False,
    ),
    "CenterCrop": (TorchCenterCrop, ("size",), _sized),
    "Resize": (
        TorchResize,
        ("size", "interpolation", "max_size", "antialias"),
        lambda fn: fn.size is not None and fn.max_size is None and _smooth(fn),
    ),
    "RandomHorizontalFlip": (TorchMirror, ("p",), lambda fn: True),
    "RandomVerticalFlip": (TorchUpsideDown, ("p",), lambda fn: True),
    "RandomRotation": (
        TorchAffine,
        ("degrees", "interpolation", "expand", "center", "fill"),
        lambda fn: _makes_params(fn) and _bilinear(fn) and not fn.expand and fn.center is None and fn.fill == 0,
    ),
    "RandomAffine": (
        TorchAffine,
        ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center"),
        lambda fn: _makes_params(fn) and _bilinear(fn) and fn.center is None and fn.fill == 0,
    ),
}
"""By the name of a class: its kind of step, the public parameters that must be there, and which of their values."""
