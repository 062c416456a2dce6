"""Tables of Lance: their fragments are the splits."""

from __future__ import annotations

import hashlib
import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from pecan_ray.errors import ColumnError, MissingExtraError, SourceNotFoundError
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.arrow import columns_of, rows_of
from pecan_ray.sources.files import check_positive, single_path
from pecan_ray.storage.options import StorageOptions, storage_options


@dataclass(frozen=True)
class Lance:
    """The rows of a table of Lance, all columns or some; a fragment is a split.

    All workers read the version that is the newest when the table is listed, or the one that is given.  Values are
    those of `Parquet`.  Lance reads the storage itself, so our retries and quotas do not count there; of a fragment
    what comes before the row that is asked for is not read.
    """

    uri: str
    columns: Sequence[str] | None = None
    version: int | None = field(default=None, kw_only=True)
    batch_rows: int = field(default=1024, kw_only=True)
    """Rows that are read at a time."""
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)
    """In Lance's words; secrets as `Env`."""
    split_rows: ClassVar[int | None] = None
    counts_splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(batch_rows=self.batch_rows)
        _library()
        object.__setattr__(self, "uri", single_path("Lance", self.uri))
        object.__setattr__(self, "storage_options", storage_options(self.storage_options, (self.uri,)))
        if self.columns is not None:
            object.__setattr__(
                self, "columns", (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
            )

    def splits(self) -> Iterator[Split]:
        """Yield fragments that have rows."""
        table = self._table(self.version)
        if self.columns is not None and (missing := sorted(set(self.columns) - set(table.schema.names))):
            raise ColumnError(
                f"{self.uri} has no column {missing[0]!r}; there are {table.schema.names}.", column=missing[0]
            )
        rows = ((fragment.fragment_id, fragment.count_rows()) for fragment in table.get_fragments())
        for index, (fragment, count) in enumerate(one for one in rows if one[1]):
            version = str(table.version)
            yield Split(index, self.uri, 0, count, elements=count, payload=fragment, version=version)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the rows of a fragment from number `start` on."""
        for columns in self.read_columns(split, start):
            yield from rows_of(columns)

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield some rows at a time, as columns."""
        if split.stop is not None and start >= split.stop:
            return
        fragment = self._table(int(split.version)).get_fragment(split.payload)
        columns = None if self.columns is None else list(self.columns)
        for batch in fragment.scanner(columns=columns, batch_size=self.batch_rows, offset=start).to_batches():
            if batch.num_rows:
                yield columns_of(batch)

    def by_index(self) -> Lance:
        """Return the version that is the newest now, of which any rows can be read by their numbers."""
        # Numbers of rows are those of one version, and a writer may make another one meanwhile.
        return replace(self, version=self._table(self.version).version)

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the rows with some numbers, of which Lance reads only these."""
        table, numbers = self._table(self.version), iter(indices)
        columns = None if self.columns is None else list(self.columns)
        while wanted := [int(number) for number in itertools.islice(numbers, self.batch_rows)]:
            for batch in table.take(wanted, columns=columns).to_batches():
                yield from rows_of(columns_of(batch))

    def num_elements(self) -> int:
        """Return the number of rows."""
        return int(self._table(self.version).count_rows())

    def identity(self) -> str:
        """Return a digest of the table's place, its version and the columns."""
        told = (self.uri, self._table(self.version).version, self.columns)
        return f"Lance:{hashlib.sha256(repr(told).encode()).hexdigest()}"

    def _table(self, version: int | None) -> Any:
        options = self.storage_options
        assert options is None or isinstance(options, StorageOptions)
        if version is None:
            return _opened(self.uri, None, options)
        return _opened_version(self.uri, version, options)


@lru_cache(maxsize=8)
def _opened_version(uri: str, version: int, options: StorageOptions | None) -> Any:
    """Return a version of a table, which never changes: it is opened once in a process."""
    return _opened(uri, version, options)


def _opened(uri: str, version: int | None, options: StorageOptions | None) -> Any:
    given = None if options is None else options.resolved()
    try:
        return _library().dataset(uri, version=version, storage_options=given)
    except (ValueError, OSError) as error:
        raise SourceNotFoundError(f"{uri} cannot be opened as a table of Lance: {error}.", path=uri) from error


def _library() -> Any:
    try:
        return importlib.import_module("lance")
    except ImportError as error:
        raise MissingExtraError(
            "sources.Lance needs pylance: pip install 'pecan_ray[lance]' (on the workers too).", extra="lance"
        ) from error
