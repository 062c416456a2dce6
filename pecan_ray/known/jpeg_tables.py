"""Whether a baseline JPEG has all that decoding its data needs: decoders refuse a file for its headers alone.

Of data that are damaged every decoder makes some pixels (libjpeg warns), so a file that passes here fails nowhere. A
file that is refused here without need costs nothing but being decoded by its worker.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

FRAME, HUFFMAN, QUANTIZATION, SCAN, RESTART = 0xC0, 0xC4, 0xDB, 0xDA, 0xDD
"""Markers of segments of ITU-T T.81, table B.1."""
IGNORED = frozenset((0xFE, *range(0xE0, 0xF0)))
"""Comments, and what applications write."""
BASELINE_SCAN = b"\x00\x3f\x00"
"""All coefficients at once: first, last, and no approximation."""
TABLES = 4
"""Numbers of tables are smaller."""
DC_SYMBOLS = 16
"""A difference of 8-bit images has fewer bits; libjpeg refuses tables with others."""


def has_all_tables(encoded: bytes) -> bool:
    """Tell whether the headers of a baseline JPEG of one scan are well, and name no table that is missing."""
    quantization, huffman, frame = set[int](), set[int](), b""
    for marker, body in _segments(encoded):
        if marker == SCAN:
            return _fits(frame, body, quantization, huffman)
        if marker == QUANTIZATION:
            found = _quantization_tables(body)
            quantization |= found
        elif marker == HUFFMAN:
            found = _huffman_tables(body)
            huffman |= found
        else:
            # A second frame is refused, as is any segment that is of no baseline file.
            well = marker in IGNORED or (marker == RESTART and len(body) == 2) or (marker == FRAME and not frame)
            frame, found = (body if marker == FRAME else frame), {0} if well else set()
        if not found:
            return False
    return False


def _segments(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield markers and bodies of segments, to the scan."""
    at = 2
    while at + 4 <= len(encoded) and encoded[at] == 0xFF:
        marker, size = encoded[at + 1], int.from_bytes(encoded[at + 2 : at + 4], "big")
        if size < 2:
            return
        yield marker, encoded[at + 4 : at + 2 + size]
        at += 2 + size


def _quantization_tables(body: bytes) -> set[int]:
    """Return the numbers of the tables of a segment; none if one is not of 8 bits, or not complete."""
    tables = [body[at : at + 65] for at in range(0, len(body), 65)]
    well = all(len(table) == 65 and table[0] < TABLES for table in tables)
    return {table[0] for table in tables} if well else set()


@functools.lru_cache(maxsize=256)  # most files have the same ones
def _huffman_tables(body: bytes) -> set[int]:
    """Return the numbers of the tables of a segment, those of coefficients with 16 more; none if one is not well."""
    found, at = set[int](), 0
    while at < len(body):
        number, counts = body[at], body[at + 1 : at + 17]
        symbols = body[at + 17 : at + 17 + sum(counts)]
        complete = len(counts) == 16 and len(symbols) == sum(counts) <= 256
        is_difference = number < 16
        if not complete or number % 16 >= TABLES or number >= 32 or not _are_codes(counts):
            return set()
        if is_difference and max(symbols, default=0) >= DC_SYMBOLS:
            return set()
        found.add(number)
        at += 17 + len(symbols)
    return found


def _are_codes(counts: bytes) -> bool:
    """Tell whether there are so many codes of 1, 2 ... 16 bits of which none begins another one."""
    code = 0
    for bits, count in enumerate(counts, 1):
        code += count
        if code > 1 << bits:
            return False
        code <<= 1
    return True


def _fits(frame: bytes, scan: bytes, quantization: set[int], huffman: set[int]) -> bool:
    """Tell whether a scan is of all components of a frame, and has their tables."""
    if len(frame) < 6 or len(frame) != 6 + 3 * frame[5] or len(scan) != 4 + 2 * frame[5] or scan[0] != frame[5]:
        return False
    names, tables = frame[6::3], scan[2:-3:2]
    return (
        scan[1:-3:2] == names
        and len(set(names)) == len(names)
        and quantization.issuperset(frame[8::3])
        and huffman.issuperset(one >> 4 for one in tables)
        and huffman.issuperset(16 + one % 16 for one in tables)
        and scan[-3:] == BASELINE_SCAN
    )
