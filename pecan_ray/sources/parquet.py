"""Parquet files, cut at row groups."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, NoReturn

from pyarrow import parquet as pq

from pecan_ray.errors import (
    ColumnError,
    CorruptSourceError,
    PecanError,
    PlanError,
    SourceError,
    SourceReplacedError,
)
from pecan_ray.plan.splits import Columns, Split
from pecan_ray.sources.arrow import readable_columns
from pecan_ray.sources.file_sources import NullableColumns, ReadByColumns
from pecan_ray.sources.files import (
    check_positive,
    data_files,
    identity_of,
)
from pecan_ray.sources.filling import null_mask_columns, without_nulls
from pecan_ray.sources.parquet_footers import NeededRanges
from pecan_ray.sources.parquet_int96 import INT96_UNITS, Int96Unit, exact_batches
from pecan_ray.sources.parquet_rows import check_columns, decode_batch_size, selected_columns
from pecan_ray.sources.partitions import (
    selected_values,
    with_equal_columns,
    with_partitions,
)
from pecan_ray.storage import FileInfo, is_remote, open_random
from pecan_ray.storage.ranges import RangeRequest


@dataclass(frozen=True)
class Parquet(NullableColumns, ReadByColumns):
    """The rows of Parquet files, all columns or some.

    Splits are runs of row groups of about `split_bytes` (uncompressed).  Numbers are NumPy scalars of the
    column's type, lists of numbers are arrays; a null is NaN in a column of floats, None in any other.
    A part of a structure is named ``"address.city"``, and read without the others.
    Raises ColumnError for a column that a file lacks or has twice, and for files whose columns are not those of the
    first one; CorruptSourceError also for pages whose checksums are wrong, where the file has some, and for a row of
    more than `max_record_bytes`.
    """

    columns: Sequence[str] | None = None
    batch_rows: int | None = field(default=None, kw_only=True)
    """Rows decoded at a time; None: as many as are about 4 MiB, at most 16,384.  Fewer where rows may be long."""
    int96_unit: Int96Unit = field(default="us", kw_only=True)
    """What moments of the old type INT96 are counted in; PlanError for a moment that the unit does not hold."""
    counts_splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_rows is not None:
            check_positive(batch_rows=self.batch_rows)
        if self.columns is not None:
            names = [self.columns] if isinstance(self.columns, str) else self.columns
            object.__setattr__(self, "columns", tuple(names))
            if not self.columns:
                raise PlanError("Parquet(columns=...) names no column, which is no element: name one, or leave it out.")

        if self.int96_unit not in INT96_UNITS:
            raise PlanError(f"int96_unit must be one of {list(INT96_UNITS)}, but got {self.int96_unit!r}.")

    def splits(self) -> Iterator[Split]:
        """Yield runs of row groups, reading the footer of one file after the other."""
        index, first_row = 0, 0
        # Numbered by rows and not by bytes, so that a job knows the row of each element before it is read.
        for file, footer in self._footers():
            first_row = 0
            # Only what lies in buckets is kept on nodes' disks.
            needed = NeededRanges(footer, file.size, self.columns) if is_remote(file.path) else None
            for groups in _runs(footer, self.split_bytes):
                rows = sum(footer.row_group(group).num_rows for group in groups)
                yield Split(
                    index=index,
                    path=file.path,
                    start=first_row,
                    stop=first_row + rows,
                    elements=rows,
                    payload=(groups, () if needed is None else needed.of(groups)),
                    version=file.version,
                )
                index, first_row = index + 1, first_row + rows

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the columns of `batch_rows` rows at a time, of fewer at the end."""
        number, footer = start, None
        with open_random(split.path, version=split.version) as file:
            try:
                # `pre_buffer`: Arrow asks for what it needs in few large ranges, where each request costs a
                # round trip.
                parquet = pq.ParquetFile(file, pre_buffer=True, page_checksum_verification=True)
                # Before anything else looks at its columns: with a broken footer that ends the process.
                check_columns(parquet.metadata, _groups_of(split), file.seek(0, io.SEEK_END))
                footer = parquet.metadata
                groups, skip = _groups_from(footer, _groups_of(split), start)
                told = selected_values(split.path, self, self.columns, parquet.schema_arrow.names)
                names = None if self.columns is None else [name for name in self.columns if name not in told]
                at_a_time = decode_batch_size(file, footer, groups, names, self.batch_rows)
                how = {"batch_size": at_a_time, "row_groups": groups}
                for batch in exact_batches(file, footer, self.int96_unit, names, split.path, **how):
                    dropped = min(skip, batch.num_rows)
                    skip -= dropped
                    rows = batch.slice(dropped, _rows_within(batch, dropped, self.max_record_bytes))
                    for columns, count in self._columns_of(rows, split.path):
                        yield with_partitions(columns, told, count)
                        number += count
                    # Behind the rows before it, which are good.
                    if dropped + rows.num_rows < batch.num_rows:
                        raise ValueError(f"it has more than max_record_bytes={self.max_record_bytes} bytes")
                # Rows that are missing without an error would be a loss that nobody hears of.
                if split.elements is not None and number != max(split.elements, start):
                    raise ValueError(f"there are {number} rows, and the footer told of {split.elements}")
            # A lack of memory is no damage of the file.
            except (PecanError, MemoryError):
                raise
            except Exception as error:  # Arrow raises many kinds for broken files, Python's conversions some more.
                group, at = _place(footer, _groups_of(split), number)
                raise CorruptSourceError(
                    f"Cannot decode {split.where(number)} (row group {group}, from byte {at} on): "
                    f"{_error_text(error)}. "
                    "Write or copy the file again.",
                    path=split.path,
                    offset=at,
                    element=split.number_of(number),
                ) from error

    def _columns_of(self, rows: Any, path: str) -> Iterator[tuple[Columns, int]]:
        """Yield columns of rows, with the masks of their nulls beside them, and how many rows these are."""
        masks, at = null_mask_columns(rows, self.mask, path), 0
        for columns, count in readable_columns(without_nulls(rows, self.fill, path)):
            yield {**columns, **{name: one[at : at + count] for name, one in masks.items()}}, count
            at += count

    def read_columns_past_errors(self, split: Split, start: int = 0) -> Iterator[Columns | SourceError]:
        """Yield columns as `read_columns` does; what is left of a row group that cannot be decoded is one error."""
        number = start
        while True:
            try:
                for columns in self.read_columns(split, number):
                    yield columns
                    number += len(next(iter(columns.values()), ()))
                return
            # Another file's rows must not go on behind this one's.
            except SourceReplacedError:
                raise
            except CorruptSourceError as error:
                if (group := _group_at(split, number)) is None:
                    raise
                # Rows that are decoded at a time may be of two row groups, and only the second one is broken.
                yield from self._group(split, group, number, error)
                number = group.stop
                if number >= (split.elements or 0):
                    return

    def _group(
        self, split: Split, group: _Group, start: int, error: CorruptSourceError
    ) -> Iterator[Columns | SourceError]:
        """Yield what can be read of one row group from a row of the split on, and an error for the rest."""
        number, alone = start, replace(split, payload=((group.number,), ()), elements=group.stop - group.first)
        try:
            for columns in self.read_columns(alone, start - group.first):
                yield columns
                number += len(next(iter(columns.values()), ()))
        except SourceReplacedError:
            raise
        except CorruptSourceError:
            # The row group is Parquet's unit, so all that is left of it is lost
            # (docs/decisions/sources.md#130-damage-costs-only-its-unit).
            error.fields["elements"] = group.stop - number
            yield error

    def needed_ranges(self, splits: Sequence[Split]) -> list[list[RangeRequest]]:
        """Return what reading each of some splits reads of buckets, as footers told when they were listed."""
        return [
            [RangeRequest(split.path, start, stop, split.version) for start, stop in split.payload[1]]
            for split in splits
        ]

    def num_elements(self) -> int:
        """Return the number of rows, from the footers of all files."""
        return sum(footer.num_rows for _, footer in self._footers())

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        options = self.columns, self.split_bytes, self.partitions, self.fill
        # Those that were added later are no part of the identity of sources that do not use them.
        later = (*({"mask": self.mask} if self.mask else ()), *(("ns",) if self.int96_unit == "ns" else ()))
        return identity_of("Parquet", (*options, *later), data_files(self.patterns))

    def _check_no_duplicates(self, path: str, names: list[str]) -> None:
        counts = Counter(names)
        twice = [name for name in dict.fromkeys(self.columns or names) if counts[name] > 1]
        if twice:
            raise ColumnError(
                f"{path} has {', '.join(map(repr, twice))} twice. Rename one, or name the columns to read.",
                path=path,
                columns=tuple(names),
            )

    def _footers(self) -> Iterator[tuple[FileInfo, Any]]:
        expected: list[str] | None = None
        for info in with_equal_columns(data_files(self.patterns), self.patterns, self.partitions):
            metadata, names = _footer(info)
            self._check_no_duplicates(info.path, names)
            wanted = list(self.columns) if self.columns is not None else expected or names
            held = [*names, *selected_values(info.path, self, self.columns, names)]
            missing = [name for name in wanted if name not in held and not selected_columns(metadata, [name])]
            if missing:
                _raise_missing_column(info.path, missing, held)
            extra = [] if self.columns is not None else [name for name in names if name not in wanted]
            if extra:
                raise ColumnError(
                    f"{info.path} has columns that the first file lacks: {', '.join(extra)}. Name those "
                    f"to read: Parquet(..., columns={wanted}).",
                    path=info.path,
                    columns=tuple(names),
                )
            expected = wanted
            yield info, metadata


class _Group(NamedTuple):
    """A row group, and the rows of a split that it holds."""

    number: int
    first: int
    stop: int


def _group_at(split: Split, number: int) -> _Group | None:
    """Return the row group that holds a row of a split; None if the footer does not tell."""
    with open_random(split.path, version=split.version) as file:
        try:
            metadata = pq.ParquetFile(file).metadata
            groups, before = _groups_from(metadata, _groups_of(split), number)
            first = number - before
            return _Group(groups[0], first, first + metadata.row_group(groups[0]).num_rows) if groups else None
        except (PecanError, MemoryError):
            raise
        except Exception:  # Arrow raises many kinds for broken footers: the first error is told
            return None


def _rows_within(batch: Any, first: int, most: int) -> int:
    """Return how many rows of a batch, from one on, come before one of more than `most` bytes."""
    # A batch that is small as a whole has no row that is too large.
    rows = range(first, batch.num_rows if batch.nbytes > most else first)
    stop = next((row for row in rows if batch.slice(row, 1).nbytes > most), int(batch.num_rows))
    return stop - first


def _place(footer: Any, groups: Sequence[int], number: int) -> tuple[int, int]:
    """Return the row group of a split that holds a row, and its first byte; the first one where none is known."""
    if footer is None:
        return groups[0], 0
    behind = _groups_from(footer, list(groups), number)[0]
    group = (behind or list(groups))[0]
    held = footer.row_group(group)
    chunks = [held.column(place) for place in range(held.num_columns)]
    return group, min((one.dictionary_page_offset or one.data_page_offset for one in chunks), default=0)


def _footer(info: FileInfo) -> tuple[Any, list[str]]:
    path, size = info.path, info.size
    with open_random(path, size=size, version=info.version) as file:
        try:
            parquet = pq.ParquetFile(file)
            footer = parquet.metadata
            rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
            # Numbers of a broken footer can be anything.
            if min(rows, default=0) < 0 or sum(rows) != footer.num_rows:
                raise ValueError(f"it tells of {footer.num_rows} rows, and of {sum(rows)} in its row groups")
            return footer, list(parquet.schema_arrow.names)
        except (PecanError, MemoryError):
            raise
        except Exception as error:  # Arrow raises many kinds for broken footers, Python's conversions some more.
            raise CorruptSourceError(
                f"{path} ({size} bytes) has no readable Parquet footer at its end: {_error_text(error)}. It is cut "
                "off, or no Parquet file.",
                path=path,
                offset=size,
                element=0,
            ) from error


def _raise_missing_column(path: str, missing: list[str], names: list[str]) -> NoReturn:
    raise ColumnError(
        f"{path} has no column {', '.join(map(repr, missing))}. It has: {', '.join(names)}.",
        path=path,
        columns=tuple(names),
    )


def _error_text(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _runs(footer: Any, split_bytes: int) -> Iterator[tuple[int, ...]]:
    """Yield runs of row groups, as long as they stay below `split_bytes`, and at least one group long."""
    run: list[int] = []
    held = 0
    for group in range(footer.num_row_groups):
        size = footer.row_group(group).total_byte_size
        if run and held + size > split_bytes:
            yield tuple(run)
            run, held = [], 0
        run.append(group)
        held += size
    if run:
        yield tuple(run)


def _groups_of(split: Split) -> list[int]:
    """Return the numbers of a split's row groups, of which it also tells where their bytes lie."""
    return list(split.payload[0])


def _groups_from(metadata: Any, groups: list[int], start: int) -> tuple[list[int], int]:
    """Return the groups that hold rows from `start` on, and how many rows of the first one come before it."""
    while groups and start >= metadata.row_group(groups[0]).num_rows:
        start -= metadata.row_group(groups.pop(0)).num_rows
    return groups, start
