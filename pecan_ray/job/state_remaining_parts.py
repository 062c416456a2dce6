"""What is missing of splits, as columns of small numbers: a buffer's elements may lie in as many splits.

Each column holds one kind of number (how far the next split is, how far the next interval, how long it is), so that it
compresses to nearly what it tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.job.resume_point import Rest
from pecan_ray.job.state_numbers import PackedNumbers, StateNumbers, whole
from pecan_ray.plan.splits import END, OUTPUT_BITS

COLUMNS = ("passes", "splits", "fine", "counts", "gaps", "lengths")
"""Of each split how many passes and splits it lies behind the one before, whether its intervals begin or end within
elements, and how many they are; of each interval how far it lies behind the one before, and how long it is."""
WITHIN = (1 << OUTPUT_BITS) - 1
SignedColumn = npt.NDArray[np.int64]


def pack_remaining_parts(remaining_parts: Sequence[Rest], numbers: StateNumbers) -> dict[str, PackedNumbers]:
    """Return rests, sorted by pass and index, as values that JSON has."""
    return {
        name: numbers.packed(column, alike=True)
        for name, column in zip(COLUMNS, _columns(remaining_parts), strict=True)
    }


def _columns(remaining_parts: Sequence[Rest]) -> tuple[SignedColumn, ...]:
    # Iterators that are no Python: a state is taken while the job waits.
    passes, splits = (
        _array(map(attrgetter("pass_index"), remaining_parts)),
        _array(map(attrgetter("index"), remaining_parts)),
    )
    spans = [rest.spans for rest in remaining_parts]
    counts = _array(map(len, spans))
    ends = _array(chain.from_iterable(chain.from_iterable(spans)))
    starts, stops = ends[::2], ends[1::2]
    owner = np.repeat(np.arange(len(remaining_parts)), counts)
    fine = np.bincount(owner[((starts | stops) & WITHIN) != 0], minlength=len(remaining_parts)) > 0
    # Most intervals lie between elements. In units of elements their numbers are 2**32 times smaller.
    unit_bits = np.where(fine, 0, OUTPUT_BITS)[owner]
    starts, stops = starts >> unit_bits, stops >> unit_bits
    follows = owner == np.concatenate(([-1], owner[:-1]))
    spans_between = starts - np.where(follows, np.concatenate(([0], stops[:-1])), 0)
    passed = np.diff(passes, prepend=0)
    # In another pass the numbers of splits begin anew.
    behind = splits - np.where(passed > 0, 0, np.concatenate(([0], splits[:-1])))
    return passed, behind, fine.astype(np.int64), counts, spans_between, stops - starts


def _array(values: Iterator[int]) -> SignedColumn:
    return np.fromiter(values, np.int64)


def unpack_remaining_parts(packed: Mapping[str, Any], numbers: StateNumbers) -> Iterator[Rest]:
    """Yield the rests; raises ValueError, TypeError or KeyError where they are none, or come twice."""
    passes, splits, fine, counts, spans_between, lengths = (numbers.from_packed(packed[name]) for name in COLUMNS)
    at, pass_index, index = 0, 0, 0
    for number, (passed, behind, finely, count) in enumerate(zip(passes, splits, fine, counts, strict=True)):
        pass_index, index = whole(pass_index + passed), whole(behind if passed else index + behind)
        # Only the first rest may be of split 0 of pass 0: each other one lies behind the one before it.
        if not (passed or behind or not number) or finely not in (0, 1) or count > len(spans_between) - at:
            raise ValueError("what is missing of a split is damaged, or comes twice")
        yield Rest(index, pass_index, _spans(spans_between[at : at + count], lengths[at : at + count], finely))
        at += count
    if at != len(spans_between) or at != len(lengths):
        raise ValueError("intervals belong to no split")


def _spans(spans_between: Sequence[int], lengths: Sequence[int], fine: int) -> tuple[tuple[int, int], ...]:
    """Return intervals of which none touches the one before."""
    if not all(lengths) or not all(spans_between[1:]):
        raise ValueError("intervals are empty, or overlap")
    if not spans_between:
        return ()
    bits = 0 if fine else OUTPUT_BITS
    ends = [end << bits for end in accumulate(chain.from_iterable(zip(spans_between, lengths, strict=True)))]
    if ends[-1] > END:
        raise ValueError("intervals lie outside a split")
    return tuple(zip(ends[::2], ends[1::2], strict=True))
