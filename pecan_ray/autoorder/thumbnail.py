"""A small picture of an array, for people: PNG as text for a page."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

SIDE = 160
"""Pixels of the longer side."""
CHANNELS = (1, 3, 4)


def thumbnail(array: np.ndarray[Any, Any]) -> str:
    """Return a picture as a data URL; empty for an array that is none."""
    image = _as_image(array)
    if image is None:
        return ""
    step = max(1, -(-max(image.shape[:2]) // SIDE))
    small = np.ascontiguousarray(image[::step, ::step])
    height, width, channels = small.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), small.reshape(height, width * channels)], axis=1)
    kind = {1: 0, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def _as_image(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return [height, width, channels] in bytes: floats from their least to their largest value."""
    if array.dtype.kind not in "uif" or array.ndim not in (2, 3) or min(array.shape[:2]) == 0:
        return None
    if array.ndim == 2:
        array = array[..., None]
    elif array.shape[-1] not in CHANNELS and array.shape[0] in CHANNELS:
        array = np.moveaxis(array, 0, -1)
    if array.shape[-1] not in CHANNELS or min(array.shape[:2]) < CHANNELS[-1]:
        return None
    if array.dtype == np.uint8:
        return array
    numbers = np.nan_to_num(array.astype(np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    return np.asarray((numbers - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
