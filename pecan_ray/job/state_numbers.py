"""Numbers in a saved state: few of them readable, many compressed, and of one state no more than a bounded number."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TypeAlias

from pecan_ray.plan.splits import END

FEW = 100
"""So many numbers stay readable."""
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

    def packed(self, numbers: Sequence[int]) -> PackedNumbers:
        """Return numbers as values that JSON has."""
        self._take(len(numbers))
        if len(numbers) <= FEW:
            return list(numbers)
        out = bytearray()
        for number in numbers:
            while number >= 0x80:
                out.append(number & 0x7F | 0x80)
                number >>= 7
            out.append(number)
        return base64.b85encode(zlib.compress(out, 9)).decode()

    def unpacked(self, packed: object) -> list[int]:
        """Return the numbers."""
        if isinstance(packed, list):
            self._take(len(packed))
            return [whole(number, END) for number in packed]
        if not isinstance(packed, str):
            raise TypeError(f"{packed!r:.40} stands for no numbers")
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b85decode(packed), LONGEST * self._left + 1)
        if not unpacking.eof or unpacking.unused_data:
            raise ValueError("numbers are cut off, or far too many")
        self._take(len(data.translate(None, CONTINUED)))
        return _numbers(data)


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
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r:.40} is no whole number from {least} to {most}")
    return value
