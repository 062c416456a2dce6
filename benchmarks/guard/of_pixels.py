"""Exchanges of operators on photographs that are written with NumPy and OpenCV."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, on_image
from benchmarks.guard.joint import FIT
from benchmarks.guard.ops import GuardStep

SMOOTHLY = ops.resize_to(ops.SIDE, cv2.INTER_AREA)
SHARPLY = ops.resize_to(ops.SIDE, cv2.INTER_CUBIC)
STRONGER = "its radius in pixels stays, of a picture that is three times smaller: about three times as strong"
SAME_PICTURE = "does the same to a pixel wherever it lies"
SQUEEZED = "the photograph is squeezed first, so that it is turned by another angle across than along"
OTHER_CUT = "the cut is drawn in another picture: another piece of the photograph, equally likely"

RESIZED = ExchangeKind("resized", second=FIT)
AREA, CUBIC = ExchangeKind("resized by area", second=SMOOTHLY), ExchangeKind("resized cubically", second=SHARPLY)
CENTRED = ExchangeKind("centred", second=ops.crop_centre, behind=(FIT,))
CUT = ExchangeKind("cut", second=ops.random_crop, behind=(FIT,))
SMALL = ExchangeKind("small", before=(FIT,))


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    yield from _before_a_resize()
    yield from _pixels_before_a_resize()
    yield from _before_a_crop()
    yield from _among_augmentations()
    yield from _casts_and_scales()
    yield from _scales_that_matter()


def _before_a_resize() -> Iterator[Exchange]:
    for step in (ops.flip, ops.random_flip, ops.random_flip_vertical):
        yield RESIZED.exchange("harmless", step, "a mirror image of the smaller picture is the smaller mirror image")
    for step in (ops.random_rotate, ops.random_rotate_reflecting, ops.random_shear):
        yield RESIZED.exchange("doubtful", step, SQUEEZED)
    for step in (ops.random_shift, ops.random_perspective):
        yield RESIZED.exchange("harmless", step, "it is drawn in shares of the sides, which the resize keeps")
    for step in (ops.blur, ops.blur_much, ops.median, ops.sharpen):
        yield RESIZED.exchange("harmful", step, STRONGER)
    for step in (ops.brightness, ops.contrast, ops.saturation, ops.hue, ops.sometimes_gray, ops.gamma):
        yield RESIZED.exchange("harmless", step, SAME_PICTURE)
    yield RESIZED.exchange("harmful", ops.noise, "the resize averages noise away, and would not touch it")
    yield RESIZED.exchange("harmful", ops.jpeg_again, "blocks of 8 pixels become three times as large")
    for step in (ops.solarize, ops.posterize):
        yield RESIZED.exchange("doubtful", step, "steps in brightness are mixed by the resize, or stay sharp")
    yield RESIZED.exchange("harmless", ops.erase, "the box is drawn in shares of the sides: it moves by half a pixel")
    for step in (ops.to_bgr, ops.to_float, ops.unit, ops.normalise):
        yield RESIZED.exchange("harmless", step, SAME_PICTURE)
    for group in (AREA, CUBIC):
        yield group.exchange("harmless", ops.random_flip, "mirroring and resizing commute")
        yield group.exchange("doubtful", ops.random_rotate, SQUEEZED)
        yield group.exchange("harmful", ops.blur, STRONGER)
        yield group.exchange("harmless", ops.contrast, SAME_PICTURE)
    yield AREA.exchange("harmless", ops.normalise, SAME_PICTURE)
    yield AREA.exchange("harmful", ops.noise, "areas average noise to a third, and would not touch it")


def _pixels_before_a_resize() -> Iterator[Exchange]:
    """Yield operators with sizes in pixels, or with masks of them, as the OpenCV of a web page has them."""
    for name, fn, why in (
        ("pixelate", _pixelate, "mosaic tiles of 8 pixels become three times as large"),
        ("motion", lambda x: cv2.filter2D(x, -1, np.eye(15, dtype=np.float32) / 15), STRONGER),
        ("unsharp", lambda x: cv2.addWeighted(x, 1.8, cv2.GaussianBlur(x, (0, 0), 3), -0.8, 0), STRONGER),
        ("bilateral", lambda x: cv2.bilateralFilter(x, 9, 75, 75), STRONGER),
        ("opening", lambda x: cv2.morphologyEx(x, cv2.MORPH_OPEN, np.ones((7, 7), np.uint8)), STRONGER),
        ("watermark", _watermark, "the text is written in pixels: three times as large, or out of the picture"),
        ("timestamp_hidden", _black_strip, "a strip of 24 pixels hides a time stamp: it would hide a quarter instead"),
        ("shifted_px", lambda x: np.roll(x, 24, 1), "24 pixels are a quarter of the small picture"),
        ("canny", lambda x: cv2.Canny(x, 100, 200), "edges of the small picture are other ones, one pixel wide"),
        ("threshold_local", _local_threshold, "neighbourhoods of 11 pixels are three times as large"),
        ("laplacian", lambda x: cv2.convertScaleAbs(cv2.Laplacian(x, cv2.CV_16S)), "differences of other neighbours"),
        ("vignette_px", _vignette, "the bright disc has its radius in pixels: no vignette would be left"),
        ("line_grid", _line_grid, "the lines lie 32 pixels apart: three instead of ten, and three times as wide"),
    ):
        yield AREA.exchange("harmful", on_image(name, fn), why)
    salt, cutout = on_image("salt", _salt, random=True), on_image("cutout_px", _cutout, random=True)
    yield AREA.exchange("harmful", salt, "single pixels, that the resize averages away, stay")
    yield AREA.exchange("harmful", cutout, "the hole of 48 pixels becomes three times as large, and lies elsewhere")
    dust = on_image("dust", _dust, random=True)
    yield AREA.exchange("harmful", dust, "one photograph in four has dust, which is three times as large")
    clahe = on_image("clahe", _clahe)
    yield AREA.exchange("doubtful", clahe, "its tiles are shares of the picture, but have fewer pixels each")
    gray = on_image("equalised", lambda x: cv2.equalizeHist(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)))
    yield AREA.exchange("harmless", gray, "the histogram of the smaller picture is nearly the same")
    sepia = on_image("sepia", lambda x: cv2.transform(x, SEPIA))
    yield AREA.exchange("harmless", sepia, "mixes the colours of a pixel, wherever it lies")
    inverted = on_image("inverted", lambda x: 255 - x)
    yield AREA.exchange("harmless", inverted, SAME_PICTURE)
    balanced = on_image("gray_world", _gray_world)
    yield AREA.exchange("harmless", balanced, "means of colours are the same in the smaller picture")
    vignette = on_image("vignette", _vignette_in_shares)
    yield AREA.exchange("harmless", vignette, "it is drawn in shares of the sides, and is smooth")


SEPIA = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)


def _pixelate(x: Any) -> Any:
    height, width = x.shape[:2]
    small = cv2.resize(x, (max(1, width // 8), max(1, height // 8)), interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)


def _watermark(x: Any) -> Any:
    place = (10, x.shape[0] - 12)
    return cv2.putText(x.copy(), "2021-05-01", place, cv2.FONT_HERSHEY_SIMPLEX, 0.8, (255, 255, 0), 2)


def _black_strip(x: Any) -> Any:
    out = x.copy()
    out[-24:, -96:] = 0
    return out


def _local_threshold(x: Any) -> Any:
    gray = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)
    return cv2.adaptiveThreshold(gray, 255, cv2.ADAPTIVE_THRESH_GAUSSIAN_C, cv2.THRESH_BINARY, 11, 2)


def _vignette(x: Any) -> Any:
    height, width = x.shape[:2]
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    distance = np.hypot(rows - height / 2, columns - width / 2)
    return ops.like(np.uint8, x * np.clip(1.5 - distance / 120, 0.2, 1)[..., np.newaxis])


def _vignette_in_shares(x: Any) -> Any:
    height, width = x.shape[:2]
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    distance = np.hypot((rows + 0.5) / height - 0.5, (columns + 0.5) / width - 0.5)
    return ops.like(np.uint8, x * (1.1 - distance)[..., np.newaxis].clip(0.2, 1))


def _line_grid(x: Any) -> Any:
    out = x.copy()
    out[::32] = out[:, ::32] = 255
    return out


def _salt(x: Any, rng: Any) -> Any:
    drawn = rng.random(x.shape[:2])
    out = x.copy()
    out[drawn < 0.02], out[drawn > 0.98] = 0, 255
    return out


def _cutout(x: Any, rng: Any) -> Any:
    top, left = int(rng.integers(0, x.shape[0] - 48)), int(rng.integers(0, x.shape[1] - 48))
    out = x.copy()
    out[top : top + 48, left : left + 48] = 0
    return out


def _dust(x: Any, rng: Any) -> Any:
    if rng.random() < 0.75:
        return x
    place = tuple(int(share * side) for share, side in zip(rng.random(2), x.shape[1::-1], strict=True))
    return cv2.circle(x.copy(), place, 6, (20, 20, 20), -1)


def _clahe(x: Any) -> Any:
    lab = cv2.cvtColor(x, cv2.COLOR_RGB2LAB)
    lab[..., 0] = cv2.createCLAHE(2.0, (8, 8)).apply(lab[..., 0])
    return cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)


def _gray_world(x: Any) -> Any:
    means = x.reshape(-1, x.shape[-1]).mean(0)
    return ops.like(np.uint8, x * (means.mean() / np.maximum(means, 1)).astype(np.float32))


def _before_a_crop() -> Iterator[Exchange]:
    corners = "corners that the crop cuts off become black parts of the result"
    yield CENTRED.exchange("harmful", ops.random_rotate, corners)
    yield CENTRED.exchange("harmful", ops.random_shear, corners)
    for step in (ops.blur, ops.brightness, ops.hue, ops.gamma):
        yield CENTRED.exchange("harmless", step, "it does the same to what is cut off and to what stays")
    yield CENTRED.exchange("harmless", ops.contrast, "the mean of the middle is nearly that of the whole")
    for step in (ops.brightness, ops.saturation, ops.blur, ops.sometimes_gray):
        yield CUT.exchange("harmless", step, "it does the same to what is cut off and to what stays")
    yield CUT.exchange("doubtful", ops.contrast, "it stretches about the mean of the cut, not of the photograph")
    yield CUT.exchange("doubtful", ops.noise, "equally strong noise, but other numbers of it")
    yield CUT.exchange("doubtful", ops.random_flip, OTHER_CUT)
    yield CUT.exchange("harmful", ops.random_rotate, "black corners would be within the cut, and another piece is cut")
    yield CUT.exchange("doubtful", ops.random_shift, "shares of the cut are less than shares of the photograph")


def _among_augmentations() -> Iterator[Exchange]:
    harmless = (
        (ops.brightness, ops.contrast, "both scale, and differ where values are clipped alone"),
        (ops.sometimes_gray, ops.brightness, "gray is a sum of colours, which are scaled alike"),
        (ops.blur, ops.random_flip, "a blur looks the same from the left and from the right"),
        (ops.autocontrast, ops.random_flip, "the darkest and the brightest pixel are the same"),
        (ops.saturation, ops.hue, "one turns colours about gray, the other one stretches them about it"),
    )
    for first, second, why in harmless:
        yield SMALL.exchange("harmless", first, why, second=second)
    yield SMALL.exchange("doubtful", ops.random_flip, "it turns the other way round", second=ops.random_rotate)
    yield SMALL.exchange("doubtful", ops.random_rotate, "turned shears differ a little", second=ops.random_shear)
    left, half = on_image("left_half_dark", _darken_left), on_image("right_half", _right_half)
    yield SMALL.exchange(
        "harmful", half, "what is darkened is cut off, where half of the result was dark", second=left, behind=(FIT,)
    )
    edge, crop = on_image("frame_px", _frame), ops.crop_centre
    yield SMALL.exchange("harmful", edge, "the frame that the crop cuts off stays", second=crop, behind=(FIT,))
    third = on_image("brightest_marked", _mark_brightest)
    yield SMALL.exchange("harmful", ops.gamma, "the mark is made gray with the rest", second=third)


def _right_half(x: Any) -> Any:
    return x[:, x.shape[1] // 2 :].copy()


def _darken_left(x: Any) -> Any:
    out = x.copy()
    out[:, : x.shape[1] // 2] //= 4
    return out


def _frame(x: Any) -> Any:
    return cv2.rectangle(x.copy(), (0, 0), (x.shape[1] - 1, x.shape[0] - 1), (255, 0, 0), 6)


def _mark_brightest(x: Any) -> Any:
    out = x.copy()
    out[x.min(-1) > 150] = (190, 60, 60)
    return out


def _casts_and_scales() -> Iterator[Exchange]:
    exact = "it does not look at the values"
    half = (ops.to_half,)
    yield SMALL.exchange("harmless", ops.unit, "rounding to float16 alone", second=ops.to_half, behind=half)
    for first, second, why in (
        (ops.random_flip, ops.to_half, exact),
        (ops.normalise, ops.random_flip, exact),
        (ops.standardise, ops.random_flip, "mean and deviation are the same"),
        (ops.standardise, ops.to_channels_first, "mean and deviation are the same"),
        (ops.unit, ops.to_channels_first, exact),
        (ops.random_flip, ops.to_bgr, exact),
        (ops.normalise, ops.random_shift, "what is moved in is mirrored, and has values of the picture"),
        (ops.blur, ops.to_float, "rounding alone"),
        (ops.to_half, ops.gamma, "rounding alone"),
        (ops.to_half, ops.solarize, "the same bound, in both types"),
        (ops.to_float, ops.median, "the same order of values, in both types"),
    ):
        yield SMALL.exchange("harmless", first, why, second=second)
    yield SMALL.exchange("doubtful", ops.random_rotate, "corners are gray instead of black", second=ops.normalise)
    yield ExchangeKind("fitted", behind=(FIT,)).exchange(
        "harmless", ops.random_rotate, "rounding alone", second=ops.to_float
    )
    yield CENTRED.exchange("harmless", ops.normalise, exact)
    unit = (ops.unit,)
    yield RESIZED.exchange("harmless", ops.clip_unit, "nothing is clipped in either order", before=unit)
    yield SMALL.exchange("harmless", ops.clip_unit, "nothing is clipped", second=ops.blur, before=unit)


def _scales_that_matter() -> Iterator[Exchange]:
    scaled = "the values are 255 times too large or too small for it"
    floats = (ops.to_float,)
    yield SMALL.exchange("harmful", ops.unit_if_bytes, "a float is not scaled any more", second=ops.to_half)
    yield SMALL.exchange("harmful", ops.unit_if_large, scaled, second=ops.normalise_unit)
    yield SMALL.exchange("harmful", ops.to_bytes, "all becomes 0 or 1", second=ops.unit, behind=floats)
    yield SMALL.exchange("harmful", ops.to_float, "bytes wrap round at 255", second=ops.brighter, behind=floats)
    yield SMALL.exchange("harmful", ops.unit, scaled, second=ops.normalise_unit)
    yield SMALL.exchange("harmful", ops.normalise, "means of red are subtracted from blue", second=ops.to_bgr)
    yield SMALL.exchange("harmful", ops.unit, "the curve bends other values", second=ops.gamma_unit)
    yield SMALL.exchange("harmful", ops.unit, scaled, second=ops.threshold)
    yield SMALL.exchange("harmful", ops.unit, scaled, second=ops.log)
    jitter, clip = ops.jitter_unit, ops.clip_unit
    yield SMALL.exchange("harmful", jitter, "values above 1 are left", second=clip, before=(ops.unit,))
    yield SMALL.exchange("harmful", ops.standardise, "the mean and the deviation are no longer 0 and 1", second=jitter)
    yield SMALL.exchange("harmful", ops.unit, "the deviation is 1/255 instead of 1", second=ops.standardise)
    lift, dim = on_image("lift", _lift), on_image("dim", _dim)
    yield SMALL.exchange("harmful", lift, "highlights that were clipped come back", second=dim, before=(dim,))
    for first, second in ((ops.to_half, ops.brightness), (ops.to_float, lift)):
        yield SMALL.exchange(
            "doubtful", first, "dim photographs stay as they are; others would be clipped", second=second, before=(dim,)
        )
    yield SMALL.exchange("doubtful", ops.to_float, "noise is clipped at black and white", second=ops.noise)
    yield SMALL.exchange("doubtful", ops.to_float, "sharp edges are clipped at black and white", second=ops.sharpen)
    yield CUBIC.exchange("doubtful", ops.normalise, "what overshoots at edges is clipped")
    bytes_alone: GuardStep = ops.flip_if_bytes
    yield SMALL.exchange("harmful", bytes_alone, "no photograph is mirrored any more", second=ops.to_float)
    yield SMALL.exchange("harmful", ops.standardise, "the mean is no longer 0", second=ops.erase)
    yield SMALL.exchange("harmful", ops.random_flip, "pictures stand on their heads", second=ops.to_channels_first)
    yield RESIZED.exchange("harmful", ops.pad_to_square, "no bars are left, and the photograph is squeezed")


def _dim(x: Any) -> Any:
    return ops.like(x.dtype, x * np.float32(0.6))


def _lift(x: Any) -> Any:
    return ops.like(x.dtype, x * np.float32(1.8))
