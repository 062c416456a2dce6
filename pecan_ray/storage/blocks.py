"""The blocks of one object: how they are named, which follow one another, and the bytes that they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pecan_ray.storage.digest import BLOCK_BYTES, ObjectDigest, block_hash


@dataclass(frozen=True)
class BlockRun:
    """Blocks of one object that follow one another, from the first to one before the last."""

    first: int
    last: int

    @property
    def numbers(self) -> range:
        """All of them."""
        return range(self.first, self.last)

    @property
    def start(self) -> int:
        """The first byte."""
        return self.first * BLOCK_BYTES

    @property
    def stop(self) -> int:
        """One behind the last byte, if the object does not end before."""
        return self.last * BLOCK_BYTES


BlockPiece: TypeAlias = tuple["bytes | memoryview", BlockRun | None]
"""The bytes of blocks, and which they are, if they were here."""


@dataclass(frozen=True)
class ObjectBlocks:
    """The object that is read, and how its blocks are named."""

    path: str
    version: str
    known: ObjectDigest | None

    def key(self, number: int) -> str:
        """Return the name of a block."""
        if self.known is not None:
            return self.known.block(number).hex()
        text = f"{self.path}\0{self.version}\0{number}"
        # As long as the hashes of digests, since both name blocks in one folder.
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).hexdigest()

    def first_mismatch(self, first: int, data: bytes) -> int | None:
        """Return the first byte of the first block that is not what the digest tells of; None: there is none."""
        if self.known is None:
            return None
        view = memoryview(data)
        for at in range(0, len(view), BLOCK_BYTES):
            if block_hash(view[at : at + BLOCK_BYTES]) != self.known.block(first + at // BLOCK_BYTES):
                return first * BLOCK_BYTES + at
        return None


def overlap(run: BlockRun, start: int, stop: int) -> int:
    """Return how many bytes between two of an object lie in blocks."""
    return max(0, min(run.stop, stop) - max(run.start, start))


def cut(data: bytes, begin: int, start: int, stop: int | None) -> bytes:
    """Return what lies between two bytes of data that begins at another one."""
    # Whole blocks are the common case, and a slice would be a copy.
    if start == begin and (stop is None or stop - begin >= len(data)):
        return data
    return data[start - begin : None if stop is None else stop - begin]


def runs_of(numbers: Sequence[int]) -> Iterator[BlockRun]:
    """Yield runs of numbers that follow one another."""
    first = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield BlockRun(numbers[first], numbers[place - 1] + 1)
            first = place


def in_row(pieces: Mapping[int, BlockPiece], number: int) -> Iterator[BlockPiece]:
    """Yield pieces that follow one another from a block on, as far as they are whole."""
    while (piece := pieces.get(number)) is not None:
        yield piece
        whole, rest = divmod(len(piece[0]), BLOCK_BYTES)
        # A short piece is the object's end, or an answer that has ended early: what follows it would stand in
        # a wrong place.
        if rest or not whole:
            return
        number += whole
