"""Exchanges of operators that do something strong and something weak in one function, as `augment(image)` does.

How far the strong one moves results says nothing of what becomes of the weak one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, on_audio, on_image, on_video
from benchmarks.guard.of_pixels import SAME_PICTURE, SMOOTHLY, STRONGER
from benchmarks.guard.of_sounds import FITTED, SECOND

COMPOUND = ExchangeKind("two in one", second=SMOOTHLY)


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    for name, fn, why in (
        ("negative_blurred", lambda x: cv2.GaussianBlur(255 - x, (9, 9), 2), STRONGER),
        ("darkened_blurred", lambda x: cv2.GaussianBlur(x // 3, (9, 9), 2), STRONGER),
        ("negative_with_text", _negative_with_text, "the text is three times as large"),
        ("gray_jpeg", _gray_jpeg, "blocks of 8 pixels become three times as large"),
        ("lighter_with_frame", _lighter_with_frame, "the frame is three times as wide"),
        ("solarized_sharpened", lambda x: ops.sharpen.fn(np.where(x < 128, x, 255 - x)), STRONGER),
        ("scaled_and_blurred", lambda x: cv2.GaussianBlur(x.astype(np.float32) / 255, (9, 9), 2), STRONGER),
        ("normalised_and_blurred", lambda x: cv2.GaussianBlur(ops.normalise.fn(x), (9, 9), 2), STRONGER),
        ("mirrored_and_blurred", lambda x: cv2.GaussianBlur(x[:, ::-1], (9, 9), 2), STRONGER),
        ("mirrored_with_plate", _mirrored_with_plate, "the plate that is hidden is visible"),
        ("darkened_with_small_face", _darkened_with_small_face, "the face that is hidden is visible"),
        ("gray_with_small_face", _gray_with_small_face, "the face that is averaged is visible"),
    ):
        yield COMPOUND.exchange("harmful", on_image(name, fn), why)
    noise = on_image("negative_with_noise", _negative_with_noise, random=True)
    yield COMPOUND.exchange("harmful", noise, "the resize averages noise away, and would not touch it")
    for name, fn in (
        ("negative_curve", lambda x: ops.like(np.uint8, 255 * ((255 - x) / 255.0) ** 0.8)),
        ("mirrored_gray", lambda x: cv2.cvtColor(cv2.cvtColor(x[:, ::-1], cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)),
        ("scaled_and_mirrored", lambda x: np.ascontiguousarray(x[:, ::-1].astype(np.float32) / 255)),
        ("darkened_sepia", lambda x: ops.like(np.uint8, x.astype(np.float32) @ np.full((3, 3), 0.2, np.float32))),
    ):
        yield COMPOUND.exchange("harmless", on_image(name, fn), SAME_PICTURE)
    smoothed = on_audio("negative_smoothed", lambda x: -np.convolve(x, np.ones(5, np.float32) / 5, "same"))
    yield FITTED.exchange("harmful", smoothed, "five samples become ten", second=SECOND)
    halved = on_audio("scaled_to_16_bits", lambda x: np.convolve(x * 32767, np.ones(5) / 5, "same").astype(np.float32))
    yield FITTED.exchange("harmful", halved, "five samples become ten", second=SECOND)
    muted = on_audio("softer_with_a_word_muted", _softer_with_a_word_muted)
    yield FITTED.exchange("harmful", muted, "the word that is muted is heard", second=SECOND)
    fourth = on_video("every_4th", lambda x: x[::4].copy())
    film = on_video("negative_smoothed", _negative_smoothed)
    yield ExchangeKind("two in one").exchange("harmful", film, "five frames become twenty", second=fourth)


def _darkened_with_small_face(x: Any) -> Any:
    out = cv2.convertScaleAbs(x, alpha=0.3)
    out[-19:-3, -19:-3] = 0
    return out


def _gray_with_small_face(x: Any) -> Any:
    out = cv2.cvtColor(cv2.cvtColor(x, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    out[-19:-3, -19:-3] = out[-19:-3, -19:-3].mean(axis=(0, 1)).astype(np.uint8)
    return out


def _softer_with_a_word_muted(x: Any) -> Any:
    out = x * np.float32(0.3)
    out[8000:8150] = 0  # of 12,000
    return out


def _negative_with_text(x: Any) -> Any:
    return cv2.putText(255 - x, "ID 17", (6, 20), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (128, 128, 128), 1)


def _gray_jpeg(x: Any) -> Any:
    gray = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)
    again = cv2.imdecode(cv2.imencode(".jpg", gray, [cv2.IMWRITE_JPEG_QUALITY, 20])[1], cv2.IMREAD_GRAYSCALE)
    assert again is not None
    return cv2.cvtColor(again, cv2.COLOR_GRAY2RGB)


def _lighter_with_frame(x: Any) -> Any:
    out = ops.like(np.uint8, x.astype(np.float32) * 0.5 + 120)
    return cv2.rectangle(out, (0, 0), (x.shape[1] - 1, x.shape[0] - 1), (180, 180, 180), 3)


def _mirrored_with_plate(x: Any) -> Any:
    out = np.ascontiguousarray(x[:, ::-1])
    out[40:52, 60:96] = out[40:52, 60:96].mean((0, 1))
    return out


def _negative_with_noise(x: Any, rng: Any) -> Any:
    return ops.like(np.uint8, 255 - x.astype(np.float32) + rng.normal(0, 12, x.shape))


def _negative_smoothed(x: Any) -> Any:
    frames = 255 - x.astype(np.float32)
    return (sum(np.roll(frames, k, 0) for k in (-2, -1, 0, 1, 2)) / 5).astype(np.uint8)
