"""How many rows of Parquet files to decode at a time: few bytes in a file can stand for many in memory.

A dictionary holds a long value once for all rows, deltas hold once what values share, and a general compression makes
next to nothing of zeros.  What a footer says of a column bounds what a row of it can be; where that bound is too high
to be of use, the longest value of its dictionary is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from pecan_ray.sources.arrow import leaves_of
from pecan_ray.storage.access import SizedFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DECODED_BYTES = 4 << 20
"""Bytes that are decoded at a time, if rows are about equal: as much as goes through operators together
(`row_block.PIECE_BYTES`)."""
# Rows that are decoded at a time, however small they are.
MOST_DECODED_ROWS = 1 << 14
MOST_DECODED_BYTES = 64 << 20
"""Bytes that are decoded at a time, or one row more, if rows are as long as the file lets them be."""
SPARSE_BYTES = 256 << 20
"""Up to this many bytes of a column may lie in a few rows, while the other rows are empty."""
SPARSE_RATIO = 200
"""The rest may be empty where a column takes so many times less in the file."""
LISTS_BYTES = 1 << 30
"""Lists that unpack to so many bytes may lie in one row."""
LISTS_RATIO = 1000
"""The same for lists that unpack to so many times what they take in the file.  Chosen: what is refused is a file that
is made to fill the memory."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}
"""Bytes of a value of each physical type; others have eight, or say how many."""
_IN_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


class _ReadError(Exception):
    """Arrow has found nothing wrong with a footer, and wants to read."""


class _SizeOnlyFile(SizedFile):
    """A file of a size of which nothing can be read."""

    def readinto(self, buffer: WriteableBuffer) -> NoReturn:
        raise _ReadError


def check_columns(metadata: Any, groups: Sequence[int], size: int) -> None:
    """Raise whatever Arrow does for a footer whose columns cannot be.

    A row group's `column` ends the process with such a footer: pyarrow lets the exception of C++ pass.  A reader that
    announces what it will read describes the same columns first, and raises.
    """
    reader = pq.ParquetFile(_SizeOnlyFile(size), metadata=metadata, pre_buffer=True)
    try:
        next(reader.iter_batches(1, row_groups=groups, use_threads=False), None)
    except _ReadError:
        return


def selected_columns(metadata: Any, wanted: Sequence[str] | None) -> list[int]:
    """Return the places of the columns that hold what some names name, or what is inside of that; None: all.

    A name is a column's where a column is called so, else that of a part of a structure: of ``s.a`` beside a structure
    ``s`` the column is meant.  Paths alone do not tell these apart.
    """
    if wanted is None:
        return list(range(metadata.num_columns))
    fields = metadata.schema.to_arrow_schema()
    whole = set(fields.names) & set(wanted)
    parts = tuple(f"{name}." for name in wanted if name not in whole)
    # Paths write a part `a` of `s` and a column `s.a` alike; the order of leaves is the schema's
    # (docs/decisions/sources.md#147-names-links-and-nulls).
    owners = [field.name for field in fields for _ in range(_count_leaves(field.type))]
    return [
        place
        for place, owner in enumerate(owners[: metadata.num_columns])
        if owner in whole or (parts and f"{metadata.schema.column(place).path}.".startswith(_inside(owner, parts)))
    ]


def _inside(column: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for part in parts if part.startswith(f"{column}."))


def _count_leaves(kind: Any) -> int:
    """Return how many columns of Parquet hold a column of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _count_leaves(kind.storage_type)
    if pa.types.is_map(kind):
        return _count_leaves(kind.key_type) + _count_leaves(kind.item_type)
    return sum(_count_leaves(kind.field(place).type) for place in range(kind.num_fields)) or 1


def decode_batch_size(
    file: Any, metadata: Any, groups: Sequence[int], wanted: Sequence[str] | None, most: int | None
) -> int:
    """Return how many rows to decode at a time, `most` where it is given and they are not too long.

    Raises ValueError for lists that unpack to too many bytes.
    """
    # First a guess by the mean, which below is made smaller where a row can be much larger.
    size: int = sum(metadata.row_group(group).total_byte_size for group in groups)
    rows: int = sum(metadata.row_group(group).num_rows for group in groups)
    fitting = most or max(1, min(MOST_DECODED_ROWS, DECODED_BYTES * rows // max(size, 1)))
    columns = selected_columns(metadata, wanted)
    dictionaries = _Dictionaries(file, metadata)
    for group in groups:
        row_bytes = _row_bytes(dictionaries, metadata, group, columns, fitting)
        fitting = max(1, min(fitting, MOST_DECODED_BYTES // max(row_bytes, 1)))
    return fitting


def _row_bytes(dictionaries: _Dictionaries, metadata: Any, group: int, columns: Sequence[int], rows: int) -> int:
    """Return how large the largest row of a group can be; no matter by how much, if so many fit."""
    held = metadata.row_group(group)
    largest = {place: _value_bytes(metadata, group, place) for place in columns}
    in_all = sum(largest.values())
    # The longest first: mostly one dictionary has to be read, or none.
    for place in sorted(columns, key=lambda place: largest[place], reverse=True):
        # A dictionary is a read of its own: none where the bound is good enough.
        if in_all * rows <= MOST_DECODED_BYTES:
            break
        column = held.column(place)
        if column.physical_type == "BYTE_ARRAY" and _IN_DICTIONARIES & set(column.encodings):
            before = largest[place]
            largest[place] = min(before, _longest_in_dictionary(dictionaries, column, group))
            in_all -= before - largest[place]
    for place in columns:
        if metadata.schema.column(place).max_repetition_level:
            largest[place] = _mean_bytes(dictionaries, metadata, group, place, largest[place])
    return sum(largest.values())


def _value_bytes(metadata: Any, group: int, place: int) -> int:
    """Return how many bytes a value of a column can have, as far as the footer tells."""
    column, described = metadata.row_group(group).column(place), metadata.schema.column(place)
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return int(described.length)
    if column.physical_type != "BYTE_ARRAY":
        return _WIDTHS.get(column.physical_type, 8)
    shares_bytes = (_IN_DICTIONARIES | {"DELTA_BYTE_ARRAY"}) & set(column.encodings)
    return int(column.total_uncompressed_size) if shares_bytes else _plain_bytes(column)


def _longest_in_dictionary(dictionaries: _Dictionaries, column: Any, group: int) -> int:
    """Return the length of the longest value in a column's dictionary, or of all where it is short of some."""
    for values in dictionaries.read(column.path_in_schema, group, 1):
        longest = pc.max(pc.binary_length(values.dictionary)).as_py() or 0
        # What does not fit into the dictionary follows as it is: on average so long, and longer where it is packed.
        return max(int(longest), _plain_bytes(column))
    return 0


def _plain_bytes(column: Any) -> int:
    """Return how many bytes values that stand in a file one by one have on average, or at most if that misleads."""
    size = int(column.total_uncompressed_size)
    sparse = size > SPARSE_BYTES and size > SPARSE_RATIO * column.total_compressed_size
    return size if sparse else size // max(column.num_values, 1)


def _mean_bytes(dictionaries: _Dictionaries, metadata: Any, group: int, place: int, longest: int) -> int:
    """Return how many bytes the lists of a column take in a row; they may all lie in one."""
    held = metadata.row_group(group)
    column = held.column(place)
    in_all = column.num_values * longest
    if in_all > LISTS_BYTES and _IN_DICTIONARIES & set(column.encodings) and column.physical_type == "BYTE_ARRAY":
        in_all = sum(
            pc.sum(pc.take(pc.binary_length(values.dictionary), values.indices)).as_py() or 0
            for values in dictionaries.read(column.path_in_schema, group, MOST_DECODED_ROWS)
        )
    if in_all > LISTS_BYTES and in_all > LISTS_RATIO * column.total_uncompressed_size:
        raise ValueError(
            f"the lists of {column.path_in_schema!r} in row group {group} unpack to {in_all} bytes, from "
            f"{column.total_uncompressed_size}: more than {LISTS_BYTES}, and more than {LISTS_RATIO} times as many"
        )
    return int(in_all // max(held.num_rows, 1))


class _Dictionaries:
    """The values of columns as they are in a file: dictionaries, and places in them."""

    def __init__(self, file: Any, metadata: Any) -> None:
        self._file, self._metadata = file, metadata

    @cached_property
    def _reader(self) -> Any:
        # One for all columns: of a file with 1,000 of them it takes milliseconds to make.
        columns = map(self._metadata.schema.column, range(self._metadata.num_columns))
        paths = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        return pq.ParquetFile(self._file, metadata=self._metadata, read_dictionary=paths, buffer_size=1 << 16)

    def read(self, path: str, group: int, rows: int) -> Iterator[Any]:
        """Yield the values of a column, some rows at a time, or of one batch of one row."""
        for batch in self._reader.iter_batches(rows, row_groups=[group], columns=[path], use_threads=False):
            yield from filter(lambda one: pa.types.is_dictionary(one.type), leaves_of(batch.column(0)))
            if rows == 1:
                return
