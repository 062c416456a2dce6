"""Folders that LitData has written, read by that library."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import check_positive, identity_of, local_folder
from pecan_ray.sources.libraries import library
from pecan_ray.sources.memory import row_ranges
from pecan_ray.storage import list_files, read_all

_reading = threading.Lock()
"""The library holds one open chunk for all threads of a process."""


@dataclass(frozen=True)
class LitData:
    """The items of a local folder that ``litdata.optimize`` has written: dicts as they are, others in column ``item``.

    It needs the library: ``pip install 'pecan_ray[litdata]'``.
    """

    folder: str | os.PathLike[str]
    split_rows: int | None = field(default=None, kw_only=True)
    """Items in a split; None: so that there are at least 16 splits."""
    counts_splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        folder = local_folder("LitData", self.folder)
        if self.split_rows is not None:
            check_positive(split_rows=self.split_rows)
        object.__setattr__(self, "folder", folder)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to workers: not what was opened here."""
        return {name: value for name, value in self.__dict__.items() if name != "_held"}

    def splits(self) -> Iterator[Split]:
        """Yield ranges of items."""
        for split in row_ranges(self.num_elements(), self.split_rows):
            yield Split(split.index, str(self.folder), split.start, split.stop, split.elements)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield items from number `start` on."""
        return self.rows_at(range(split.start + start, split.stop or 0))

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the items with some numbers."""
        for number in indices:
            with _reading:
                item = self._held[int(number)]
            yield dict(item) if isinstance(item, Mapping) else {"item": item}

    def num_elements(self) -> int:
        """Return the number of items that the index tells."""
        with _reading:
            return len(self._held)

    def identity(self) -> str:
        """Return a digest of every file's path, size and version."""
        return identity_of("LitData", self.split_rows, list_files(str(self.folder)))

    @cached_property
    def _held(self) -> Any:
        """The opened data set."""
        read_all(f"{self.folder}/index.json")  # what is not there is told in our words
        litdata = library("litdata", "sources.LitData", "litdata")
        return litdata.StreamingDataset(str(self.folder), shuffle=False, drop_last=False)
