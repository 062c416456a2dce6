"""A run of image operators that is left to the trainer's accelerator, from the decoder to the last one.

The worker draws and filters as it would, and reads the JPEG's header; it hands on the file and what is to be done to
its pixels (`pecan_ray.known.encoded_images`).  Operators keep their places in its plan: a guard in the place of each
adds to the image what its operator would do.  So names, errors and random numbers of operators are what they are
without it.  A file that not every decoder takes is decoded by the worker, and travels as pixels.

Arithmetic behind the run is left to the trainer too, if `pecan_ray.engines.python.deferral` may leave it.

Decision: docs/decisions/placement.md#229-the-accelerator-as-a-place
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pecan_ray import images
from pecan_ray.engines.contract import Unfinished
from pecan_ray.engines.python.deferral import may_be_deferred, ops_before_batch, timed_run, written_function
from pecan_ray.known.detect_steps import steps_of
from pecan_ray.known.encoded_images import EncodedImage, encoded_image, is_movable, of_pixels, with_step
from pecan_ray.known.steps import GeometricStep, KnownRun, KnownStep
from pecan_ray.plan.operators import Filter, Map, Op, Plan, wants_rng
from pecan_ray.warps import Draw, ImageSize, RandomFlip


@dataclass(frozen=True)
class ImageRun:
    """Operators on one column of images, from its decoder to `batch`."""

    column: str
    maps: tuple[Map, ...]
    """The decoder, and the operators that move pixels."""
    arithmetic: tuple[Map, ...]
    """The operators that compute with pixels."""

    @property
    def names(self) -> str:
        """Those of the operators."""
        return ", ".join(op.name for op in (*self.maps, *self.arithmetic))

    def guarded(self, plan: Plan) -> Plan:
        """Return the plan in which a guard stands in the place of each operator."""
        guards: dict[str, Op] = {op.name: replace(op, fn=_hand_on) for op in self.arithmetic}
        for op in self.maps:
            made = _LaterRandomStep if wants_rng(op.fn) else _LaterStep
            guards[op.name] = replace(op, fn=made(op.fn, is_last=op is self.maps[-1]))
        return replace(plan, ops=tuple(guards.get(op.name, op) for op in plan.ops))

    def unfinished(self, columns: Mapping[str, Any]) -> Unfinished | None:
        """Return what the trainer has to do to a batch, or to a block of rows."""
        if self.column not in columns:
            return None
        why = f"{self.names} run where batches arrive, on the accelerator"
        return Unfinished(tuple(op.name for op in self.arithmetic), why, self.column)


def image_run(plan: Plan, users_parts: Collection[tuple[str, str]]) -> ImageRun | None:
    """Return the operators of a plan that may be left to an accelerator; None: there are none.

    `users_parts`: what the user's plan consists of, by `describe_plan`: the trainer knows these operators alone.
    """
    chain = _chain_behind_decoder(ops_before_batch(plan))
    if not chain:
        return None
    maps = [chain[0], *itertools.takewhile(lambda op: _steps(op.fn) is not None, chain[1:])]
    column, arithmetic = chain[0].on, chain[len(maps) :]
    size = _fixed_size([step for op in maps for step in _steps(op.fn) or ()])
    if column is None or size is None or not all(may_be_deferred(op, plan, users_parts) for op in arithmetic):
        return None
    return ImageRun(column, tuple(maps), tuple(arithmetic)) if _takes_images(arithmetic, size) else None


def _chain_behind_decoder(ops: Sequence[Op]) -> list[Map]:
    """Return the last decoder with all operators on its column; none where others may see the pixels."""
    behind = _from_decoder(ops)
    # What sees the pixels, or may see them, has to run behind the decoder.
    seeing = [op for op in behind if isinstance(op, (Map, Filter)) and op.on is not None]
    on_column = [op for op in seeing if op.on == seeing[0].on]
    chain = [op for op in on_column if type(op) is Map and not op.processes]
    return chain if len(seeing) == len(behind) and len(chain) == len(on_column) else []


def _from_decoder(ops: Sequence[Op]) -> Sequence[Op]:
    """Return the last decoder, and what is behind it; nothing where there is none."""
    decoders = [n for n, op in enumerate(ops) if type(op) is Map and op.on is not None and _decodes(op.fn)]
    return ops[decoders[-1] :] if decoders else ()


def _takes_images(arithmetic: Sequence[Map], size: ImageSize) -> bool:
    """Tell whether arithmetic runs on an image of a size."""
    value: Any = np.zeros((*size, 3), np.uint8)
    for op in arithmetic:
        if (made := timed_run(written_function(op), value, 1)) is None:
            return False
        value = made[0]
    return True


def _decodes(fn: Any) -> bool:
    """Tell whether a function is a decoder, with known steps behind it or none."""
    if type(fn) is KnownRun:
        return fn.decodes and _steps(fn) is not None
    return type(fn) is images.Decode and not fn.upright


def _steps(fn: Any) -> Sequence[KnownStep] | None:
    """Return what is done to pixels, if all of it can be done later; None if not."""
    steps = fn.steps if type(fn) is KnownRun else () if type(fn) is images.Decode else steps_of(fn)
    return steps if steps is not None and all(map(is_movable, steps)) else None


def _fixed_size(steps: Sequence[KnownStep]) -> ImageSize | None:
    """Return the size of all images behind some steps; None where images differ."""
    last = next((step.fn for step in reversed(steps) if type(step.fn) is not RandomFlip), None)
    return (last.height, last.width) if isinstance(last, (images.Resize, images.CenterCrop)) else None


def _hand_on(image: bytes) -> bytes:
    """Stand in the place of arithmetic that is left to the trainer."""
    return image


class _LaterAny:
    """Stands in the place of an operator's function, and has its work done later."""

    def __init__(self, fn: Any, *, is_last: bool) -> None:
        self.fn = fn
        self.draws_by_name = type(fn) is KnownRun
        self._decodes, self._steps, self._is_last = _decodes(fn), _steps(fn) or (), is_last

    def _noted(self, value: Any, rng: Any) -> Any:
        """Return the image with what the function does noted; pixels that it makes itself of another file."""
        image = value if isinstance(value, EncodedImage) else encoded_image(value) if self._decodes else None
        if image is None:
            made = self.fn(value) if rng is None else self.fn(value, rng=rng)
            return of_pixels(made).packed() if self._is_last else made
        draw: Draw = rng if self.draws_by_name else lambda _: rng
        for step in self._steps:
            assert isinstance(step, GeometricStep), "steps that can be done later move pixels"
            image = with_step(image, step, draw)
        return image.packed() if self._is_last else image


class _LaterStep(_LaterAny):
    """Of a function that does not draw."""

    def __call__(self, value: Any) -> Any:
        """Return the image with what the function does noted."""
        return self._noted(value, None)


class _LaterRandomStep(_LaterAny):
    """Of one that draws."""

    def __call__(self, value: Any, rng: Any) -> Any:
        """Return the image with what the function does noted."""
        return self._noted(value, rng)
