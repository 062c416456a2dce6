"""Which two ops are never exchanged in modes "strict" and "safe", whatever a sample shows: structure before numbers.

What an op does only to few elements a sample may not show, and what it means is not in the numbers of one column.  So
what is known of how ops are made decides first; what passes here is then measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OpProperties:
    """What is known of how one op is made."""

    name: str
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    """Columns that it changes, creates or drops."""
    arrays: frozenset[str] = frozenset()
    """Of those that it reads: arrays of numbers (boxes, points, masks, images), not single numbers."""
    decides: bool = False
    """Whether it decides which elements there are."""
    draws: bool = False
    """Whether it draws from a generator that other functions share."""
    unequal: bool = False
    """Whether it makes something else of an equal element each time."""
    pointwise: bool = False
    """Whether it makes of each value what it makes of it at any other place: it moves, mixes and cuts nothing."""
    filtered_columns: frozenset[str] = frozenset()
    """Columns of which it takes rows, numbers or characters away (or adds them) by what they are."""
    changed_axes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The axes whose length it changes, by column."""


def never(first: OpProperties, second: OpProperties) -> str:
    """Return why two ops are never exchanged; empty if they may be."""
    # Both ways: what one op is may forbid the exchange whichever stands first.
    return next(_reason_texts(first, second), "") or next(_reason_texts(second, first), "") or _both(first, second)


def _both(a: OpProperties, b: OpProperties) -> str:
    if a.draws and b.draws:
        return f"{a.name!r} and {b.name!r} draw random numbers from one generator: each would draw the other's"
    for column in sorted(a.writes & b.writes):
        if a.changed_axes.get(column, frozenset()) & b.changed_axes.get(column, frozenset()):
            return f"{a.name!r} and {b.name!r} both cut or rescale column {column!r}"
    return ""


def _reason_texts(a: OpProperties, b: OpProperties) -> Iterator[str]:
    """Yield what speaks against it for what `a` is."""
    if a.decides and (columns := a.reads & b.writes):
        yield f"{a.name!r} decides by column {min(columns)!r} which elements there are, and {b.name!r} changes it"
    # Columns that both read and write are left to the measurement: augmentations of one image are the usual
    # case.
    if columns := (a.reads - a.writes) & b.writes:
        yield f"{a.name!r} derives from column {min(columns)!r}, which {b.name!r} changes"
    if a.unequal and a.writes & (b.reads | b.writes):
        yield f"{a.name!r} makes something else of an equal element each time: nothing shows what an exchange changes"
    if columns := a.filtered_columns & b.writes:
        yield f"{a.name!r} takes parts of column {min(columns)!r} away by what they are, and {b.name!r} changes it"
    # Boxes beside an image: an op that moves pixels without the boxes breaks what belongs together. One that
    # leaves each pixel in its place does not.
    others = a.arrays - b.writes
    if others - (a.writes & b.writes) and a.writes & b.writes and not b.pointwise:
        other = min(others - (a.writes & b.writes))
        yield (
            f"{a.name!r} reads column {other!r} beside {min(a.writes & b.writes)!r}, of which {b.name!r} "
            "moves or cuts one without the other"
        )
