"""Braces in paths, as a shell expands them: ``train-{000..099}.tar``, ``{train,val}/*.parquet``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from pecan_ray.errors import PlanError

MAX_NAMES = 1_000_000
"""Names that one pattern may stand for: a listing would hold all of them."""
_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.([0-9]+))?|([A-Za-z])\.\.([A-Za-z])")


def expand_pattern(pattern: str) -> list[str]:
    """Return the patterns that one with braces stands for, in their order; itself where it has none.

    Braces with neither a comma nor ``..`` stand for themselves.  Raises PlanError for too many.
    """
    names = list(islice(_expand_groups(pattern), MAX_NAMES + 1))
    if len(names) > MAX_NAMES:
        raise _too_many(pattern)
    return names


def literal_prefix(pattern: str) -> str:
    """Return what stands before the first brace that stands for something; all of it where none does."""
    place = _first_group(pattern)
    return pattern if place is None else pattern[: place[0]]


def pattern_to_glob(pattern: str) -> str:
    """Return a glob that matches all that a pattern with braces stands for."""
    place = _first_group(pattern)
    return pattern if place is None else f"{pattern[: place[0]]}*{pattern_to_glob(pattern[place[1] :])}"


def _expand_groups(pattern: str) -> Iterator[str]:
    place = _first_group(pattern)
    if place is None:
        yield pattern
        return
    start, stop = place
    # One more than allowed is enough to know that there are too many.
    behind = list(islice(_expand_groups(pattern[stop:]), MAX_NAMES + 1))
    for choice in _choices(pattern[start + 1 : stop - 1]):
        for rest in behind:
            yield f"{pattern[:start]}{choice}{rest}"


def _choices(inside: str) -> Iterator[str]:
    """Yield what one pair of braces stands for."""
    found = _RANGE.fullmatch(inside)
    if found is None:
        for part in _parts(inside):
            yield from _expand_groups(part)
    elif found[4]:
        first, last = ord(found[4]), ord(found[5])
        yield from map(chr, _closed_range(first, last, 1))
    else:
        # As in a shell: one bound with a leading zero pads all of them.
        padded = any(re.match(r"-?0[0-9]", bound) for bound in (found[1], found[2]))
        width = max(len(found[1]), len(found[2])) if padded else 0
        first, last, step = int(found[1]), int(found[2]), max(1, int(found[3] or 1))
        # Not by `len`, which numbers of more than 64 bits overflow.
        if abs(last - first) // step >= MAX_NAMES:
            raise _too_many("{" + inside + "}")
        yield from (f"{number:0{width}d}" for number in _closed_range(first, last, step))


def _closed_range(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _parts(inside: str) -> list[str]:
    """Return what stands between the commas that are in no further braces."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(inside):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(inside[begin:at])
            begin = at + 1
    return [*parts, inside[begin:]]


def _first_group(pattern: str) -> tuple[int, int] | None:
    """Return where the first braces that stand for something begin and end; None if there are none."""
    open_at: list[int] = []
    groups: list[tuple[int, int]] = []
    for at, character in enumerate(pattern):
        if character == "{":
            open_at.append(at)
        elif character == "}" and open_at:
            start = open_at.pop()
            inside = pattern[start + 1 : at]
            if len(_parts(inside)) > 1 or _RANGE.fullmatch(inside):
                groups.append((start, at + 1))
    return min(groups, default=None)


def _too_many(pattern: str) -> PlanError:
    return PlanError(f"The braces in {pattern!r} stand for more than {MAX_NAMES:,} names. Name a folder or a glob.")
