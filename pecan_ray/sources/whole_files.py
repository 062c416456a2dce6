"""Files that are elements as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from pecan_ray.errors import SourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.class_folders import ListedFiles, grouped, listed_files, read_group, read_group_past_errors
from pecan_ray.sources.file_sources import NamedFiles
from pecan_ray.sources.files import check_positive, data_files, identity_of
from pecan_ray.storage import FileInfo, is_remote


@dataclass(frozen=True)
class Files(NamedFiles):
    """The files that paths name, each an element: columns content (bytes) and path (str).

    Where bad elements are skipped, a file that cannot be read is left out alone.
    """

    split_files: int = field(default=64, kw_only=True)
    """Files in a split."""
    counts_splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(split_files=self.split_files)

    @property
    def seeks(self) -> bool:
        """Return whether each file is read alone: of object stores some are fetched ahead."""
        return not any(map(is_remote, self.patterns))

    def splits(self) -> Iterator[Split]:
        """Yield groups of files."""
        return grouped(((file, None) for file in self._files()), self.split_files)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the files of a group."""
        return read_group(split, start, _element)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield files as `read` does, and errors in the place of those that cannot be read."""
        return read_group_past_errors(split, start, _element)

    def num_elements(self) -> int:
        """Return the number of files, by listing them."""
        return sum(1 for _ in self._files())

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        return identity_of("Files", self.split_files, self._files())

    def by_index(self) -> ListedFiles:
        """Return the files as they are listed now, of which any can be read by its number."""
        files = ((file, None) for file in self._files())
        return listed_files("Files", self.split_files, files, _element, self.split_files)

    def _files(self) -> Iterator[FileInfo]:
        return data_files(self.patterns)


def _element(path: str, _: None, content: bytes) -> Element:
    return {"content": content, "path": path}
