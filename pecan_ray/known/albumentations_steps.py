"""Transforms of Albumentations as steps, which a pipeline is given by `pecan_ray.images.ByName`.

What they draw is drawn by their own methods, with their own generators; what they do to pixels is done by their own
`apply`, but for those that one warp takes over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pecan_ray.images import ByName, resize_image
from pecan_ray.known.steps import (
    ARRAYS,
    CropStep,
    Cut,
    KnownStep,
    MirrorStep,
    OtherStep,
    ResizeStep,
    WarpStep,
    mirrored,
)
from pecan_ray.warps import ImageSize, Placed

DRAWING = ("should_apply", "get_params", "update_transform_params", "get_params_dependent_on_data", "apply")
"""Methods that Albumentations has users override: without them a transform is not known."""


def _cut(fn: ByName, size: ImageSize, rng: Any) -> Cut:
    """Have a crop draw the part."""
    drawn = drawn_for(fn.transform, size)
    left, top, right, bottom = drawn["crop_coords"]
    return Cut(top, left, bottom - top, right - left, drawn)


def _rest_of_crop(fn: ByName, image: Any, cut: Cut) -> Any:
    """Have a crop cut out all of the part, and do what it does with it."""
    whole = (0, 0, image.shape[1], image.shape[0])
    # OpenCV, which Albumentations calls, does not take every view.
    image = np.ascontiguousarray(image)
    made = fn.transform.apply(image, **{**cut.drawn, "shape": image.shape, "crop_coords": whole})
    return np.ascontiguousarray(made)


def _sides(fn: ByName) -> ImageSize:
    return int(fn.transform.size[0]), int(fn.transform.size[1])


def _output_size(fn: ByName, size: ImageSize) -> ImageSize:
    return int(fn.transform.height), int(fn.transform.width)


def _resize(fn: ByName, image: Any, target: ImageSize) -> Any:
    return resize_image(image, *target)


def _mirrored(axis: int, fn: ByName, size: ImageSize, rng: Any) -> Placed:
    """Have a mirror draw whether to mirror."""
    return mirrored((axis,) if fn.transform.should_apply() else (), size)


def _affine(fn: ByName, size: ImageSize, rng: Any) -> Placed:
    """Have `Rotate` or `Affine` draw, whose parameters have a matrix from the image to the result."""
    if not fn.transform.should_apply():
        return Placed(np.eye(2, 3), size)
    matrix = np.asarray(drawn_for(fn.transform, size)["matrix"], np.float64)
    # Inverted: a warp here says for each pixel of the result where it comes from.
    return Placed(np.linalg.inv(np.vstack([matrix[:2], [0.0, 0.0, 1.0]]))[:2], size)


def drawn_for(transform: Any, size: ImageSize) -> dict[str, Any]:
    """Return what a transform draws for an image of that size: it looks at the shape alone."""
    # An image that takes no memory: one zero, shown at each place.
    data = {"image": np.broadcast_to(np.zeros((), np.uint8), (*size, 3))}
    drawn: dict[str, Any] = transform.update_transform_params(params=transform.get_params(), data=data)
    drawn.update(transform.get_params_dependent_on_data(params=drawn, data=data))
    return drawn


def albumentations_steps(fn: Any) -> list[KnownStep] | None:
    """Return the steps of a transform of Albumentations, or of several in a row; None where it is not known."""
    library = sys.modules.get("albumentations")
    if library is None or type(fn) is not ByName:
        return None
    transform = fn.transform
    if type(transform) is not getattr(library, "Compose", None):
        step = _step(transform, library)
        return None if step is None else [step]
    notes = getattr(transform, "processors", True) or getattr(transform, "save_applied_params", False)
    # Boxes and points beside the image, or a chance for all together: the `Compose` does more than its parts.
    if notes or getattr(transform, "p", 0.0) != 1.0:
        return None
    found = [_step(one, library) or OtherStep(type(one).__name__, ByName(one)) for one in transform.transforms]
    return found if any(not isinstance(step, OtherStep) for step in found) else None


def _step(transform: Any, library: Any) -> KnownStep | None:
    for name, (kind, parameters, fits) in KNOWN_AUGMENTATIONS.items():
        if type(transform) is getattr(library, name, None):
            # True if the attribute is missing: of a version that names it otherwise nothing is known.
            usual = not any(getattr(transform, mode, True) for mode in ("deterministic", "replay_mode"))
            there = all(hasattr(transform, one) for one in (*DRAWING, *parameters))
            # A method that was set on the object itself.
            changed = any(one in vars(transform) for one in DRAWING)
            known = usual and there and not changed and fits(transform)
            return kind(f"Albumentations {name}", ByName(transform), ARRAYS) if known else None
    return None


def _always_and_bilinear(transform: Any) -> bool:
    # 1: OpenCV's bilinear interpolation, which the warp and the decoder's resize have, too.
    return bool(transform.p >= 1.0 and transform.interpolation == 1 and not transform.area_for_downscale)


def _always_inside(transform: Any) -> bool:
    return bool(transform.p >= 1.0 and not transform.pad_if_needed)


def _black_outside(transform: Any) -> bool:
    # 0: OpenCV's constant border.
    return bool(transform.interpolation == 1 and transform.border_mode == 0 and not np.any(transform.fill))


CROP = partial(CropStep, draw=_cut, rest=_rest_of_crop)
AFFINE = partial(WarpStep, place=_affine)
KNOWN_AUGMENTATIONS: dict[str, tuple[Callable[..., KnownStep], tuple[str, ...], Callable[[Any], bool]]] = {
    "RandomResizedCrop": (
        partial(CROP, aim=_sides),
        ("size", "interpolation", "area_for_downscale"),
        _always_and_bilinear,
    ),
    "RandomCrop": (CROP, ("height", "width", "pad_if_needed"), _always_inside),
    "CenterCrop": (CROP, ("height", "width", "pad_if_needed"), _always_inside),
    "Resize": (
        partial(ResizeStep, aim=_output_size, resize=_resize),
        ("height", "width", "interpolation", "area_for_downscale"),
        _always_and_bilinear,
    ),
    "HorizontalFlip": (partial(MirrorStep, place=partial(_mirrored, 1)), ("p",), lambda transform: True),
    "VerticalFlip": (partial(MirrorStep, place=partial(_mirrored, 0)), ("p",), lambda transform: True),
    "Rotate": (
        AFFINE,
        ("interpolation", "border_mode", "fill", "crop_border"),
        lambda transform: _black_outside(transform) and not transform.crop_border,
    ),
    "Affine": (
        AFFINE,
        ("interpolation", "border_mode", "fill", "fit_output"),
        lambda transform: _black_outside(transform) and not transform.fit_output,
    ),
}
"""By the name of a class: its kind of step, the public parameters that must be there, and which of their values."""
