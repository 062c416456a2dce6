"""Ways to damage the bytes of a file."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[random.Random, bytes], bytes]

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63)


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    count = rng.choice((1, 1, 2, 4, 16))
    return data[:at] + rng.randbytes(min(count, len(data) - at)) + data[at + count :]


def set_number(rng: random.Random, data: bytes) -> bytes:
    """Write a number that lies at the edge of a type."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data))
    number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    return (data[:at] + number.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :])[: len(data)]


def zero_block(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) // 512 + 1) * 512
    return data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 8, 512))) + data[at:]


def append(rng: random.Random, data: bytes) -> bytes:
    """Let the file go on: with itself, with zeros, with noise."""
    return data + rng.choice((data, bytes(rng.choice((1, 512, 5000))), rng.randbytes(rng.choice((1, 100, 2000)))))


def swap_blocks(rng: random.Random, data: bytes) -> bytes:
    size = rng.choice((1, 8, 64, 512))
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    one, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b"".join(blocks)


def of_range(change: Callable[[bytes, int, int], bytes]) -> Damage:
    """Return what changes a range of the bytes."""

    def damaged(rng: random.Random, data: bytes) -> bytes:
        start = rng.randrange(len(data))
        return change(data, start, min(len(data), start + rng.choice((1, 2, 7, 64, 512, 1024, 4096))))

    return damaged


ENDS_EARLY: tuple[Damage, ...] = (
    lambda rng, data: data[: rng.randrange(len(data))],
    lambda rng, data: data[: rng.randrange(len(data) // 512 + 1) * 512],
)
RANGES = (
    of_range(lambda data, start, stop: data[:start] + data[stop:]),
    of_range(lambda data, start, stop: data[:stop] + data[start:]),
    of_range(lambda data, start, stop: data[:start] + bytes(stop - start) + data[stop:]),
)
"""Left out, repeated, overwritten with zeros."""
ANY: tuple[Damage, ...] = (
    *(flip_bits, set_bytes, set_number, *ENDS_EARLY, *RANGES, zero_block, insert, append, swap_blocks) * 3,
    lambda rng, data: b"",
)
