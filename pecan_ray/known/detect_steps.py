"""Which steps the functions of operators consist of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pecan_ray import images
from pecan_ray.known.steps import (
    ConvertStep,
    CropStep,
    Cut,
    GeometricStep,
    ImageForm,
    KnownRun,
    KnownStep,
    OtherStep,
    ResizeStep,
)
from pecan_ray.known.torchvision_steps import torchvision_step, transforms_in
from pecan_ray.warps import ImageSize, RandomFlip, RandomRotate, RandomShear


def _own_cut(fn: Any, size: ImageSize, rng: Any) -> Cut:
    return Cut(*(fn.box(size, rng) if isinstance(fn, images.RandomCrop) else fn.box(size)))


def _own_size(fn: images.Resize, size: ImageSize) -> ImageSize:
    return fn.height, fn.width


def _resize_own(fn: images.Resize, image: Any, target: ImageSize) -> Any:
    return images.resize_image(image, *target)


OWN = (RandomFlip, RandomRotate, RandomShear, images.RandomCrop, images.CenterCrop, images.Resize)
"""Operators of the package that move pixels."""


def own_step(fn: Any) -> KnownStep | None:
    """Return the step of an operator of the package."""
    kind, name = type(fn), f"images.{type(fn).__name__}"
    if kind in (RandomFlip, RandomRotate, RandomShear):  # a flip costs a pass over all pixels, as the others do
        return GeometricStep(name, fn, wants_rng=True, warps=True, place=kind.placed)
    if kind in (images.RandomCrop, images.CenterCrop):
        return CropStep(name, fn, wants_rng=kind is images.RandomCrop, draw=_own_cut)
    return ResizeStep(name, fn, aim=_own_size, resize=_resize_own) if kind is images.Resize else None


def image_convert_step(fn: Any) -> KnownStep | None:
    """Return the step of `Image.fromarray`, by which images come to transforms of torchvision."""
    pillow = sys.modules.get("PIL.Image")
    known = pillow is not None and fn is pillow.fromarray
    return ConvertStep("Pillow fromarray", fn, gives="picture") if known else None


def steps_of(fn: Any) -> list[KnownStep] | None:
    """Return the steps of a function; None where it is not known."""
    try:
        return _steps_of(fn)
    except Exception:  # its parameters are the user's, and may refuse any question: no known function has such
        return None


def _steps_of(fn: Any) -> list[KnownStep] | None:
    for step_of in (own_step, image_convert_step, torchvision_step):
        if (step := step_of(fn)) is not None:
            return [step]
    if (transforms := transforms_in(fn)) is None:
        return None
    found = list[KnownStep]()
    for one in transforms:
        known = None if isinstance(one, OWN) else steps_of(one)  # those want random numbers, which they are not given
        found += known or [OtherStep(type(one).__name__, one)]
    return found if any(not isinstance(step, OtherStep) for step in found) else None


def known_functions(
    named: Sequence[tuple[str, Any]], *, decodes: bool, reduces: bool
) -> tuple[KnownRun, list[str]] | None:
    """Return functions behind a decoder, or behind anything else, as one, and what is done at once; None: nothing is.

    `named`: operators' names, and their functions, each of which is known.  `reduces`: pixels may be others.
    """
    steps = _in_form([replace(step, op=name) for name, fn in named for step in steps_of(fn) or ()])
    run = KnownRun(tuple(steps), decodes=decodes, reduces=reduces)
    part, smaller = _decoded_less(run.places) if decodes else ([], [])
    at_once = smaller if reduces else part
    if run.warps:
        at_once = [step.name for step in run.places]
    return (run, at_once) if at_once else None


def _decoded_less(places: list[GeometricStep]) -> tuple[list[str], list[str]]:
    """Return the names of the steps for which a part is decoded, and of those for which a smaller image is."""
    cut = [step.name for step in places[:1] if isinstance(step, CropStep)]
    # A crop, if there is one, and the resize behind it, if it does not resize by itself.
    resizes = next((number for number, step in enumerate(places[:2]) if _resizes(step)), None)
    if resizes is None or (resizes == 1 and not cut):
        return cut, []
    # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size by the decoder itself; pixels then differ, so it is not "part".
    return cut, [step.name for step in places[: resizes + 1]]


def _resizes(step: KnownStep) -> bool:
    return isinstance(step, ResizeStep) or (isinstance(step, CropStep) and step.target() is not None)


def _in_form(steps: list[KnownStep]) -> list[KnownStep]:
    """Return steps: some convert, those behind them move pixels, and others, which may do anything, follow."""
    # Operators are given arrays, by a decoder or by a source.
    form: ImageForm = "array"
    found, moved, resized = list[KnownStep](), False, False
    for step in steps:
        # Decision 99: what is resized twice may be coarse in between, which one warp would skip.
        resizes = _resizes(step)
        if form not in step.layout or (resized and resizes):
            break
        if isinstance(step, ConvertStep) and not moved:
            form = step.gives
        elif isinstance(step, GeometricStep):
            moved, resized = True, resized or resizes
        else:
            break
        found.append(step)
    # From the first other step on nobody knows what a step is given.
    behind = steps[len(found) :]
    return [*found, *(OtherStep(one.name, one.fn, one.layout, one.wants_rng, one.op) for one in behind)]
