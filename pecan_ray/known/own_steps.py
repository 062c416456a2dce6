"""The package's own operators on images, and Pillow's `Image.fromarray`, as steps."""

from __future__ import annotations

import sys
from typing import Any

from pecan_ray import images
from pecan_ray.known.steps import ConvertStep, CropStep, Cut, KnownStep, MirrorStep, ResizeStep, WarpStep
from pecan_ray.warps import ImageSize, Placed, RandomFlip, RandomRotate, RandomShear


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


def picture_step(fn: Any) -> KnownStep | None:
    """Return the step of `Image.fromarray`, by which images come to transforms of torchvision."""
    pillow = sys.modules.get("PIL.Image")
    return (
        ConvertStep("Pillow fromarray", fn, gives="picture") if pillow is not None and fn is pillow.fromarray else None
    )
