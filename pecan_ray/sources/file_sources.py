"""What sources of files have in common: their fields, and elements that are made of columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from pecan_ray.errors import SourceError
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.arrow import rows_of
from pecan_ray.sources.files import MAX_RECORD_BYTES, SPLIT_BYTES, Paths, are_local, check_positive, patterns_of
from pecan_ray.sources.filling import check_fill
from pecan_ray.sources.lines import UTF_8, BadLines, line_encoding
from pecan_ray.sources.partitions import Partitions, check_partitions
from pecan_ray.storage.options import storage_options


@dataclass(frozen=True)
class NamedFiles:
    """A source of the files that paths name."""

    paths: Paths = field(hash=False)
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)
    """Of the storage, in fsspec's words; secrets as `Env`."""
    patterns: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", patterns_of(self.paths))
        object.__setattr__(self, "storage_options", storage_options(self.storage_options, self.patterns))

    def num_elements(self) -> int | None:
        """Return None: elements are not counted without reading."""
        return None


@dataclass(frozen=True)
class RecordFiles(NamedFiles):
    """Files of many elements each, in folders that may name columns."""

    partitions: Partitions = field(default=True, kw_only=True, hash=False)
    """Whether folders called ``name=value`` below what `paths` name are columns of texts; a mapping gives types."""
    split_bytes: int = field(default=SPLIT_BYTES, kw_only=True)
    max_record_bytes: int = field(default=MAX_RECORD_BYTES, kw_only=True)

    def __post_init__(self) -> None:
        check_positive(split_bytes=self.split_bytes, max_record_bytes=self.max_record_bytes)
        check_partitions(self.partitions)
        super().__post_init__()


@dataclass(frozen=True)
class LineFiles(RecordFiles):
    """Files of lines, read from the front."""

    encoding: str = field(default=UTF_8, kw_only=True)
    """A codec of Python in which ASCII is ASCII: latin-1, cp1252, shift_jis, gb18030."""

    sequential: ClassVar[Literal[True]] = True

    @property
    def estimates_splits(self) -> bool:
        """Return whether files are local, so that splits estimate their numbers of elements."""
        return are_local(self.patterns)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "encoding", line_encoding(self.encoding))


@dataclass(frozen=True)
class NullableColumns(RecordFiles):
    """Files whose columns may lack values."""

    fill: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)
    """What comes in the place of a missing value, by column."""
    mask: Mapping[str, str] | None = field(default=None, kw_only=True, hash=False)
    """Names of new columns by column: each tells where its column has no value, which an empty cell of texts is too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fill(self.fill, self.mask)


class ReadByColumns(ABC):
    """Elements that a source reads as columns, several at a time."""

    @abstractmethod
    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the columns of some elements at a time, from number `start` on."""

    @abstractmethod
    def read_columns_past_errors(self, split: Split, start: int = 0) -> Iterator[Columns | SourceError]:
        """Yield columns as `read_columns` does, and errors in the place of what cannot be read."""

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield elements from number `start` on."""
        for columns in self.read_columns(split, start):
            yield from rows_of(columns)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield elements as `read` does, and errors in the place of what cannot be read."""
        for columns in self.read_columns_past_errors(split, start):
            if isinstance(columns, SourceError):
                yield columns
            else:
                yield from rows_of(columns)


class LinesByColumns(LineFiles, ReadByColumns):
    """Lines that become columns, where each bad one has its error."""

    @property
    def reads_past_errors(self) -> bool:
        """Return whether what follows a bad line can be read."""
        return True

    @abstractmethod
    def _columns(self, start: int, bad: BadLines) -> Iterator[Columns | SourceError]:
        """Yield columns of the split of `bad`, which decides what becomes of bad lines."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the columns of many lines at a time, from element `start` on; the first bad one raises its error."""
        bad = BadLines(split, self.max_record_bytes, past_errors=False)
        return cast("Iterator[Columns]", self._columns(start, bad))

    def read_columns_past_errors(self, split: Split, start: int = 0) -> Iterator[Columns | SourceError]:
        """Yield columns as `read_columns` does, and the errors of bad lines in their place."""
        return self._columns(start, BadLines(split, self.max_record_bytes, past_errors=self.reads_past_errors))
