"""Pairs of neighbouring operators that are exchanged: harmless ones, and harmful ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from benchmarks.guard import ops
from benchmarks.guard.joint import FIT, SharedFlip, flip_all, resize_all
from benchmarks.guard.ops import GuardStep, image, random_whole, whole
from pecan_ray.plan.splits import Element

_resize_all, _flip_all = whole(resize_all), random_whole(flip_all)
FIT_SMOOTHLY = ops.resize_to(ops.SIDE, cv2.INTER_AREA)
FIT_SHARPLY = ops.resize_to(ops.SIDE, cv2.INTER_CUBIC)


@dataclass(frozen=True)
class Exchange:
    """Two operators, and what stands before and behind them."""

    name: str
    first: GuardStep
    second: GuardStep
    harmful: bool
    before: tuple[GuardStep, ...] = ()
    behind: tuple[GuardStep, ...] = ()


def harmless() -> Iterator[Exchange]:
    """Yield what a trainer does not mind."""
    yield from _with_a_resize()
    yield from _among_augmentations()
    yield from _with_casts_and_scales()
    yield from _joint()
    yield from _of_sounds_and_texts()


def _pair(
    first: GuardStep, second: GuardStep, *, before: Sequence[GuardStep] = (), behind: Sequence[GuardStep] = ()
) -> Exchange:
    return Exchange(f"{first.name} / {second.name}", first, second, False, tuple(before), tuple(behind))


def _with_a_resize() -> Iterator[Exchange]:
    for step in (
        *(ops.flip, ops.random_flip, ops.random_flip_vertical, ops.random_rotate, ops.random_rotate_reflecting),
        *(ops.random_shear, ops.random_shift, ops.random_perspective, ops.blur, ops.blur_much, ops.median),
        *(ops.sharpen, ops.brightness, ops.contrast, ops.saturation, ops.hue, ops.sometimes_gray, ops.gamma),
        *(ops.noise, ops.solarize, ops.posterize, ops.erase, ops.jpeg_again, ops.to_bgr, ops.to_float),
        *(ops.unit, ops.normalise),
    ):
        yield _pair(step, FIT)
    for step in (ops.random_flip, ops.random_rotate, ops.blur, ops.contrast):
        yield _pair(step, FIT_SMOOTHLY)
        yield _pair(step, FIT_SHARPLY)
    yield _pair(ops.normalise, FIT_SMOOTHLY)


def _among_augmentations() -> Iterator[Exchange]:
    for step in (ops.random_rotate, ops.random_shear, ops.blur, ops.brightness, ops.contrast, ops.hue, ops.gamma):
        yield _pair(step, ops.crop_centre, behind=[FIT])
    for step in (ops.brightness, ops.contrast, ops.saturation, ops.blur, ops.noise, ops.sometimes_gray):
        yield _pair(step, ops.random_crop, behind=[FIT])
    for step in (ops.random_flip, ops.random_rotate, ops.random_shift):
        yield _pair(step, ops.random_crop, behind=[FIT])
    yield _pair(ops.random_flip, ops.random_rotate, before=[FIT])
    yield _pair(ops.random_rotate, ops.random_shear, before=[FIT])
    yield _pair(ops.brightness, ops.contrast, before=[FIT])
    yield _pair(ops.sometimes_gray, ops.brightness, before=[FIT])
    yield _pair(ops.blur, ops.random_flip, before=[FIT])
    yield _pair(ops.autocontrast, ops.random_flip, before=[FIT])
    yield _pair(ops.saturation, ops.hue, before=[FIT])


def _with_casts_and_scales() -> Iterator[Exchange]:
    yield _pair(ops.unit, ops.to_half, before=[FIT], behind=[ops.to_half])
    yield _pair(ops.random_flip, ops.to_half, before=[FIT])
    yield _pair(ops.normalise, ops.random_flip, before=[FIT])
    yield _pair(ops.normalise, ops.random_shift, before=[FIT])
    yield _pair(ops.normalise, ops.crop_centre, behind=[FIT])
    yield _pair(ops.standardise, ops.random_flip, before=[FIT])
    yield _pair(ops.standardise, ops.to_channels_first, before=[FIT])
    yield _pair(ops.unit, ops.to_channels_first, before=[FIT])
    yield _pair(ops.random_flip, ops.to_bgr, before=[FIT])
    yield _pair(ops.blur, ops.to_float, before=[FIT])
    yield _pair(ops.random_rotate, ops.to_float, behind=[FIT])
    yield _pair(ops.random_rotate, ops.normalise, before=[FIT])
    yield _pair(ops.to_half, ops.gamma, before=[FIT])
    yield _pair(ops.to_half, ops.solarize, before=[FIT])
    yield _pair(ops.to_float, ops.median, before=[FIT])
    yield _pair(ops.clip_unit, FIT, before=[ops.unit])
    yield _pair(ops.clip_unit, ops.blur, before=[FIT, ops.unit])


@random_whole
def _rotate_all(element: Element, rng: np.random.Generator) -> Element:
    height, width = element["mask"].shape
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-8, 8), 1.0)
    mask = cv2.warpAffine(element["mask"], matrix, (width, height), flags=cv2.INTER_NEAREST)
    return {**element, "image": ops.warped(element["image"], matrix), "mask": mask}


@random_whole
def _crop_all(element: Element, rng: np.random.Generator) -> Element:
    height, width = element["mask"].shape
    tall, wide = int(height * 0.7), int(width * 0.7)
    top, left = int(rng.uniform(0, height - tall)), int(rng.uniform(0, width - wide))
    window = slice(top, top + tall), slice(left, left + wide)
    return {**element, "image": element["image"][window].copy(), "mask": element["mask"][window].copy()}


def _joint() -> Iterator[Exchange]:
    yield _pair(_flip_all, _resize_all)
    yield _pair(_rotate_all, _resize_all)
    yield _pair(ops.brightness, _resize_all)
    yield _pair(_flip_all, ops.normalise, before=[_resize_all])
    yield _pair(_flip_all, _crop_all, behind=[_resize_all])


def _gain(x: Any, rng: np.random.Generator) -> Any:
    return x * np.float32(rng.uniform(0.6, 1.4))


def _hiss(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.normal(0, 0.003, len(x)).astype(np.float32)


def _fixed_length(x: Any) -> Any:
    return np.pad(x[:16000], (0, max(0, 16000 - len(x))))


def _slower(x: Any) -> Any:
    return np.interp(np.arange(0, len(x), 0.5), np.arange(len(x)), x).astype(np.float32)


def _smoothed(x: Any) -> Any:
    return np.convolve(x, np.ones(5, np.float32) / 5, "same").astype(np.float32)


def _fade(x: Any) -> Any:
    return x * np.linspace(1, 0.2, len(x), dtype=np.float32)


def _spectrum(x: Any) -> Any:
    frames = np.lib.stride_tricks.sliding_window_view(x, 256)[::128] * np.hanning(256)
    return np.abs(np.fft.rfft(frames)).astype(np.float32)


def _low_bands(x: Any) -> Any:
    return x[:, :80].copy()


def _decibels(x: Any) -> Any:
    return np.log(x + np.float32(1e-3))


def _mask_bands(x: Any, rng: np.random.Generator) -> Any:
    first = int(rng.integers(0, 70))
    out = x.copy()
    out[:, first : first + 10] = 0
    return out


def sound(fn: Any, *, random: bool = False) -> GuardStep:
    """Return a step on the column audio."""
    return GuardStep(fn.__name__, fn, "audio", random)


def text(fn: Any) -> GuardStep:
    """Return a step on the column text."""
    return GuardStep(fn.__name__, fn, "text")


def _of_sounds_and_texts() -> Iterator[Exchange]:
    gain, hiss, fixed = sound(_gain, random=True), sound(_hiss, random=True), sound(_fixed_length)
    for step in (gain, hiss, sound(_smoothed)):
        yield _pair(step, fixed)
    yield _pair(gain, sound(_smoothed), before=[fixed])
    yield _pair(hiss, gain, before=[fixed])
    yield _pair(sound(_fade), sound(_slower), before=[fixed])
    yield _pair(sound(_decibels), sound(_low_bands), before=[fixed, sound(_spectrum)])
    yield _pair(sound(_mask_bands, random=True), sound(_low_bands), before=[fixed, sound(_spectrum)])
    yield _pair(text(str.lower), text(str.strip))
    yield _pair(text(str.strip), ops.normalise, before=[FIT])


# --- harm


@whole
def _record_size(element: Element) -> Element:
    return {**element, "image": element["image"] // 2, "orig_size": np.array(element["image"].shape[:2])}


@whole
def _record_brightness(element: Element) -> Element:
    return {**element, "image": ops.blur.fn(element["image"]), "brightness": float(element["image"].mean())}


@whole
def _record_length(element: Element) -> Element:
    return {**element, "audio": element["audio"] * np.float32(0.5), "length": len(element["audio"])}


@whole
def _boxes_in_shares(element: Element) -> Element:
    height, width = element["image"].shape[:2]
    return {
        **element,
        "image": ops.blur.fn(element["image"]),
        "boxes": element["pixels"] / np.array([width, height, width, height]),
    }


@image
def _left_half(x: Any) -> Any:
    return x[:, x.shape[1] // 2 :].copy()


@image
def _darken_left(x: Any) -> Any:
    out = x.copy()
    out[:, : x.shape[1] // 2] //= 4
    return out


def _peak(x: Any) -> Any:
    return x / max(float(np.abs(x).max()), 1e-6)


def _to_int16(x: Any) -> Any:
    return (x * 32767).astype(np.int16)


def _quieter(x: Any) -> Any:
    return x * x.dtype.type(0.25)


def _words(x: Any) -> Any:
    return tuple(sum(map(ord, word)) % 997 for word in x.split())


def _two_tokens(x: Any) -> Any:
    return np.resize(np.array([sum(map(ord, word)) % 997 for word in x.split()], np.int64), 128)


def _crop_text(x: Any) -> Any:
    return x[:64]


def _lower(x: Any) -> Any:
    return x.lower() if isinstance(x, str) else x


def _capital(x: Any) -> Any:
    return x.strip().capitalize()


def _harm(
    name: str,
    first: GuardStep,
    second: GuardStep,
    *,
    before: Sequence[GuardStep] = (),
    behind: Sequence[GuardStep] = (),
) -> Exchange:
    return Exchange(name, first, second, True, tuple(before), tuple(behind))


def harmful() -> Iterator[Exchange]:
    """Yield what a trainer minds."""
    yield from _harmful_scales()
    yield from _harmful_clipping()
    yield from _harmful_records()
    yield from _harmful_elsewhere()


def _harmful_scales() -> Iterator[Exchange]:
    fit = [FIT]
    yield _harm("scale if uint8 / cast", ops.unit_if_bytes, ops.to_half, before=fit)
    yield _harm("scale if large / normalise", ops.unit_if_large, ops.normalise_unit, before=fit)
    yield _harm("unit / cast to uint8", ops.to_bytes, ops.unit, before=fit, behind=[ops.to_float])
    yield _harm("brighter / cast", ops.to_float, ops.brighter, before=fit, behind=[ops.to_float])
    yield _harm("unit / mean colour", ops.unit, ops.normalise_unit, before=fit)
    yield _harm("mean colour / channels", ops.normalise, ops.to_bgr, before=fit)
    yield _harm("jitter / clip", ops.jitter_unit, ops.clip_unit, before=[FIT, ops.unit])
    yield _harm("unit / gamma", ops.unit, ops.gamma_unit, before=fit)
    yield _harm("unit / threshold", ops.unit, ops.threshold, before=fit)
    yield _harm("unit / log", ops.unit, ops.log, before=fit)
    yield _harm("standardise / normalise", ops.standardise, ops.jitter_unit, before=fit)
    yield _harm("standardise / unit", ops.unit, ops.standardise, before=fit)
    yield _harm("peak / gain", sound(_gain, random=True), sound(_peak), before=[sound(_fixed_length)])
    yield _harm("quieter / int16", sound(_quieter), sound(_to_int16), before=[sound(_fixed_length), sound(_peak)])
    yield _harm("decibels / bands masked", sound(_decibels), sound(_mask_bands, random=True), before=[sound(_spectrum)])


@image
def _dim(x: Any) -> Any:
    return ops.like(x.dtype, x * np.float32(0.6))


@image
def _lift(x: Any) -> Any:
    return ops.like(x.dtype, x * np.float32(1.8))


def _loud(x: Any) -> Any:
    return x * np.float32(1.5 / max(float(np.abs(x).max()), 1e-6))


def _clipped(x: Any) -> Any:
    return np.clip(x, -1, 1)


def _half_as_loud(x: Any) -> Any:
    return x * np.float32(0.5)


def _harmful_clipping() -> Iterator[Exchange]:
    """Yield what clips few values or none of these elements, and many of others."""
    yield _harm("dim jitter / clip", ops.jitter_unit, ops.clip_unit, before=[FIT, ops.unit, _dim])
    yield _harm("lift / dim", _lift, _dim, before=[FIT, _dim])
    yield _harm("loud / clip", sound(_clipped), sound(_half_as_loud), before=[sound(_fixed_length), sound(_loud)])
    yield _harm("cast / brightness of dim pictures", ops.to_half, ops.brightness, before=[FIT, _dim])
    yield _harm("cast / noise", ops.to_float, ops.noise, before=[FIT])
    yield _harm("cast / sharpen", ops.to_float, ops.sharpen, before=[FIT])
    yield _harm("normalise / resize that overshoots", ops.normalise, FIT_SHARPLY)
    yield _harm("cast / lift of dim pictures", ops.to_float, _lift, before=[FIT, _dim, _dim])


def _harmful_records() -> Iterator[Exchange]:
    yield _harm("size recorded / resize", _record_size, FIT)
    yield _harm("brightness recorded / brighter", _record_brightness, ops.brighter, before=[FIT])
    yield _harm("length recorded / padding", _record_length, sound(_fixed_length))
    yield _harm("boxes in shares / resize", _boxes_in_shares, FIT)
    yield _harm("words / lower case", text(_lower), text(_words))
    yield _harm("tokens / truncated", text(_crop_text), text(_two_tokens_of_anything))
    yield _harm("capital / lower case", text(str.lower), text(_capital))


def _two_tokens_of_anything(x: Any) -> Any:
    return _two_tokens(x) if isinstance(x, str) else x


def _harmful_elsewhere() -> Iterator[Exchange]:
    yield _harm("pad to square / resize", ops.pad_to_square, FIT)
    shared = SharedFlip()
    yield _harm(
        "mask's flip / the flip it follows",
        random_whole(shared.flip_image),
        GuardStep("flip_mask", shared.flip_mask, "mask"),
        before=[_resize_all],
    )
    yield _harm(
        "boxes' flip / the flip it follows",
        random_whole(shared.flip_image),
        whole(shared.flip_boxes),
        before=[_resize_all],
    )
    yield _harm("flip / channels first", ops.random_flip, ops.to_channels_first, before=[FIT])
    yield _harm("flip of bytes / cast", ops.flip_if_bytes, ops.to_float, before=[FIT])
    yield _harm("erased / standardised", ops.standardise, ops.erase, before=[FIT])
    yield _harm("left half / left edge darkened", _left_half, _darken_left, before=[FIT], behind=[FIT])
