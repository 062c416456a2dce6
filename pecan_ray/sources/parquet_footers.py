"""Which bytes of Parquet files runs of row groups need: asked where what is on the node's disk is read first.

A file's footer tells.  It is known of files that this process has read, and of those whose end is on the node's disk.
Nothing is fetched to tell.  Of the files that were asked for last a bounded number of byte ranges is held; any other
file's splits count as not known.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import parquet as pq

from pecan_ray.plan.splits import Split
from pecan_ray.sources.parquet_rows import check_columns, selected_columns
from pecan_ray.storage import is_remote, tail_on_node
from pecan_ray.storage.digest import BLOCK_BYTES
from pecan_ray.storage.ranges import RangeRequest

ByteRange: TypeAlias = tuple[int, int]
FileColumns: TypeAlias = tuple[str, str, "Sequence[str] | None"]
"""A file, its version, and the columns that are read of it."""

MOST_NUMBERS = 1 << 19
"""So many numbers are held, of 8 bytes each;"""
OF_A_FILE = 64
"""a file counts as so many more."""
MOST_CHUNKS = 1 << 16
"""What is needed of a file with more chunks of columns is not told: going over these takes a quarter of a second."""
TAIL_BYTES = 64 << 10
"""What is looked at first of a file on the disk: most footers are shorter."""
MOST_LOOKED = 32
"""For one answer so many files on the disk are looked at, at most,"""
LOOKED_BYTES = 1 << 20
"""until their footers have so many bytes; no longer one is looked at."""
MAGIC = b"PAR1"


def in_blocks(ranges: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """Yield byte ranges in their order, those joined that lie in the same block, or in blocks that meet.

    They touch the same blocks as before, each of them once.
    """
    joined: ByteRange | None = None
    for start, stop in sorted(one for one in ranges if one[0] < one[1]):
        if joined is not None and start // BLOCK_BYTES <= -(-joined[1] // BLOCK_BYTES):
            joined = joined[0], max(joined[1], stop)
            continue
        if joined is not None:
            yield joined
        joined = start, stop
    if joined is not None:
        yield joined


def ranges_of_group(footer: Any, group: int, columns: Iterable[int]) -> Iterator[ByteRange]:
    """Yield where some columns of a row group lie."""
    held = footer.row_group(group)
    for place in columns:
        chunk = held.column(place)
        start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        yield start, start + chunk.total_compressed_size


class FileRanges:
    """The byte ranges of each row group of a file, in little memory."""

    def __init__(self, groups: Iterable[Iterable[ByteRange]] = ()) -> None:
        self._numbers, self._ends = array("q"), array("q", [0])
        for ranges in groups:
            for one in in_blocks(ranges):
                self._numbers.extend(one)
            self._ends.append(len(self._numbers))

    def __len__(self) -> int:
        """Return how many numbers are held."""
        return len(self._numbers) + len(self._ends)

    @property
    def groups(self) -> int:
        """How many row groups are known; 0: nothing is told of this file."""
        return len(self._ends) - 1

    def of(self, groups: Sequence[int]) -> list[ByteRange]:
        """Return the ranges of some row groups together; none where the file has not all of these."""
        if not all(0 <= group < self.groups for group in groups):
            return []
        held = (self._numbers[self._ends[group] : self._ends[group + 1]] for group in groups)
        return list(in_blocks(one for numbers in held for one in zip(numbers[::2], numbers[1::2], strict=True)))


def ranges_of_file(footer: Any, size: int, columns: Sequence[str] | None) -> FileRanges:
    """Return what the row groups of a file of so many bytes need; nothing where its footer is wrong, or too long."""
    groups, places = range(footer.num_row_groups), selected_columns(footer, columns)
    if len(groups) * len(places) > MOST_CHUNKS:
        return FileRanges()
    try:
        check_columns(footer, groups, size)
        return FileRanges(ranges_of_group(footer, group, places) for group in groups)
    except Exception:  # Arrow raises many kinds for broken footers; who reads the file says what is wrong with it
        return FileRanges()


class KnownFiles:
    """What is known of files, the least recently used being forgotten; threads may use it side by side."""

    def __init__(self, most_numbers: int = MOST_NUMBERS) -> None:
        self._most = most_numbers
        self._lock = threading.Lock()
        """Guards both below."""
        self._files: OrderedDict[FileColumns, FileRanges] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        return len(self._files)

    def get(self, file: FileColumns) -> FileRanges | None:
        """Return what is known of a file."""
        with self._lock:
            if (found := self._files.get(file)) is not None:
                self._files.move_to_end(file)
            return found

    def add(self, file: FileColumns, ranges: FileRanges) -> None:
        """Know a file, and forget others as far as there is no room."""
        with self._lock:
            self._remove(file)
            self._files[file] = ranges
            self._held += len(ranges) + OF_A_FILE
            while self._held > self._most:
                self._remove(next(iter(self._files)))

    def _remove(self, file: FileColumns) -> None:
        if (gone := self._files.pop(file, None)) is not None:
            self._held -= len(gone) + OF_A_FILE


_known = KnownFiles()


def cache_file_ranges(split: Split, footer: Any, size: int, columns: Sequence[str] | None) -> None:
    """Note what the footer of a split's file tells, which has so many bytes."""
    file = split.path, split.version, columns
    if split.version and is_remote(split.path):
        known = _known.get(file)
        # Nothing may be known because the footer seemed too long or wrong; this one was read.
        if known is None or not known.groups:
            _known.add(file, ranges_of_file(footer, size, columns))


def needed_ranges(splits: Iterable[Split], columns: Sequence[str] | None) -> list[list[RangeRequest]]:
    """Return what each of some splits needs of its file; nothing where that is not known."""
    looking = _FooterLookup(columns)
    return [
        [
            RangeRequest(split.path, start, stop, split.version)
            for start, stop in looking.ranges_of(split).of(split.payload)
        ]
        for split in splits
    ]


class _FooterLookup:
    """Looks files up for one answer, on the disk only as far as that is soon done."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self._columns, self._last_lookup, self._nbytes = columns, 0, 0
        self._failed_reads: set[tuple[str, str]] = set()

    def ranges_of(self, split: Split) -> FileRanges:
        """Return what is known of a split's file."""
        if (known := _known.get((split.path, split.version, self._columns))) is not None:
            return known
        at = split.path, split.version
        over = self._last_lookup >= MOST_LOOKED or self._nbytes >= LOOKED_BYTES
        if over or at in self._failed_reads or not is_remote(split.path):
            return FileRanges()
        found = self._on_disk(split)
        if found is None:
            self._failed_reads.add(at)
            return FileRanges()
        _known.add((*at, self._columns), found)
        return found

    def _on_disk(self, split: Split) -> FileRanges | None:
        """Return what the end of a split's file tells, if it is on the node's disk."""
        tail = tail_on_node(split.path, split.version, TAIL_BYTES)
        if tail is None:
            return None
        self._last_lookup += 1
        # A file ends with its footer, the footer's length in four bytes, and the magic.
        length = int.from_bytes(tail.data[-8:-4], "little") + 8
        if tail.data[-4:] != MAGIC or length > min(LOOKED_BYTES, tail.size):
            return FileRanges()
        if length > len(tail.data):
            tail = tail_on_node(split.path, split.version, length)
        if tail is None:
            return None
        self._nbytes += length
        try:
            # A file of nothing but a footer: Arrow wants the magic in front, too.
            footer = pq.read_metadata(pa.BufferReader(MAGIC + tail.data[-length:]))
        except Exception:  # as above
            return FileRanges()
        return ranges_of_file(footer, tail.size, self._columns)
