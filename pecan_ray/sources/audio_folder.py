"""Recordings in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pecan_ray.errors import SourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.class_folders import (
    ClassFolders,
    ListedFiles,
    checked_classes,
    grouped,
    listed_files,
    read_group,
    read_group_past_errors,
)
from pecan_ray.sources.files import check_positive, identity_of, single_path
from pecan_ray.storage.options import storage_options as checked_options

EXTENSIONS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".m4a", ".aac", ".wma")


@dataclass(frozen=True, init=False)
class AudioFolder:
    """The recordings of ``root/<class>/**``: columns audio (encoded bytes), label (int) and path (str).

    The label is the place of the class in `classes`, or among the sorted names of the folders in `root`; all else is as
    in `ImageFolder`.  ``map(pecan.media.DecodeAudio(), on="audio")`` decodes.
    """

    root: str
    split_files: int
    """Recordings in a split."""
    given_classes: tuple[str, ...] | None
    storage_options: Mapping[str, Any] | None = field(hash=False)
    """Of the storage, in fsspec's words; secrets as `Env`."""
    counts_splits: ClassVar[bool] = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None = None,
        split_files: int = 64,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe a folder of recordings.

        Args:
            root: holds one folder per class.
            classes: names of the folders to read, in the order of their labels; None: all, by name.
            split_files: recordings in a split.
            storage_options: of the storage, in fsspec's words; secrets as `Env`.
        """
        check_positive(split_files=split_files)
        path = single_path("AudioFolder", root)
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "split_files", split_files)
        object.__setattr__(self, "given_classes", checked_classes("AudioFolder", classes))
        object.__setattr__(self, "storage_options", checked_options(storage_options, (path,)))

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels (listed anew at each use)."""
        return self._folders.classes()

    def splits(self) -> Iterator[Split]:
        """Yield groups of recordings, listing one class after the other."""
        return grouped(self._folders.files(), self.split_files)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the recordings of a group, undecoded."""
        return read_group(split, start, _element)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield recordings as `read` does, and errors in the place of those that cannot be read."""
        return read_group_past_errors(split, start, _element)

    def num_elements(self) -> int:
        """Return the number of recordings, by listing them."""
        return sum(1 for _ in self._folders.files())

    def identity(self) -> str:
        """Return a digest of the classes and of every recording's path, size and version."""
        files = (file for file, _ in self._folders.files())
        return identity_of("AudioFolder", (self.classes, self.split_files), files)

    def by_index(self) -> ListedFiles:
        """Return the recordings as they are listed now, of which any can be read by its number."""
        options = (self.classes, self.split_files)
        return listed_files("AudioFolder", options, self._folders.files(), _element, self.split_files)

    @property
    def _folders(self) -> ClassFolders:
        return ClassFolders(self.root, EXTENSIONS, "AudioFolder", "recording", self.given_classes)


def _element(path: str, label: int, audio: bytes) -> Element:
    return {"audio": audio, "label": label, "path": path}
