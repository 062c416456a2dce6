"""A journal as objects, to which nothing can be added: slices of its bytes, each named by where it begins.

There are few of them: one that is written takes in those before it that are not longer, so that each byte is written
as often as the number of bytes has binary digits, at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

# Decision 53: with slices of this size a day of copies is some dozens of objects.
MOST_SLICE_BYTES = 8 << 20

SliceKind: TypeAlias = Literal["journal", "listings"]
"""Which file: that of the entries, or that of the pages of its listings."""

_NAME = re.compile(r"(journal|listings)-(\d{6,})-(\d{15,})-(\d{15,})")


@dataclass(frozen=True)
class JournalSlice:
    """Some of the bytes of one file."""

    kind: SliceKind
    generation: int
    """A file that takes the place of another one is of the next generation."""
    base: int
    """Bytes with which the generation says as much as the one before it, and not before."""
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What the object is called; names stand in the order of the bytes."""
        return f"{self.kind}-{self.generation:06}-{self.base:015}-{self.start:015}"


def slice_named(name: str, nbytes: int) -> JournalSlice | None:
    """Return what an object of that name and size holds; None if it is no slice."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    generation, base, start = map(int, found.groups()[1:])
    return JournalSlice(cast(SliceKind, found[1]), generation, base, start, start + nbytes)


def next_slice(there: Sequence[JournalSlice], file: JournalSlice) -> tuple[JournalSlice, int] | None:
    """Return the slice to write next, and of how many of the last ones it takes the place; None if all is there.

    `there`: those that were written, each beginning where the one before it ends; `file`: all of it as one slice.
    """
    start = there[-1].stop if there else file.start
    stop = min(file.stop, start + MOST_SLICE_BYTES)
    if stop <= start:
        return None
    taken = 0
    for last in reversed(there):
        if last.stop - last.start > stop - start or stop - last.start > MOST_SLICE_BYTES:
            break
        start, taken = last.start, taken + 1
    return JournalSlice(file.kind, file.generation, file.base, start, stop), taken


def in_order(found: Iterable[JournalSlice], kind: SliceKind) -> list[JournalSlice]:
    """Return the slices of the newest generation of a file whose base is there, those that begin first first.

    Some may lie within the one before them: they have not been removed yet.
    """
    generations: dict[int, list[JournalSlice]] = {}
    # Of slices that begin together the longest comes first: it has taken the others in.
    for one in sorted((one for one in found if one.kind == kind), key=lambda one: (one.start, -one.stop)):
        generations.setdefault(one.generation, []).append(one)
    for _, slices in sorted(generations.items(), reverse=True):
        reached = 0
        for one in slices:
            reached = max(reached, one.stop) if one.start <= reached else reached
        # A newer generation counts once it says as much as the one before it: it may be there only in part.
        if reached >= slices[0].base:
            return slices
    return []
