"""How a photograph is to be turned when it is shown: a number, as EXIF data have it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

UPRIGHT = 1
"""As it is stored."""
TAG = 0x0112
"""Exif's field for the orientation."""
FIRST_SWAPPED = 5
"""From this number on rows are stored as columns."""
FLIPPED_ROWS = (3, 4, 7, 8)
"""Numbers that stand, when that is mended, for the last row first,"""
FLIPPED_COLUMNS = (2, 3, 6, 7)
"""and for the last column first."""
TURNED = (1, 8, 3, 6)
"""The numbers of pictures that an AVIF turns by so many quarters to the left,"""
MIRRORED = ((4, 2), (5, 7), (2, 4), (7, 5))
"""and of those that are then mirrored, top to bottom or left to right."""
MOST_FIELDS = 1000
"""Of EXIF data that are looked at."""
WHOLE_NUMBER = 3
"""The type of the field, two bytes."""


def orientation(encoded: bytes | bytearray) -> int:
    """Return the number from 1 to 8 that a JPEG, PNG, WebP or AVIF says; 1 where it says none, or no such number."""
    try:
        if encoded[4:8] == b"ftyp":
            return _container_orientation(encoded)
        return _metadata_orientation(_exif(encoded))
    except (struct.error, IndexError):
        return UPRIGHT  # it ends too early


def with_orientation(jpeg: bytes, number: int) -> bytes:
    """Return a JPEG that says no orientation with one; itself for upright ones."""
    if number == UPRIGHT:
        return jpeg
    field = struct.pack(">HHIHH", TAG, WHOLE_NUMBER, 1, number, 0)
    exif = b"Exif\0\0" + struct.pack(">2sHIH", b"MM", 42, 8, 1) + field + bytes(4)
    at = 4 + int.from_bytes(jpeg[4:6], "big") if jpeg[2:4] == b"\xff\xe0" else 2  # behind the header of JFIF
    return jpeg[:at] + b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif + jpeg[at:]


def apply_orientation(image: np.ndarray[Any, Any], number: int) -> np.ndarray[Any, Any]:
    """Return an image [height, width, ...], as it is stored, as the number says that it is shown."""
    if number >= FIRST_SWAPPED:
        image = image.swapaxes(0, 1)
    if number in FLIPPED_ROWS:
        image = image[::-1]
    if number in FLIPPED_COLUMNS:
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _container_orientation(encoded: bytes | bytearray) -> int:
    """Return the number of an AVIF: what turns the picture there are properties, and EXIF data say nothing."""
    start, stop = 0, len(encoded)
    for name, head in ((b"meta", 4), (b"iprp", 0), (b"ipco", 0)):
        start, stop = _container_sections(encoded, start, stop).get(name, (0, 0))
        start += head
    found = _container_sections(encoded, start, stop)
    quarters = encoded[found[b"irot"][0]] & 3 if b"irot" in found else 0
    return TURNED[quarters] if b"imir" not in found else MIRRORED[quarters][encoded[found[b"imir"][0]] & 1]


def _container_sections(encoded: bytes | bytearray, at: int, stop: int) -> dict[bytes, tuple[int, int]]:
    """Return where the contents of boxes (size, name, content) begin and end, by name; the first of each."""
    found: dict[bytes, tuple[int, int]] = {}
    while at + 8 <= stop:
        size, name = struct.unpack_from(">I4s", encoded, at)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", encoded, at + 8)
            head = 16
        end = at + size if size else stop
        found.setdefault(name, (at + head, end))
        at = max(end, at + head)
    return found


def _metadata_orientation(exif: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return UPRIGHT
    (first,) = struct.unpack_from(f"{order}I", exif, 4)
    (fields,) = struct.unpack_from(f"{order}H", exif, first)
    for at in range(min(fields, MOST_FIELDS)):
        tag, kind, count, value = struct.unpack_from(f"{order}HHIH", exif, first + 2 + 12 * at)
        if (tag, kind, count) == (TAG, WHOLE_NUMBER, 1):
            return int(value) if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def _exif(encoded: bytes | bytearray) -> bytes:
    """Return the EXIF data of a file; empty if there are none."""
    if encoded[:2] == b"\xff\xd8":
        return _of_jpeg(encoded)
    if encoded[:8] == b"\x89PNG\r\n\x1a\n":
        return _of_chunks(encoded, 8, ">I4s", b"eXIf")
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return _of_chunks(encoded, 12, "<4sI", b"EXIF")
    return b""


def _of_jpeg(encoded: bytes | bytearray) -> bytes:
    at = 2
    while at + 4 <= len(encoded) and encoded[at] == 0xFF and encoded[at + 1] != 0xDA:
        if encoded[at + 1] == 0xFF:
            at += 1
            continue
        end = at + 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
        if encoded[at + 1] == 0xE1 and encoded[at + 4 : at + 10] == b"Exif\0\0":
            return bytes(encoded[at + 10 : end])
        at = end
    return b""


def _of_chunks(encoded: bytes | bytearray, at: int, head: str, wanted: bytes) -> bytes:
    """Return what is in a chunk of a PNG (size, name, content, sum) or of a WebP (name, size, content)."""
    while at + 8 <= len(encoded):
        one, other = struct.unpack_from(head, encoded, at)
        name, size = (other, one) if isinstance(one, int) else (one, other)
        if name == wanted:
            content = bytes(encoded[at + 8 : at + 8 + size])
            return content.removeprefix(b"Exif\0\0")
        at += 8 + size + (4 if head[0] == ">" else size % 2)
    return b""
