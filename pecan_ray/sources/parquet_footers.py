"""Which bytes of a Parquet file a run of row groups needs, as its footer tells where it is listed.

They are asked for where what is on the node's disk is read first: a hint, which nothing but the order hangs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from pecan_ray.sources.parquet_rows import check_columns, selected_columns
from pecan_ray.storage.digest import BLOCK_BYTES

ByteRange: TypeAlias = tuple[int, int]


class NeededRanges:
    """The byte ranges of the row groups of one file; none where its footer is wrong."""

    def __init__(self, footer: Any, size: int, columns: Sequence[str] | None) -> None:
        """`size`: of the file; `columns`: those that are read, None: all."""
        self._footer = footer
        self._runs: list[ByteRange] = []
        """First and last place of columns that lie behind each other."""
        try:
            check_columns(footer, range(footer.num_row_groups), size)
        except Exception:  # Arrow raises many kinds for broken footers; who reads the file says what is wrong with it
            return
        for place in selected_columns(footer, columns):
            if self._runs and self._runs[-1][1] == place - 1:
                self._runs[-1] = self._runs[-1][0], place
            else:
                self._runs.append((place, place))

    def of(self, groups: Iterable[int]) -> tuple[ByteRange, ...]:
        """Return the ranges of some row groups together."""
        return tuple(in_blocks(one for group in groups for one in self._of_group(group)))

    def _of_group(self, group: int) -> Iterator[ByteRange]:
        held = self._footer.row_group(group)
        # Two chunks of each run are looked at, and not all: there may be thousands, of some microseconds each.
        for first, last in self._runs:
            end = held.column(last)
            yield _begin(held.column(first)), _begin(end) + end.total_compressed_size


def _begin(chunk: Any) -> int:
    return int(min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset))


def in_blocks(ranges: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """Yield byte ranges in their order, those joined that lie in the same block, or in blocks that meet.

    They touch the same blocks as before, each of them once.
    """
    joined: ByteRange | None = None
    for start, stop in sorted(one for one in ranges if 0 <= one[0] < one[1]):
        if joined is not None and start // BLOCK_BYTES <= -(-joined[1] // BLOCK_BYTES):
            joined = joined[0], max(joined[1], stop)
            continue
        if joined is not None:
            yield joined
        joined = start, stop
    if joined is not None:
        yield joined
