"""Ways to damage the bytes of a file."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[random.Random, bytes], bytes]

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63)


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    """Flip some bits."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, data: bytes) -> bytes:
    """Replace a few neighbouring bytes by other ones."""
    at = rng.randrange(len(data))
    count = rng.choice((1, 1, 2, 4, 16))
    return data[:at] + rng.randbytes(min(count, len(data) - at)) + data[at + count :]


def set_number(rng: random.Random, data: bytes) -> bytes:
    """Write a number that lies at the edge of a type."""
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data))
    number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    return (data[:at] + number.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :])[: len(data)]


def cut(rng: random.Random, data: bytes) -> bytes:
    """End in the middle."""
    return data[: rng.randrange(len(data))]


def cut_at_block(rng: random.Random, data: bytes) -> bytes:
    """End at a multiple of 512."""
    return data[: rng.randrange(len(data) // 512 + 1) * 512]


def lose(rng: random.Random, data: bytes) -> bytes:
    """Leave out a range."""
    start, stop = _range(rng, data)
    return data[:start] + data[stop:]


def double(rng: random.Random, data: bytes) -> bytes:
    """Repeat a range."""
    start, stop = _range(rng, data)
    return data[:stop] + data[start:]


def zero(rng: random.Random, data: bytes) -> bytes:
    """Overwrite a range with zeros."""
    start, stop = _range(rng, data)
    return data[:start] + bytes(stop - start) + data[stop:]


def zero_block(rng: random.Random, data: bytes) -> bytes:
    """Overwrite 512 bytes at a multiple of it with zeros."""
    at = rng.randrange(len(data) // 512 + 1) * 512
    return data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]


def insert(rng: random.Random, data: bytes) -> bytes:
    """Insert bytes."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 8, 512))) + data[at:]


def append(rng: random.Random, data: bytes) -> bytes:
    """Let the file go on: with itself, with zeros, with noise."""
    return data + rng.choice((data, bytes(rng.choice((1, 512, 5000))), rng.randbytes(rng.choice((1, 100, 2000)))))


def swap(rng: random.Random, data: bytes) -> bytes:
    """Exchange two blocks."""
    size = rng.choice((1, 8, 64, 512))
    blocks = [data[at : at + size] for at in range(0, len(data), size)]
    one, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b"".join(blocks)


def empty(rng: random.Random, data: bytes) -> bytes:
    """Leave nothing."""
    return b""


ANY: tuple[Damage, ...] = (
    *(flip_bits, set_bytes, set_number, cut, cut_at_block, lose, double, zero, zero_block, insert, append, swap) * 3,
    empty,
)


def _range(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.choice((1, 2, 7, 64, 512, 1024, 4096)))
