"""Whether a listing is the one that a state was taken of: digests of its splits, in groups, so that places can be told.

A split counts by its path, range, number of elements and version; what else a source keeps in it may differ from run to
run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from pecan_ray.job.resume_point import KnownListing
from pecan_ray.plan.splits import Split

LEAF = 64
"""Splits that are digested together."""
MOST_GROUPS = 32
SIZE = 8
"""Bytes of a digest: what differs by chance goes unseen once in 10^19 cases."""


class ListingDigest:
    """Digests of the first splits of a listing, however many there are by then."""

    def __init__(self) -> None:
        self.splits = 0
        self._leaves = bytearray()
        self._open = bytearray()
        """What the next leaf is a digest of."""

    def add(self, page: Iterable[Split]) -> None:
        """Take splits in, as they are listed."""
        for split in page:
            self._open += repr((split.path, split.start, split.stop, split.elements, split.version)).encode()
            if split.files:
                self._open += repr(split.files).encode()
            self.splits += 1
            if self.splits % LEAF == 0:
                self._leaves += hashlib.blake2b(self._open, digest_size=SIZE).digest()
                self._open.clear()

    def groups(self) -> tuple[str, ...]:
        """Return a digest for each group of splits, the last one of an incomplete leaf."""
        width = SIZE * _leaves_of_group(self.splits)
        whole = [_digest(self._leaves[at : at + width]) for at in range(0, len(self._leaves), width)]
        return (*whole, _digest(self._open)) if self.splits % LEAF else tuple(whole)


def groups_of(splits: int) -> int:
    """Return how many digests there are of so many splits."""
    return -(-(splits // LEAF) // _leaves_of_group(splits)) + (splits % LEAF > 0)


def _leaves_of_group(splits: int) -> int:
    leaves = splits // LEAF
    return max(1, -(-leaves // MOST_GROUPS))


def _digest(leaves: bytes | bytearray) -> str:
    return hashlib.blake2b(leaves, digest_size=SIZE).hexdigest()


def differences(splits: int, before: Sequence[str], now: Sequence[str]) -> Iterator[tuple[int, int]]:
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

    def add(self, branch: int, page: Sequence[Split]) -> str:
        """Take a page in; return what has changed since the state was taken, as far as that is known now."""
        known, digest = self._known[branch], self.digests[branch]
        there = known.splits - digest.splits
        digest.add(page[: max(0, there)])
        changed = self._compare(branch) if 0 < there <= len(page) else ""
        if known.complete and len(page) > max(0, there) and digest.splits == known.splits:
            changed = changed or f"there were {known.splits} splits, and now there are more, from {page[there].path}"
        digest.add(page[max(0, there) :])
        return changed

    def end(self, branch: int) -> str:
        """Note that a source has no more splits; return what has changed."""
        self._ended[branch] = True
        known, listed = self._known[branch], self.digests[branch].splits
        return f"there were at least {known.splits} splits, and now there are {listed}" if listed < known.splits else ""

    def _compare(self, branch: int) -> str:
        known = self._known[branch]
        places = [f"{start} to {stop - 1}" for start, stop in differences(*_both(known, self.digests[branch]))]
        return f"other files, or versions of them, are among splits {', '.join(places)}" if places else ""

    def known(self) -> tuple[KnownListing, ...]:
        """Return what is known of the listings now."""
        return tuple(
            KnownListing(digest.splits, ended, digest.groups())
            for digest, ended in zip(self.digests, self._ended, strict=True)
        )


def _both(known: KnownListing, digest: ListingDigest) -> tuple[int, Sequence[str], Sequence[str]]:
    return known.splits, known.digests, digest.groups()
