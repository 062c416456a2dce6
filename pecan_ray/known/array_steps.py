"""Functions on arrays and on images of Pillow as steps: the package's own, NumPy's, OpenCV's, SciPy's and Pillow's.

Parameters are those of a `functools.partial`, or of an `operator.methodcaller` by what it is pickled as.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from pecan_ray import images
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
from pecan_ray.warps import ImageSize, Placed, RandomFlip, RandomRotate, RandomShear

PICTURES: Forms = ("picture",)
Parameters: TypeAlias = Mapping[str, Any]
PlaceOf: TypeAlias = "Callable[[Any, ImageSize, Any], Placed]"


# --- of the package ------------------------------------------------------------------------------------------


def _own_cut(fn: Any, size: ImageSize, rng: Any) -> Cut:
    return Cut(*(fn.box(size) if rng is None else fn.box(size, rng)))


def _own_place(fn: Any, size: ImageSize, rng: Any) -> Placed:
    found: Placed = fn.placed(size, rng)
    return found


def _own_size(fn: images.Resize, size: ImageSize) -> ImageSize:
    return fn.height, fn.width


def _own_resized(fn: images.Resize, image: Any, target: ImageSize) -> Any:
    return images.resized(image, *target)


OWN = (RandomFlip, RandomRotate, RandomShear, images.RandomCrop, images.CenterCrop, images.Resize)
"""Operators of the package that move pixels."""


def own_step(fn: Any) -> KnownStep | None:
    """Return the step of an operator of the package."""
    kind, name = type(fn), f"images.{type(fn).__name__}"
    if kind is RandomFlip:
        return MirrorStep(name, fn, wants_rng=True, place=_own_place)
    if kind in (RandomRotate, RandomShear):
        return WarpStep(name, fn, wants_rng=True, place=_own_place)
    if kind in (images.RandomCrop, images.CenterCrop):
        return CropStep(name, fn, wants_rng=kind is images.RandomCrop, draw=_own_cut, any_layout=True)
    return ResizeStep(name, fn, aim=_own_size, resize=_own_resized) if kind is images.Resize else None


# --- of NumPy, OpenCV and SciPy ------------------------------------------------------------------------------


def _given_size(fn: Any, size: ImageSize) -> ImageSize:
    """Return the size that is a parameter of a resize."""
    method = type(fn) is operator.methodcaller
    width, height = called_method(fn)[1][0] if method else fn.keywords["dsize"]
    return int(height), int(width)


def _resized(fn: Any, image: Any, target: ImageSize) -> Any:
    return fn(image)


def _mirrored(axes: tuple[int, ...], fn: Any, size: ImageSize, rng: Any) -> Placed:
    return mirrored(axes, size)


def _numpy_flip(given: Parameters) -> tuple[int, ...] | None:
    axes = given["axis"] if isinstance(given.get("axis"), tuple) else (given.get("axis"),)
    if given.keys() != {"axis"} or not all(type(axis) is int and axis in (0, 1) for axis in axes):
        return None
    return tuple(axes)


def _opencv_flip(given: Parameters) -> tuple[int, ...] | None:
    code = given.get("flipCode")
    if given.keys() != {"flipCode"} or type(code) is not int:
        return None
    return (0,) if code == 0 else (1,) if code > 0 else (0, 1)


def _opencv_warp(given: Parameters) -> PlaceOf | None:
    cv2 = sys.modules["cv2"]
    flags = given.get("flags", cv2.INTER_LINEAR)
    if given.keys() - {"M", "dsize", "flags"} or not {"M", "dsize"} <= given.keys():
        return None
    if flags & ~cv2.WARP_INVERSE_MAP != cv2.INTER_LINEAR:
        return None
    size = given["dsize"]
    if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(int(side) > 0 for side in size):
        return None  # OpenCV takes the size of the image then
    matrix = np.asarray(given["M"], np.float64)
    if matrix.shape != (2, 3) or (not flags & cv2.WARP_INVERSE_MAP and abs(np.linalg.det(matrix[:, :2])) < 1e-9):
        return None
    if not flags & cv2.WARP_INVERSE_MAP:
        matrix = np.asarray(cv2.invertAffineTransform(matrix))
    return functools.partial(_always, Placed(matrix, (int(size[1]), int(size[0]))))


def _always(placed: Placed, fn: Any, size: ImageSize, rng: Any) -> Placed:
    return placed


def _scipy_rotate(given: Parameters) -> PlaceOf | None:
    usual = {"order": 1, "reshape": False, "mode": "constant", "cval": 0.0, "axes": (1, 0), "prefilter": True}
    others = {name: value for name, value in given.items() if name != "angle"}
    if "angle" not in given or not {"order", "reshape"} <= given.keys():
        return None
    if any(name not in usual or (name != "prefilter" and value != usual[name]) for name, value in others.items()):
        return None
    return functools.partial(_turned, float(given["angle"]))


def _turned(degrees: float, fn: Any, size: ImageSize, rng: Any) -> Placed:
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    y, x = (size[0] - 1) / 2, (size[1] - 1) / 2
    return Placed(np.array([[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]), size)


def _scipy_zoom(given: Parameters) -> PlaceOf | None:
    usual = {"order": 1, "mode": "constant", "cval": 0.0, "prefilter": True}
    zoom = given.get("zoom")
    if not isinstance(zoom, (tuple, list)) or len(zoom) != 3 or zoom[2] != 1 or given.get("order") != 1:
        return None
    if any(name != "zoom" and (name not in usual or value != usual[name]) for name, value in given.items()):
        return None
    return functools.partial(_zoomed, (float(zoom[0]), float(zoom[1])))


def _zoomed(zoom: tuple[float, float], fn: Any, size: ImageSize, rng: Any) -> Placed:
    """Return what SciPy does: the corner pixels' middles fall on one another."""
    height, width = (round(side * factor) for side, factor in zip(size, zoom, strict=True))
    y, x = ((old - 1) / (new - 1) if new > 1 else 1.0 for old, new in zip(size, (height, width), strict=True))
    return Placed(np.array([[x, 0.0, 0.0], [0.0, y, 0.0]]), (height, width))


FLIPS = {("numpy", "flip"): _numpy_flip, ("cv2", "flip"): _opencv_flip}
"""By module and name: from the parameters of a function to the axes that it mirrors; None: it is another than is known.
"""
WARPING = {
    ("cv2", "warpAffine"): _opencv_warp,
    ("scipy.ndimage", "rotate"): _scipy_rotate,
    ("scipy.ndimage", "zoom"): _scipy_zoom,
}
"""The same, to what it does to an image of some size."""


def array_step(fn: Any) -> KnownStep | None:
    """Return the step of a function of NumPy, OpenCV or SciPy, with parameters by `functools.partial`."""
    if fn is np.fliplr or fn is np.flipud:
        return _mirror(f"numpy.{fn.__name__}", fn, (int(fn is np.fliplr),))
    if type(fn) is not functools.partial or fn.args:
        return None
    for (module, name), axes_of in FLIPS.items():
        if fn.func is getattr(sys.modules.get(module), name, None):
            axes = axes_of(fn.keywords)
            return None if axes is None else _mirror(f"{module}.{name}", fn, axes)
    for (module, name), place_of in WARPING.items():
        if fn.func is getattr(sys.modules.get(module), name, None):
            place = place_of(fn.keywords)
            return None if place is None else WarpStep(f"{module}.{name}", fn, place=place)
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and fn.func is cv2.resize and _is_bilinear_resize(fn.keywords, cv2):
        return ResizeStep("cv2.resize", fn, aim=_given_size, resize=_resized)
    return None


def _mirror(name: str, fn: Any, axes: tuple[int, ...], forms: Forms = ARRAYS) -> KnownStep:
    return MirrorStep(name, fn, forms, place=functools.partial(_mirrored, axes))


def _is_bilinear_resize(given: Parameters, cv2: Any) -> bool:
    sized = isinstance(given.get("dsize"), tuple) and min(given["dsize"]) > 0
    return sized and not given.keys() - {"dsize", "interpolation"} and given.get("interpolation", 1) == cv2.INTER_LINEAR


# --- of Pillow -----------------------------------------------------------------------------------------------


def _picture_cut(fn: Any, size: ImageSize, rng: Any) -> Cut | None:
    """Return the part that `Image.crop` keeps; None where some of it lies outside."""
    left, top, right, bottom = called_method(fn)[1][0]
    if not (0 <= top < bottom <= size[0] and 0 <= left < right <= size[1]):
        return None
    return Cut(top, left, bottom - top, right - left)


def picture_step(fn: Any) -> KnownStep | None:
    """Return the step of a function of Pillow, of which methods are given by `operator.methodcaller`."""
    pillow, ops = sys.modules.get("PIL.Image"), sys.modules.get("PIL.ImageOps")
    if pillow is None:
        return None
    if fn is pillow.fromarray:
        return ConvertStep("Pillow fromarray", fn, gives="picture")
    for name, axis in (("mirror", 1), ("flip", 0)):
        if ops is not None and fn is getattr(ops, name, None):
            return _mirror(f"Pillow {name}", fn, (axis,), PICTURES)
    if type(fn) is not operator.methodcaller or not hasattr(pillow, "Resampling") or not hasattr(pillow, "Transpose"):
        return None
    name, args, keywords = called_method(fn)
    numbers = len(args) == 1 and not keywords and isinstance(args[0], (tuple, list))
    if name == "crop" and numbers and len(args[0]) == 4 and all(type(side) is int for side in args[0]):
        return CropStep("Pillow crop", fn, PICTURES, draw=_picture_cut)
    if name == "resize" and not keywords and _is_smooth_resize(args, pillow):
        return ResizeStep("Pillow resize", fn, PICTURES, aim=_given_size, resize=_resized)
    transposed = {pillow.Transpose.FLIP_LEFT_RIGHT: 1, pillow.Transpose.FLIP_TOP_BOTTOM: 0}
    if name == "transpose" and len(args) == 1 and not keywords and isinstance(args[0], int) and args[0] in transposed:
        return _mirror("Pillow transpose", fn, (transposed[args[0]],), PICTURES)
    return None


def _is_smooth_resize(args: tuple[Any, ...], pillow: Any) -> bool:
    sized = 0 < len(args) < 3 and isinstance(args[0], (tuple, list)) and len(args[0]) == 2
    return sized and (len(args) == 1 or args[1] in (pillow.Resampling.BILINEAR, pillow.Resampling.BICUBIC))


def called_method(caller: operator.methodcaller) -> tuple[str, tuple[Any, ...], Parameters]:
    """Return the method that is called, and with what."""
    written: Any = caller.__reduce__()
    made_by, args = written[:2]
    if isinstance(made_by, functools.partial):  # where it has keywords
        called = (*made_by.args, *args)
        return called[0], called[1:], made_by.keywords
    return args[0], tuple(args[1:]), {}
