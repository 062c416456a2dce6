"""Whether a listing is the one that a state was taken of: digests of its splits, in groups, so that places can be told.

Which files have changed is told by *marks*: sums of what stands for each file over those whose numbers leave the same
remainder, for some divisors.  A file of which all sums differ has changed, as long as few have.

A split counts by its path, range, number of elements and version; what else a source keeps in it may differ from run to
run.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.job.resume_point import KnownListing
from pecan_ray.plan.splits import Split

FileNumbers: TypeAlias = npt.NDArray[np.uint32]

LEAF = 64
"""Splits that are digested together."""
# Digests of groups that a state holds, however many splits there are: they grow with the splits, so that a state
# does not.
MOST_GROUPS = 32
# No two of these have a common divisor. So of 1.3 * 10^9 files no two share all five sums.
DIVISORS = (61, 64, 67, 71, 73)
FIRSTS = (0, 61, 125, 192, 263)
"""Where the sums of each begin."""
MOST_NAMED = 5
"""Most files that are named: a message has room for them."""
SIZE = 8
"""Bytes of a digest: what differs by chance goes unseen once in 10^19 cases."""


class ListingDigest:
    """Digests of the first splits of a listing, however many there are by then."""

    def __init__(self) -> None:
        self.splits = 0
        self._leaves = bytearray()
        self._open = bytearray()
        """What the next leaf is a digest of."""
        self._files = 0
        # Sums may overflow: both listings are summed modulo 2**32, so equal files still have equal marks.
        self._digest = np.zeros(sum(DIVISORS), np.uint32)

    def add(self, page: Iterable[Split]) -> None:
        """Take splits in, as they are listed."""
        files: list[int] = []
        for split in page:
            # The repr of texts and numbers is the same in every process, as a hash or a pickle need not be.
            told = repr((split.path, split.start, split.stop, split.counted, split.version)).encode()
            self._open += told
            if split.files:
                self._open += repr((split.files, split.versions)).encode()
            # A split of several files counts each of them, so that the changed ones can be named.
            files += map(_number_of, _files_of(split)) if split.files else (zlib.crc32(told),)
            self.splits += 1
            if self.splits % LEAF == 0:
                self._leaves += hashlib.blake2b(self._open, digest_size=SIZE).digest()
                self._open.clear()

        self._mark(np.array(files, np.uint32))

    def _mark(self, files: FileNumbers) -> None:
        for first, divisor in zip(FIRSTS, DIVISORS, strict=True):
            classes = first + np.arange(self._files, self._files + len(files)) % divisor
            np.add.at(self._digest, classes, files)
        self._files += len(files)

    def digest(self) -> str:
        """Return the marks of all files so far."""
        return base64.b85encode(zlib.compress(self._digest.astype("<u4").tobytes(), 9)).decode() if self.splits else ""

    def groups(self) -> tuple[str, ...]:
        """Return a digest for each group of splits, the last one of an incomplete leaf."""
        width = SIZE * _leaves_of_group(self.splits)
        whole = [_digest(self._leaves[at : at + width]) for at in range(0, len(self._leaves), width)]
        return (*whole, _digest(self._open)) if self.splits % LEAF else tuple(whole)


def read_digest(marks: str) -> FileNumbers:
    """Return marks as they were; raises ValueError where they are none."""
    # Bounded, because a damaged state may unpack to any size. One byte more than expected shows that.
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(base64.b85decode(marks), 4 * sum(DIVISORS) + 1)
    if len(data) != 4 * sum(DIVISORS):
        raise ValueError("marks are damaged")
    return np.frombuffer(data, "<u4")


def _files_of(split: Split) -> Iterator[tuple[str, ...]]:
    return zip_longest(split.files, split.versions, fillvalue="")


def _number_of(file: tuple[str, ...]) -> int:
    return zlib.crc32(repr(file).encode())


def changed_files(before: str, now: str, splits: Iterable[Split], places: Sequence[tuple[int, int]]) -> list[str]:
    """Return the paths of files whose marks differ; more than have changed, where these are many.

    `splits`: those of which there are marks; `places`: those among them of which some have changed.
    """
    differ = read_digest(before) != read_digest(now)
    found, number = list[str](), 0
    for split in splits:
        count = len(split.files) or 1
        if not any(start <= split.index < stop for start, stop in places):
            number += count
            continue
        numbers = np.arange(number, number + count)
        pairs = zip(FIRSTS, DIVISORS, strict=True)
        changed = np.logical_and.reduce([differ[first + numbers % divisor] for first, divisor in pairs])
        found += [split.file_of(int(place)) for place in np.flatnonzero(changed)]
        number += count
    return list(dict.fromkeys(found))


def groups_of(splits: int) -> int:
    """Return how many digests there are of so many splits."""
    return -(-(splits // LEAF) // _leaves_of_group(splits)) + (splits % LEAF > 0)


def _leaves_of_group(splits: int) -> int:
    leaves = splits // LEAF
    return max(1, -(-leaves // MOST_GROUPS))


def _digest(leaves: bytes | bytearray) -> str:
    return hashlib.blake2b(leaves, digest_size=SIZE).hexdigest()


def detected_changes(splits: int, before: Sequence[str], now: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of splits in which two listings of so many splits differ."""
    width, whole = LEAF * _leaves_of_group(splits), splits - splits % LEAF
    for number, (one, other) in enumerate(zip(before, now, strict=True)):
        start = min(number * width, whole)
        if one != other:
            yield start, min(splits, start + width) if start < whole else splits


class ListingCheck:
    """Listings as they come, held against what they were when a state was taken."""

    def __init__(self, known: Sequence[KnownListing]) -> None:
        self._known = known
        self.digests = [ListingDigest() for _ in known]
        self._ended = [False] * len(known)

    def add(self, branch: int, page: Sequence[Split], split_at: Callable[[int], Split] | None = None) -> str:
        """Take a page in; return what has changed since the state was taken, as far as that is known now.

        `split_at`: finds a split by its number, for the files' names.
        """
        known, digest = self._known[branch], self.digests[branch]
        there = known.splits - digest.splits
        # Groups depend on the number of splits, so the comparison is made at the very number that the state knows.
        digest.add(page[: max(0, there)])
        changed = self._compare(branch, split_at) if 0 < there <= len(page) else ""
        if known.complete and len(page) > max(0, there) and digest.splits == known.splits:
            changed = changed or f"there were {known.splits} splits, and now there are more, from {page[there].path}"
        digest.add(page[max(0, there) :])
        return changed

    def end(self, branch: int) -> str:
        """Note that a source has no more splits; return what has changed."""
        self._ended[branch] = True
        known, listed = self._known[branch], self.digests[branch].splits
        return f"there were at least {known.splits} splits, and now there are {listed}" if listed < known.splits else ""

    def _compare(self, branch: int, split_at: Callable[[int], Split] | None) -> str:
        known, digest = self._known[branch], self.digests[branch]
        found = list(detected_changes(*_both(known, digest)))
        if not found:
            return ""
        places = ", ".join(f"{start} to {stop - 1}" for start, stop in found)
        text = f"other files, or versions of them, are among splits {places}"
        if split_at is None or not known.digest:
            return text
        named = changed_files(known.digest, digest.digest(), map(split_at, range(known.splits)), found)
        more = f", and {len(named) - MOST_NAMED:,} more" if len(named) > MOST_NAMED else ""
        return f"{text}: {', '.join(named[:MOST_NAMED])}{more}" if named else text

    def known(self) -> tuple[KnownListing, ...]:
        """Return what is known of the listings now."""
        return tuple(
            KnownListing(digest.splits, ended, digest.groups(), digest.digest())
            for digest, ended in zip(self.digests, self._ended, strict=True)
        )


def _both(known: KnownListing, digest: ListingDigest) -> tuple[int, Sequence[str], Sequence[str]]:
    return known.splits, known.digests, digest.groups()
