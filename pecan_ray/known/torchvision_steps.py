"""Transforms of torchvision (v2) as steps.

What they draw is drawn by their own `make_params`, with PyTorch's generator; what they do to pixels is done by their
own `transform`, but for those that one warp takes over.  Both are what torchvision has users override.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pecan_ray.known.steps import ARRAYS, ConvertStep, CropStep, Cut, Forms, GeometricStep, KnownStep, ResizeStep
from pecan_ray.warps import ImageSize, Matrix, Placed, mirrored

MODULE = "torchvision.transforms.v2"
PIXELS: Forms = ("tensor", "picture")
"""What transforms work on; arrays go through most of them as they are."""
LEAST_SCALE = 3 / 4
"""A warp that may make an image smaller than that is not known: one warp would skip the coarse image in between."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
DRAWS = ("make_params", "transform")
"""Methods by which a random transform draws, and then does it."""
OVERRIDDEN = ("forward", "make_params", "transform", "check_inputs")
"""What an object must not have of its own: then it does something else than its class."""


def _as_view(image: Any) -> Any:
    """Return an array as an image of torchvision that shares its memory."""
    # Channels first, as torchvision has them, by strides and not by a copy.
    tensor = sys.modules["torch"].from_numpy(image).permute(2, 0, 1)
    return sys.modules["torchvision.tv_tensors"].Image(tensor)


def _output_size(fn: Any, size: ImageSize) -> ImageSize:
    """Return what `Resize` makes of an image of that size: one number is that of the shorter side."""
    wanted, (height, width) = fn.size, size
    if len(wanted) == 2:
        return wanted[0], wanted[1]
    if height <= width:
        # `int` and not `round`: torchvision cuts off as well, and sizes have to be its own.
        return wanted[0], int(wanted[0] * width / height)
    return int(wanted[0] * height / width), wanted[0]


def _resize(fn: Any, image: Any, target: ImageSize) -> Any:
    functional = sys.modules[f"{MODULE}.functional"]
    return functional.resize(image, list(target), interpolation=fn.interpolation, antialias=fn.antialias)


def _drawn_cut(fn: Any, size: ImageSize, rng: Any) -> Cut:
    """Have a random crop draw the part."""
    drawn = fn.make_params([placeholder_image(size)])
    return Cut(drawn["top"], drawn["left"], drawn["height"], drawn["width"], drawn)


def _rest_of_crop(fn: Any, image: Any, cut: Cut) -> Any:
    """Have a crop cut out all of the part, and do what it does with it."""
    return fn.transform(image, {**cut.drawn, "top": 0, "left": 0, "height": cut.height, "width": cut.width})


def _sides(fn: Any) -> ImageSize:
    return fn.size[0], fn.size[1]


def _middle(fn: Any, size: ImageSize, rng: Any) -> Cut | None:
    height, width = fn.size
    if height > size[0] or width > size[1]:
        return None  # it would be padded
    # As torchvision rounds: a half to the next even number.
    return Cut(round((size[0] - height) / 2), round((size[1] - width) / 2), height, width)


def _mirrored(axis: int, fn: Any, size: ImageSize, rng: Any) -> Placed:
    """Draw whether to mirror, as the transform does."""
    # The very call of torchvision: `torch.manual_seed` keeps its meaning
    # (docs/decisions/rewrites.md#74-known-functions).
    mirrors = not bool(sys.modules["torch"].rand(1) >= fn.p)
    return mirrored(axis, size) if mirrors else Placed(np.eye(2, 3), size)


def _affine(fn: Any, size: ImageSize, rng: Any) -> Placed:
    """Have `RandomRotation` or `RandomAffine`, about the middle, draw."""
    drawn = fn.make_params([placeholder_image(size)])
    if "scale" not in drawn:  # a rotation, counter-clockwise
        return Placed(rotation_matrix(-drawn["angle"], (0, 0), 1.0, (0, 0), size), size)
    return Placed(rotation_matrix(drawn["angle"], drawn["translate"], drawn["scale"], drawn["shear"], size), size)


def rotation_matrix(
    angle: float, moved: Sequence[float], scale: float, shear: Sequence[float], size: ImageSize
) -> Matrix:
    """Return where pixels of a result come from if an image is sheared, scaled, rotated (clockwise) and moved."""
    rotation, (x, y) = math.radians(angle), (math.radians(one) for one in shear)
    cos, sin = math.cos(rotation), math.sin(rotation)
    turn = np.array([[cos, -sin], [sin, cos]])
    sheared = np.array([[1.0, 0.0], [-math.tan(y), 1.0]]) @ np.array([[1.0, -math.tan(x)], [0.0, 1.0]])
    back = np.linalg.inv(scale * turn @ sheared)
    # About the middle of the pixels' centres, as torchvision turns.
    middle = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2])
    start = middle - back @ (middle + np.asarray(moved, np.float64))
    return np.hstack([back, start[:, np.newaxis]])


def placeholder_image(size: ImageSize) -> Any:
    """Return an image of that size that takes no memory: what transforms draw depends on its size alone."""
    torch = sys.modules["torch"]
    return sys.modules["torchvision.tv_tensors"].Image(torch.zeros(1, dtype=torch.uint8).expand(3, *size))


# --- which transforms are known ------------------------------------------------------------------------------


def torchvision_step(fn: Any) -> KnownStep | None:
    """Return the step of a transform of torchvision; None where it is none, or not known."""
    v2 = _transforms()
    for name, (kind, parameters, fits) in KNOWN_TRANSFORMS.items() if v2 is not None else ():
        if _is(fn, v2, name):
            known = _is_unchanged(fn) and all(hasattr(fn, one) for one in parameters) and fits(fn)
            return kind(f"torchvision {name}", fn, ARRAYS if name == "ToImage" else PIXELS) if known else None
    return None


def transforms_in(fn: Any) -> list[Any] | None:
    """Return the functions that a `Compose`, or a `Sequential` of PyTorch, calls in a row; None: it is none."""
    v2, sequential = (_transforms(), getattr(getattr(sys.modules.get("torch"), "nn", None), "Sequential", None))
    if v2 is None or sequential is None or not (_is(fn, v2, "Compose") or type(fn) is sequential):
        return None
    return list(fn.transforms if _is(fn, v2, "Compose") else fn) if _is_unchanged(fn) else None


def _transforms() -> Any:
    """Return torchvision's module of transforms, if it is imported with what is needed of it."""
    needed = (MODULE, f"{MODULE}.functional", "torchvision.tv_tensors")
    return sys.modules[MODULE] if all(name in sys.modules for name in needed) else None


def _is(fn: Any, v2: Any, name: str) -> bool:
    # The very class: a subclass may do anything else.
    return type(fn) is getattr(v2, name, None)


def _is_unchanged(fn: Any) -> bool:
    """Tell whether an object does what its class does."""
    own = vars(fn)
    return not any(own.get(name) for name in HOOKS) and not any(name in own for name in OVERRIDDEN)


def _bilinear(fn: Any) -> bool:
    return str(getattr(fn.interpolation, "value", fn.interpolation)) in ("bilinear", "2")


def _smooth(fn: Any) -> bool:
    return _bilinear(fn) and fn.antialias is True


def _is_plain_warp(fn: Any) -> bool:
    return _bilinear(fn) and fn.center is None and fn.fill == 0


def _sized(fn: Any) -> bool:
    return isinstance(fn.size, (list, tuple)) and len(fn.size) == 2


# If a version of torchvision lacks a parameter or has an unknown value in it, the function stays as it is, so
# there is no list of versions (docs/decisions/rewrites.md#74-known-functions).
KNOWN_TRANSFORMS: dict[str, tuple[Callable[..., KnownStep], tuple[str, ...], Callable[[Any], bool]]] = {
    "ToImage": (partial(ConvertStep, view=_as_view), (), lambda fn: True),
    "RandomResizedCrop": (
        partial(CropStep, draw=_drawn_cut, aim=_sides, rest=_rest_of_crop),
        ("size", "scale", "ratio", "interpolation", "antialias", *DRAWS),
        lambda fn: _smooth(fn) and _sized(fn),
    ),
    "RandomCrop": (
        partial(CropStep, draw=_drawn_cut, rest=_rest_of_crop),
        ("size", "padding", "pad_if_needed", *DRAWS),
        lambda fn: fn.padding is None and fn.pad_if_needed is False,
    ),
    "CenterCrop": (partial(CropStep, draw=_middle), ("size",), _sized),
    "Resize": (
        partial(ResizeStep, aim=_output_size, resize=_resize),
        ("size", "interpolation", "max_size", "antialias"),
        lambda fn: fn.size is not None and fn.max_size is None and _smooth(fn),
    ),
    "RandomHorizontalFlip": (partial(GeometricStep, place=partial(_mirrored, 1)), ("p",), lambda fn: True),
    "RandomVerticalFlip": (partial(GeometricStep, place=partial(_mirrored, 0)), ("p",), lambda fn: True),
    "RandomRotation": (
        partial(GeometricStep, warps=True, place=_affine),
        ("degrees", "interpolation", "expand", "center", "fill", *DRAWS),
        lambda fn: _is_plain_warp(fn) and not fn.expand,
    ),
    "RandomAffine": (
        partial(GeometricStep, warps=True, place=_affine),
        ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center", *DRAWS),
        lambda fn: _is_plain_warp(fn) and (fn.scale is None or min(fn.scale) >= LEAST_SCALE),
    ),
}
"""By the name of a class: its kind of step, the public parameters that must be there, and which of their values."""
