"""Data sets of Hugging Face: tables that lie on a disk or in memory, and streamed ones."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pecan_ray.errors import MissingExtraError, PlanError, SourceNotFoundError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import check_positive
from pecan_ray.sources.hugging_face_numbers import exact_columns
from pecan_ray.sources.memory import row_ranges
from pecan_ray.storage import list_files

ROWS_AT_ONCE = 64
"""Rows that are taken out of a table at a time: some are images."""
WHOLE_TABLES = ("arrow", "pandas", "polars")
"""Formats of `datasets` that give tables."""


@dataclass(frozen=True, eq=False)
class HuggingFace:
    """The rows of a `datasets.Dataset`, of one that ``save_to_disk`` has written, or of an `IterableDataset`.

    Rows come in the data set's format, or as NumPy arrays where it has none: as ``with_format("numpy")`` gives them,
    but numbers that it would change (float64, uint64, whole numbers beside nulls) are exact.

    A table is cut into row ranges; one that is given by its folder is opened by each worker, so the folder must lie
    where all nodes see it, and one that is given itself is sent to every worker (of what lies in files their names
    alone).  A streamed data set is cut into its shards, each read from its beginning: what comes before the element
    that is asked for is read and left out.  It must yield the same elements each time (no shuffling without a seed),
    and that its data has changed is not noticed.

    Raises PlanError for what is no data set, and for several (a `DatasetDict`) of which `split` names none.
    """

    dataset: Any = field(repr=False)
    split: str | None = field(default=None, kw_only=True)
    """Which of several, where a folder holds a `DatasetDict`."""
    split_rows: int | None = field(default=None, kw_only=True)
    """Rows of a table in a split; None: so that there are at least 16 splits."""

    def __post_init__(self) -> None:
        if self.split_rows is not None:
            check_positive(split_rows=self.split_rows)
        _library()
        if isinstance(self.dataset, os.PathLike):
            object.__setattr__(self, "dataset", os.fspath(self.dataset))
        if isinstance(self.dataset, str) and "://" not in self.dataset:
            object.__setattr__(self, "dataset", os.path.abspath(os.path.expanduser(self.dataset)))
        if not isinstance(self.dataset, str):
            _ = self._held  # what is no data set is refused at once

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to workers: not what was opened here."""
        return {name: value for name, value in self.__dict__.items() if name != "_held"}

    @property
    def counts_splits(self) -> bool:
        """Return whether it is a table; a folder of ``save_to_disk`` is one, and is not opened to know that."""
        return isinstance(self.dataset, str) or _is_table(self._held)

    def splits(self) -> Iterator[Split]:
        """Yield row ranges of a table, or the shards of a streamed data set."""
        held, path = self._held, self.dataset if isinstance(self.dataset, str) else ""
        if not _is_table(held):
            yield from (Split(index=index, payload=index) for index in range(held.num_shards))
            return
        for split in row_ranges(len(held), self.split_rows):
            yield Split(index=split.index, path=path, start=split.start, stop=split.stop, elements=split.elements)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield rows from number `start` on."""
        held = self._held
        if not _is_table(held):
            shard = held.shard(num_shards=held.num_shards, index=split.payload)
            yield from map(dict, itertools.islice(shard, start, None))
            return
        assert split.stop is not None
        for first in range(split.start + start, split.stop, ROWS_AT_ONCE):
            yield from self._rows(slice(first, min(first + ROWS_AT_ONCE, split.stop)))

    def by_index(self) -> HuggingFace:
        """Return it, if it is a table; raises PlanError for a streamed data set."""
        if not _is_table(self._held):
            raise PlanError(
                "A sampler needs a data set of Hugging Face of which any row can be read, and this one is streamed: "
                "load it without streaming=True, or write .shuffle(buffer)."
            )
        return self

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the rows of a table with some numbers."""
        numbers = map(int, indices)
        while wanted := list(itertools.islice(numbers, ROWS_AT_ONCE)):
            yield from self._rows(wanted)

    def _rows(self, rows: slice | list[int]) -> Iterator[Element]:
        held = self._held
        unformatted = not held.format["type"]
        # With its columns: those that the user has left out stay so.
        shown = held.with_format("numpy", columns=held.format["columns"]) if unformatted else held
        columns = {name: _values(column) for name, column in shown[rows].items()}
        if unformatted:
            # That format rounds numbers without a word:
            # docs/decisions/values.md#110-exact-numbers-of-hugging-face.
            columns.update(exact_columns(held.with_format("arrow", columns=held.format["columns"])[rows]))
        names = list(columns)
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(names, row, strict=True))

    def num_elements(self) -> int | None:
        """Return the number of rows of a table."""
        return len(self._held) if _is_table(self._held) else None

    def identity(self) -> str:
        """Return a digest of a folder's files, of a table's fingerprint, or of what is known of a streamed data set."""
        held = self._held
        digest = hashlib.sha256(repr((self.split, self.split_rows, str(held.features))).encode())
        if isinstance(self.dataset, str):
            for file in list_files(self.dataset):
                digest.update(repr((file.path, file.size, file.version)).encode())
        elif _is_table(held):
            # `datasets` gives a table another fingerprint with each change of it.
            digest.update(str(self.dataset._fingerprint).encode())
        else:
            info = held.info
            digest.update(repr((info.dataset_name, info.config_name, str(info.version), held.num_shards)).encode())
        return f"HuggingFace:{digest.hexdigest()}"

    @cached_property
    def _held(self) -> Any:
        """The data set, in a format."""
        held = self._opened() if isinstance(self.dataset, str) else self.dataset
        if isinstance(held, Mapping):
            if self.split not in held:
                raise PlanError(f"HuggingFace: there are several data sets: give split=..., one of {sorted(held)}.")
            held = held[self.split]
        library = _library()
        if not isinstance(held, (library.Dataset, library.IterableDataset)):
            raise PlanError(
                "HuggingFace needs a datasets.Dataset, an IterableDataset, or the folder that save_to_disk has "
                f"written, but got {type(held).__name__}."
            )
        kind = held.format["type"] if _is_table(held) else getattr(held._formatting, "format_type", None)
        if kind in WHOLE_TABLES:
            raise PlanError(
                f"HuggingFace: the data set's format is {kind!r}, which gives tables and not rows: pass "
                "dataset.with_format(None)."
            )
        return held

    def _opened(self) -> Any:
        try:
            return _library().load_from_disk(self.dataset)
        except FileNotFoundError as error:
            raise SourceNotFoundError(
                f"{self.dataset} holds no data set that save_to_disk has written: {error}. For one on the Hub give "
                "datasets.load_dataset(...), or read its files (hf://datasets/...) by pecan_ray.sources.Parquet.",
                path=self.dataset,
            ) from error


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError(
            "sources.HuggingFace needs datasets: pip install 'pecan_ray[datasets]' (on the workers too).",
            extra="datasets",
        ) from error


def _is_table(held: Any) -> bool:
    return isinstance(held, _library().Dataset)


def _values(column: Any) -> Any:
    """Return a column's values: texts of Python, and arrays that functions may write into."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype.kind in "SU":
        return column.tolist()
    return [value.copy() for value in column] if column.ndim > 1 else list(column)
