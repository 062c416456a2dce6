"""TFRecord files: length, masked CRC32C of the length, data, masked CRC32C of the data."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, ClassVar, Literal, NoReturn

import google_crc32c

from pecan_ray.errors import CorruptSourceError, SourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.compressed import compression_of, opened
from pecan_ray.sources.example_proto import check_features, parse_example
from pecan_ray.sources.file_sources import RecordFiles
from pecan_ray.sources.files import (
    are_local,
    data_files,
    identity_of,
    skip_bytes,
    split_bytes_of,
)
from pecan_ray.sources.packed_estimate import PackedEstimate
from pecan_ray.sources.partitions import (
    add_partitions,
    partition_values,
    with_equal_columns,
)
from pecan_ray.storage import FileInfo, is_remote, open_random

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
HEADERS_BYTES = 4096
"""Bytes that are read at a time where only lengths of records are wanted: a page, with the headers of small ones."""

RECORDS_LOOKED_AT = 64
"""Records of the first compressed file that tell how large they are, in the mean.  Chosen: it only cuts files into
splits."""


@dataclass(frozen=True)
class TFRecords(RecordFiles):
    """The records of TFRecord files, as bytes in the column ``record``, or parsed as ``tf.train.Example``.

    With ``parse=True`` every feature is a column: a single value is bytes, int or np.float32, none or
    several are an array; feature lists of a SequenceExample are lists of lists.  `features` fixes what a column is, and
    parses: ``{"ids": "list<int64>", "label": "int64"}``; "list<binary>" of a feature list has one value a step.
    The records of uncompressed local files are counted as they are listed, by walking over the length headers (their
    checksums are verified), and files are cut between records into ranges of 4 MB, or of `split_bytes` if that is less;
    objects in a bucket and compressed files (``.gz``, ``.bz2``, ``.xz``, ``.zst``) are one split each, because walking
    over them means fetching them.

    Reading raises CorruptSourceError with file, byte offset and element for truncated records, bad checksums and
    records of more than `max_record_bytes`.
    """

    parse: bool = field(default=False, kw_only=True)
    features: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    """Types of columns: int64, float32, binary, a list of one (``list<int64>``), or one in each step."""

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_features(self.features)

    def splits(self) -> Iterator[Split]:
        """Yield whole files, and ranges of records of large local files."""
        index, packed = 0, PackedEstimate(self._mean_record_bytes)
        for file in with_equal_columns(data_files(self.patterns), self.patterns, self.partitions):
            if compression_of(file.path):
                yield packed.split(index, file)
                index += 1
            elif is_remote(file.path) or not file.size:
                # An empty file is known to have no records, without reading it.
                elements = None if file.size else 0
                yield Split(index, file.path, stop=file.size, elements=elements, version=file.version)
                index += 1
            else:
                for start, stop, elements, about in _record_ranges(file, split_bytes_of(file.path, self.split_bytes)):
                    yield Split(index, file.path, start, stop, elements, version=file.version, about=about)
                    index += 1

    @property
    def counts_splits(self) -> bool:
        """Return whether files are local and not compressed: their records are counted as they are listed."""
        return are_local(self.patterns, plain=True)

    @property
    def estimates_splits(self) -> bool:
        """Return whether files are local: records are counted but for those of compressed files."""
        return are_local(self.patterns)

    def _mean_record_bytes(self, stream: BinaryIO) -> float:
        """Return how many bytes a record has at the beginning of a stream."""
        records = islice(_records(stream, Split(0), 0, self.max_record_bytes), RECORDS_LOOKED_AT)
        ends = [offset + _HEADER.size + len(record) + _FOOTER.size for offset, record in records]
        return ends[-1] / len(ends) if ends else 0.0

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield records from number `start` on; the ones before are skipped by their lengths."""
        told = partition_values(split.path, self.patterns, self.partitions)
        with opened(split) as stream:
            records = _records(stream, split, start, self.max_record_bytes)
            for number, (offset, record) in enumerate(records, start=start):
                if not (self.parse or self.features):
                    yield add_partitions({"record": record}, told) if told else {"record": record}
                    continue
                try:
                    columns = parse_example(record, self.features)
                except ValueError as error:
                    _corrupt(split, offset, number, str(error), "read it with parse=False")
                yield add_partitions(columns, told) if told else columns

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        options = self.parse, self.split_bytes, sorted(self.features.items()), self.partitions
        return identity_of("TFRecords", options, data_files(self.patterns))


def _record_ranges(listed: FileInfo, split_bytes: int) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield (first byte, last byte + 1, records, None) of runs of records.

    A broken header ends them as one more record: its reader meets the same fault, and tells with the number of the
    element. How many records lie behind it is not known, so the number is an estimate, too.
    """
    size, first, count = listed.size, 0, 0
    # Whoever reads it tells why a file cannot be opened.
    with (
        suppress(OSError, SourceError),
        open_random(listed.path, version=listed.version, buffering=HEADERS_BYTES) as file,
    ):
        at = 0
        while at < size:
            file.seek(at)
            length = _length(file.read(_HEADER.size))
            end = at + _HEADER.size + (length or 0) + _FOOTER.size
            if length is None or end > size:
                break
            # One record at least, however large it is.
            if end - first > split_bytes and count > 0:
                yield first, at, count, None
                first, count = at, 0
            at, count = end, count + 1
        else:
            yield first, size, count, None
            return
    yield first, size, count + 1, count + 1


def _records(stream: BinaryIO, split: Split, start: int, max_record_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset, record), skipping the first `start` records."""
    offset, number = split.start, 0
    while split.stop is None or offset != split.stop:
        header = stream.read(_HEADER.size)
        if not header and split.stop is None:
            return
        length = _length(header)
        if length is None:
            whole = len(header) == _HEADER.size
            problem = "the checksum of the record's length is wrong" if whole else "the file ends inside a record"
            _corrupt(split, offset, number, problem)
        end = offset + _HEADER.size + length + _FOOTER.size
        if split.stop is not None and end > split.stop:
            _corrupt(split, offset, number, f"the record of {length} bytes goes beyond the file's end")
        # Before it is read: a length may be anything, and its checksum shows nothing of a hostile one.
        if length > max_record_bytes:
            problem = f"the record has {length} bytes, more than max_record_bytes={max_record_bytes}"
            _corrupt(split, offset, number, problem)
        record = _record(stream, length, skipped=number < start)
        if isinstance(record, str):
            _corrupt(split, offset, number, record)
        if record is not None:
            yield offset, record
        offset, number = end, number + 1


def _record(stream: BinaryIO, length: int, *, skipped: bool) -> bytes | str | None:
    """Return the data of a record, None if it is skipped, or what is wrong with it."""
    if skipped:
        behind = length + _FOOTER.size
        # Its checksum is not looked at, because it would have to be read for that.
        return None if skip_bytes(stream, behind) == behind else f"the file ends inside a record of {length} bytes"
    record, footer = stream.read(length), stream.read(_FOOTER.size)
    if len(footer) < _FOOTER.size:
        return f"the file ends inside a record of {length} bytes"
    # Always verified: what a reader lets pass here is trained on.
    if _FOOTER.unpack(footer)[0] != masked_crc(record):
        return "the checksum of the record's data is wrong"
    return record


def _length(header: bytes) -> int | None:
    """Return the length that a header tells, or None if it is cut off or its checksum is wrong."""
    if len(header) < _HEADER.size:
        return None
    length, crc = _HEADER.unpack(header)
    return int(length) if masked_crc(header[:8]) == crc else None


def masked_crc(data: bytes) -> int:
    """Return the CRC32C of some bytes, rotated and shifted as TFRecord files store it."""
    crc = int(google_crc32c.value(data))
    # The number is TensorFlow's `kMaskDelta` (crc32c.h).
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _corrupt(split: Split, offset: int, element: int, problem: str, hint: str = "") -> NoReturn:
    raise CorruptSourceError(
        f"{split.where(element)} is broken at byte {offset}: {problem}. "
        + (f"If the records are something else, {hint}." if hint else "Write or copy the file again."),
        path=split.path,
        offset=offset,
        element=element,
    )
