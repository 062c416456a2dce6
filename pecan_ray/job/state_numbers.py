"""Numbers in a saved state: few of them readable, many compressed, and of one state no more than a bounded number."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.plan.splits import END

FEW = 100
"""Most numbers that stay readable."""
MOST_NUMBERS = 1 << 22
"""In a state, which are the ends of two million intervals: a damaged one must not fill the memory."""
LONGEST = 9
"""Bytes of a number, of seven bits each: up to `END`."""
CONTINUED = bytes(range(0x80, 0x100))
PackedNumbers: TypeAlias = "list[int] | str"


class StateNumbers:
    """Writes or reads the numbers of one state; raises ValueError where they are too many, or none."""

    def __init__(self) -> None:
        self._left = MOST_NUMBERS

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"it has more than {MOST_NUMBERS:,} numbers")

    def packed(self, numbers: Sequence[int] | npt.NDArray[np.int64], *, alike: bool = False) -> PackedNumbers:
        """Return numbers as values that JSON has; `alike`: all are of one kind, so that few of them are frequent."""
        self._take(len(numbers))
        if len(numbers) <= FEW:
            return [int(number) for number in numbers]
        # How often each comes, and runs of the same, are all that there is to find: more only takes ten times as long.
        strategy = zlib.Z_RLE if alike else zlib.Z_DEFAULT_STRATEGY
        packing = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
        data = packing.compress(_bytes(np.asarray(numbers, np.int64))) + packing.flush()
        return base64.b85encode(data).decode()

    def from_packed(self, packed: object) -> list[int]:
        """Return the numbers."""
        if isinstance(packed, list):
            self._take(len(packed))
            return [whole(number, END) for number in packed]
        if not isinstance(packed, str):
            raise TypeError(f"{packed!r:.40} stands for no numbers")
        unpacking = zlib.decompressobj()
        # Bounded, because a few damaged bytes may unpack to more than fits into memory.
        data = unpacking.decompress(base64.b85decode(packed), LONGEST * self._left + 1)
        if not unpacking.eof or unpacking.unused_data:
            raise ValueError("numbers are cut off, or far too many")
        # Each number ends with the only byte of it below 0x80, so these bytes count the numbers
        # before any is read.
        self._take(len(data.translate(None, CONTINUED)))
        return _numbers(data)


def _bytes(numbers: npt.NDArray[np.int64]) -> bytes:
    """Return numbers in bytes of seven bits each, the lowest ones first; all but the last say that more follow."""
    # Columns of small numbers are frequent, and each number is its only byte.
    if int(numbers.max()) < 0x80:
        return numbers.astype(np.uint8).tobytes()
    widths = np.ones(len(numbers), np.int64)
    for place in range(1, LONGEST):
        widths += numbers >= 1 << 7 * place
    ends = np.cumsum(widths)
    out = np.empty(int(ends[-1]), np.uint8)
    for place in range(int(widths.max())):
        has = widths > place
        septets = numbers[has] >> 7 * place & 0x7F
        out[(ends - widths)[has] + place] = septets | np.where(widths[has] > place + 1, 0x80, 0)
    return out.tobytes()


def _numbers(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(whole(number, END))
            number = shift = 0
        elif shift >= 7 * LONGEST:
            raise ValueError("a number is too long")
    if shift:
        raise ValueError("it ends in the middle of a number")
    return numbers


def whole(value: object, most: int = 1 << 53, least: int = 0) -> int:
    """Return a whole number within bounds; by default those that JSON keeps everywhere."""
    # Not isinstance: True is an int, too.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no whole number from {least} to {most}")
    return value
