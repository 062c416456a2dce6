"""Decoding a part of a JPEG by TurboJPEG 3, with the very pixels that decoding the whole and cutting has.

Entropy-coded data has to be read from the top, but transforms, upsampling and conversion to RGB are done for the rows
and columns of the part alone, and nothing below it is read.  The library is that of the system, or one that a wheel
brings (`pip install pecan_ray[jpeg]`); it is used only after it has agreed with OpenCV, bit by bit, on images of every
kind that it is used for.  A file that is not of these kinds, or at which the library complains, is for OpenCV.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import itertools
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

logger = logging.getLogger("pecan_ray")

Pixels: TypeAlias = "npt.NDArray[np.uint8]"
PartBox: TypeAlias = "tuple[int, int, int, int]"
"""Top, left, height and width, in pixels of the (reduced) image."""

NOT_THERE = "there is no library TurboJPEG 3 (pip install pecan_ray[jpeg])"
NO_OPENCV = "there is no OpenCV to compare pixels with (pip install pecan_ray[jpeg])"
BLOCK = 8
"""Rows and columns of a block of coefficients."""
REACH = 2
"""Columns by which the colour of a pixel is interpolated where colours are stored at half the width."""
END = b"\xff\xd9"
SAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2))
"""Blocks of brightness for one of colour, across and down, of the files that are decoded in part."""


@dataclass(frozen=True)
class JpegHeader:
    """What a JPEG says of itself."""

    height: int
    width: int
    sampling: tuple[int, int] | None = None
    """Blocks of brightness for one of colour, across and down; None: it is decoded whole."""
    is_rgb: bool = False
    """It stores red, green and blue, as Adobe's marker or the names of its colours say; not every decoder looks."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    def reduced(self, ratio: int) -> tuple[int, int]:
        """Return height and width when it is decoded at 1/`ratio` of its size."""
        return -(-self.height // ratio), -(-self.width // ratio)

    def columns(self, part: PartBox, ratio: int) -> tuple[int, int]:
        """Return the first column to decode for a part, and that behind the last one.

        A region begins at a whole unit of blocks.  At its sides colours would be interpolated as at the border of an
        image, so that some columns more are decoded where they are stored at less than the full width.
        """
        (_, left, _, width), (across, _) = part, self.sampling or (1, 1)
        unit = max(BLOCK * across // ratio, 1)
        reach = REACH if across > 1 else 0
        # docs/decisions/rewrites.md#56-parts-of-jpegs-by-turbojpeg has what each of these rules is for.
        first = max(left - reach, 0) // unit * unit
        return first, min(left + width + reach, self.reduced(ratio)[1])


# All but tables of codes (C4, CC) and one that is reserved (C8).
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the header of a frame."""
SCAN = 0xDA
"""The marker behind whose segment the data of a scan follows."""
ADOBE, AS_STORED = 0xEE, b"\0"
"""The marker of a segment that begins with "Adobe" and ends with how colours were transformed: they were not."""


def read_header(encoded: Any) -> JpegHeader | None:
    """Return the header of a JPEG; None for any other file."""
    if not isinstance(encoded, (bytes, bytearray)):
        return None
    header: JpegHeader | None = None
    colours, is_rgb = 0, False
    for marker, at, size in _segments(encoded):
        if marker == SCAN and header is not None:
            # A decoder stops at the first marker of an end, whatever follows it.  Without one the data may lack rows
            # below the part, of which the whole has an error.  Colours may be in scans of their own.
            fits = colours == encoded[at + 4] and encoded.rfind(END, at + 2 + size) >= 0
            return replace(header, sampling=header.sampling if fits else None, is_rgb=is_rgb or header.is_rgb)
        if marker == ADOBE and encoded[at + 4 : at + 9] == b"Adobe":
            is_rgb = encoded[at + 15 : at + 16] == AS_STORED
        if marker in FRAMES:
            header, colours = _frame(marker, bytes(encoded[at + 4 : at + 2 + size])), encoded[at + 9]
    return None if header is None else replace(header, sampling=None)


def _segments(encoded: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield the marker of each segment of a JPEG, where it begins, and its bytes behind the marker."""
    at = 2 if encoded.startswith(b"\xff\xd8") else len(encoded)
    while at + 9 < len(encoded) and encoded[at] == 0xFF:
        marker, size = encoded[at + 1], int.from_bytes(encoded[at + 2 : at + 4], "big")
        # Any number of FF may stand before a marker.
        if marker == 0xFF:
            at += 1
            continue
        yield marker, at, size
        at += 2 + size


def _frame(marker: int, body: bytes) -> JpegHeader:
    """Return what the header of a frame says; without a sampling for one that is decoded whole."""
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    whole = JpegHeader(height, width)
    # Baseline of 8 bits alone, and not progressive: the comparison at load knows no other kind.
    if marker != 0xC0 or len(body) < 6 or len(body) < 6 + 3 * body[5] or body[0] != 8:
        return whole
    factors = [(body[at] >> 4, body[at] & 15) for at in range(7, 6 + 3 * body[5], 3)]
    known = {1: SAMPLINGS[:1], 3: SAMPLINGS}.get(len(factors), ())
    if not (height and width and factors) or factors[0] not in known or set(factors[1:]) - {(1, 1)}:
        return whole
    return replace(whole, sampling=factors[0], is_rgb=body[6:13:3] == b"RGB")


class _Region(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int))


class _Scaling(ctypes.Structure):
    _fields_ = (("num", ctypes.c_int), ("denom", ctypes.c_int))


# TJINIT_DECOMPRESS, TJPARAM_STOPONWARNING, TJPARAM_JPEGWIDTH and TJPARAM_JPEGHEIGHT of turbojpeg.h.
DECOMPRESS, STOP_ON_WARNING, WIDTH, HEIGHT = 1, 0, 5, 6
PIXEL_FORMATS = {3: 0, 4: 2}
"""TJPF_RGB and TJPF_RGBX, whose fourth byte means nothing, by the bytes of a pixel."""
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tj3Init": (ctypes.c_void_p, (ctypes.c_int,)),
    "tj3Destroy": (None, (ctypes.c_void_p,)),
    "tj3Set": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)),
    "tj3Get": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int)),
    "tj3DecompressHeader": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)),
    "tj3SetScalingFactor": (ctypes.c_int, (ctypes.c_void_p, _Scaling)),
    "tj3SetCroppingRegion": (ctypes.c_int, (ctypes.c_void_p, _Region)),
    "tj3Decompress8": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    ),
}
"""What is called of the library: the type of the result, and those of the arguments."""


class TurboJpeg:
    """The functions of a library TurboJPEG 3 that decode a part."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError for an older library."""
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def part(
        self, encoded: bytes, header: JpegHeader, part: PartBox, ratio: int = 1, channels: int = 3
    ) -> Pixels | None:
        """Return a part of an image at 1/`ratio` of its size as uint8 RGB; None where the library complains.

        With 4 `channels` the last one means nothing.
        """
        library, size = self._library, len(encoded)
        top, left, height, width = part
        first, behind = header.columns(part, ratio)
        out: Pixels = np.empty((height, behind - first, channels), np.uint8)
        # One decompressor for one image: it would lend the tables of one to the next that lacks its own.
        pointer = library.tj3Init(DECOMPRESS)
        if not pointer:
            raise MemoryError("TurboJPEG has no memory for a decompressor")
        try:
            pixels = (out.ctypes.data, out.strides[0], PIXEL_FORMATS[channels])
            failed = (
                # Behind a warning pixels may differ from OpenCV's: then the whole is decoded.
                library.tj3Set(pointer, STOP_ON_WARNING, 1)
                or library.tj3DecompressHeader(pointer, encoded, size)
                # By our own look at the header was decided what is decoded: the library must see the same.
                or (library.tj3Get(pointer, HEIGHT), library.tj3Get(pointer, WIDTH)) != header.shape
                or library.tj3SetScalingFactor(pointer, _Scaling(1, ratio))
                or library.tj3SetCroppingRegion(pointer, _Region(first, top, behind - first, height))
                or library.tj3Decompress8(pointer, encoded, size, *pixels)
            )
        finally:
            library.tj3Destroy(pointer)
        if failed:
            return None
        return out[:, left - first : left - first + width]


def libraries() -> Iterator[str]:
    """Yield what may be a library TurboJPEG 3: the system's, that of the environment, those in wheels."""
    for name in ("libturbojpeg.so.0", "libturbojpeg.0.dylib", "turbojpeg.dll"):
        yield name
        for folder in ("lib", "Library/bin"):  # of a conda environment, which the loader does not look into
            if (path := Path(sys.prefix, folder, name)).exists():
                yield str(path)
    for wheel in ("pylibjxl", "turbojpeg"):
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.match(r"(_pylibjxl|libturbojpeg).*\.(so[.\d]*|dylib|dll|pyd)$", file.name):
                yield str(file.locate())


@functools.cache
def library() -> TurboJpeg | str:
    """Return the library, or why there is none that can be used."""
    if importlib.util.find_spec("cv2") is None:
        return NO_OPENCV
    why = NOT_THERE
    for path in libraries():
        try:
            found = TurboJpeg(ctypes.CDLL(path))
        except (OSError, AttributeError):
            continue
        if disagrees := disagreement(found):
            why = f"{path} is not used: {disagrees}"
            # No warning: without it crops are right as well, and cost what they did.
            logger.info("%s", why)
            continue
        return found
    return why


def disagreement(found: TurboJpeg) -> str:
    """Return on which kind of image a library makes other pixels than OpenCV; empty if on none."""
    import cv2

    # Of sides that no block divides, so that borders are compared as well.
    noise = np.random.default_rng(0).integers(0, 256, (70, 101, 3), np.uint8)
    picture = cv2.GaussianBlur(noise, (0, 0), 1.5)
    factors = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422)
    others = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420)
    flags = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    flags |= {8: cv2.IMREAD_REDUCED_COLOR_8}
    for factor, colour, (ratio, flag) in itertools.product((*factors, *others), (True, False), flags.items()):
        image = picture if colour else picture[..., 0]
        encoded = bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor])[1])
        header, decoded = read_header(encoded), cv2.imdecode(np.frombuffer(encoded, np.uint8), flag)
        assert header is not None and header.sampling is not None and decoded is not None
        whole = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
        # All of it, a part from its midst, one pixel, and a part in the corner at the right and below.
        for part in ((0, 0, 70, 101), (17, 33, 40, 51), (31, 16, 1, 1), (16, 47, 54, 54)):
            top, left, height, width = (side // ratio for side in part)
            height, width = max(height, 1), max(width, 1)
            made = found.part(encoded, header, (top, left, height, width), ratio)
            if made is None or not np.array_equal(made, whole[top : top + height, left : left + width]):
                kind = f"{header.sampling[0]} x {header.sampling[1]} blocks of {'RGB' if colour else 'gray'}"
                return f"it decodes {kind} at 1/{ratio} otherwise than OpenCV"
    return ""


def decode_part(encoded: Any, header: JpegHeader, part: PartBox, ratio: int = 1, channels: int = 3) -> Pixels | None:
    """Return a part of an image at 1/`ratio` of its size as uint8 RGB; None: decode the whole.

    What of the part lies outside of the image is left out.  With 4 `channels` the last one means nothing.
    """
    if header.sampling is None or not isinstance(encoded, bytes):
        return None
    turbo, (rows, columns) = library(), header.reduced(ratio)
    top, left, height, width = part
    height, width = min(height, rows - top), min(width, columns - left)
    if isinstance(turbo, str) or min(height, width) < 1 or min(top, left) < 0:
        return None
    return turbo.part(encoded, header, (top, left, height, width), ratio, channels)
