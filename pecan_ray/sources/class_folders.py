"""What sources have in common of which each element is a file: groups of files as splits, and one folder per class."""

from __future__ import annotations

import logging
import os
from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias

from pecan_ray.by_value import name_here
from pecan_ray.errors import PlanError, SourceError, SourceNotFoundError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import check_positive, identity_of, single_path
from pecan_ray.sources.memory import row_ranges
from pecan_ray.sources.packed_items import PackedItems, packed
from pecan_ray.storage import FileInfo, is_remote, list_folder, read_each, read_many, subfolders
from pecan_ray.storage.options import storage_options as checked_options

logger = logging.getLogger("pecan_ray")

MakeElement: TypeAlias = Callable[[str, Any, bytes], Element]
"""Makes an element of a file's path, what the source knows of it (its label), and its content."""
MAX_NAMED = 10
"""Endings of files that are left out, in one line of the log."""


def grouped(files: Iterable[tuple[FileInfo, object]], split_files: int) -> Iterator[Split]:
    """Yield files, each with its share of the payload, in groups of `split_files`."""
    index = 0
    group: list[tuple[FileInfo, object]] = []
    for one in files:
        group.append(one)
        if len(group) == split_files:
            yield _split(index, group)
            index, group = index + 1, []
    if group:
        yield _split(index, group)


def _split(index: int, group: Sequence[tuple[FileInfo, object]]) -> Split:
    paths, versions = tuple(file.path for file, _ in group), tuple(file.version for file, _ in group)
    payload = tuple(given for _, given in group)
    return Split(index, paths[0], elements=len(group), files=paths, payload=payload, versions=versions)


def read_group(split: Split, start: int, element: MakeElement) -> Iterator[Element]:
    """Yield the files of a group as elements; from object stores many are fetched at a time.

    One that was replaced since it was listed is refused.
    """
    paths, payload = split.files[start:], split.payload[start:]
    return map(element, paths, payload, read_many(paths, split.versions[start:]))


def read_group_past_errors(split: Split, start: int, element: MakeElement) -> Iterator[Element | SourceError]:
    """Yield what `read_group` does, and errors in the place of what cannot be read."""
    paths, payload = split.files[start:], split.payload[start:]
    return _past_errors(element, paths, payload, read_each(paths, split.versions[start:]))


def _past_errors(
    element: MakeElement, paths: Iterable[str], payload: Iterable[Any], contents: Iterable[bytes | SourceError]
) -> Iterator[Element | SourceError]:
    for path, given, content in zip(paths, payload, contents, strict=True):
        yield content if isinstance(content, SourceError) else element(path, given, content)


@dataclass(frozen=True, eq=False)
class ListedFiles:
    """Files that were listed where the pipeline is written, of which any can be read by its number."""

    files: Sequence[tuple[str, str, Any]] = field(repr=False)
    """Path, version and payload of each; many of them are put once on each node."""
    element: MakeElement
    split_rows: int
    """Files in a split."""
    listed: str
    """Identity of the source that was listed."""
    counts_splits: ClassVar[bool] = True

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent: a long list as arrays that are put apart."""
        # A million paths are once on each node, and not in each worker
        # (docs/decisions/sources.md#132-arrays-once-on-each-node).
        packs = None if isinstance(self.files, PackedItems) else packed(self.files, name_here(self))
        return {**self.__dict__, "files": self.files if packs is None else packs}

    def splits(self) -> Iterator[Split]:
        """Yield ranges of files."""
        return row_ranges(len(self.files), self.split_rows)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the files of a range."""
        return self.rows_at(range(split.start + start, len(self.files) if split.stop is None else split.stop))

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the files with some numbers; from object stores many are fetched at a time."""
        paths, versions, payload = self._at(indices)
        return map(self.element, paths, payload, read_many(paths, versions))

    def rows_past_errors(self, indices: Iterable[int]) -> Iterator[Element | SourceError]:
        """Yield what `rows_at` does, and errors in the place of files that cannot be read."""
        paths, versions, payload = self._at(indices)
        return _past_errors(self.element, paths, payload, read_each(paths, versions))

    def num_elements(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def identity(self) -> str:
        """Return that of the source when it was listed."""
        return self.listed

    def _at(self, indices: Iterable[int]) -> tuple[list[str], list[str], list[Any]]:
        found = [self.files[index] for index in indices]
        return [one[0] for one in found], [one[1] for one in found], [one[2] for one in found]


def listed_files(
    kind: str, options: object, files: Iterable[tuple[FileInfo, Any]], element: MakeElement, split_rows: int
) -> ListedFiles:
    """Return files with their payloads for reading by number; `kind` and `options` are those of `identity_of`."""
    found = list(files)
    identity = identity_of(kind, options, (file for file, _ in found))
    return ListedFiles([(file.path, file.version, given) for file, given in found], element, split_rows, identity)


@dataclass(frozen=True, init=False)
class ClassFolders(ABC):
    """A source of the files of ``root/<class>/**`` with some endings: columns for the content, label and path."""

    root: str
    split_files: int
    """Files in a split."""
    given_classes: tuple[str, ...] | None
    storage_options: Mapping[str, Any] | None = field(hash=False)
    """Of the storage, in fsspec's words; secrets as `Env`."""
    counts_splits: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]]
    """In small letters."""
    item_name: ClassVar[str]
    """What one of its files is, for errors."""
    column: ClassVar[str]
    """The column that holds the content of a file."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None = None,
        split_files: int = 64,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe folders of files.

        Args:
            root: holds one folder per class.
            classes: names of the folders to read, in the order of their labels; None: all, by name.
            split_files: files in a split.
            storage_options: of the storage, in fsspec's words; secrets as `Env`.
        """
        check_positive(split_files=split_files)
        path = single_path(self._kind, root)
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "split_files", split_files)
        object.__setattr__(self, "given_classes", checked_classes(self._kind, classes))
        object.__setattr__(self, "storage_options", checked_options(storage_options, (path,)))

    @property
    def _kind(self) -> str:
        return type(self).__name__

    @property
    def seeks(self) -> bool:
        """Return whether each file is read alone: of object stores some are fetched ahead."""
        return not is_remote(self.root)

    def splits(self) -> Iterator[Split]:
        """Yield groups of files, listing one class after the other."""
        return grouped(self._files(), self.split_files)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the files of a group, undecoded."""
        return read_group(split, start, self._element)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield files as `read` does, and errors in the place of those that cannot be read."""
        return read_group_past_errors(split, start, self._element)

    def num_elements(self) -> int:
        """Return the number of files, by listing them."""
        return sum(1 for _ in self._files())

    def identity(self) -> str:
        """Return a digest of the classes and of every file's path, size and version."""
        return identity_of(self._kind, (self.classes, self.split_files), (file for file, _ in self._files()))

    def by_index(self) -> ListedFiles:
        """Return the files as they are listed now, of which any can be read by its number."""
        options = (self.classes, self.split_files)
        return listed_files(self._kind, options, self._files(), self._element, self.split_files)

    @property
    def _element(self) -> MakeElement:
        return partial(_of_class, self.column)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels (listed anew at each use)."""
        names = subfolders(self.root)
        if not names:
            raise SourceNotFoundError(
                f"There is no class folder in {self.root}. {self._kind} expects {self.root}/<class>/<file>.",
                path=self.root,
            )
        if self.given_classes is None:
            return names
        missing = [name for name in self.given_classes if name not in names]
        if missing:
            raise SourceNotFoundError(
                f"{self._kind}(classes=...) names {', '.join(map(repr, missing))}, and {self.root} has no such folder. "
                f"It has: {', '.join(names[:MAX_NAMED])}{' ...' if len(names) > MAX_NAMED else ''}. "
                "Make an empty folder for a class without files.",
                path=self.root,
            )
        return list(self.given_classes)

    def _files(self) -> Iterator[tuple[FileInfo, int]]:
        """Yield files and their labels, listing one class after the other."""
        found = False
        left_out: Counter[str] = Counter()
        for label, name in enumerate(self.classes):
            for file in list_folder(f"{self.root}/{name}"):
                if file.path.lower().endswith(self.endings):
                    found = True
                    yield file, label
                else:
                    left_out[_ending(file.path)] += 1
        if not found:
            raise SourceNotFoundError(
                f"There is no {self.item_name} in the class folders of {self.root}; these extensions count: "
                f"{', '.join(self.endings)}.",
                path=self.root,
            )
        if left_out:
            kinds = ", ".join(f"{count:,} {ending}" for ending, count in left_out.most_common(MAX_NAMED))
            logger.info("%s(%r) leaves out files by their extensions: %s", self._kind, self.root, kinds)


def checked_classes(kind: str, classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the classes that a user has given; raises PlanError for what cannot be names of folders."""
    if classes is None:
        return None
    # A text would be taken for the list of its letters.
    names = () if isinstance(classes, str) else tuple(classes)
    irregular = [name for name in names if not isinstance(name, str) or not name or "/" in name]
    if not names or irregular or len(set(names)) < len(names):
        raise PlanError(
            f"{kind}(classes=...) must be a list of different names of folders, in the order of their labels, but got "
            f"{classes!r}."
        )
    return names


def _ending(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2].lower()}" if "." in name else "without extension"


def _of_class(column: str, path: str, label: int, content: bytes) -> Element:
    return {column: content, "label": label, "path": path}
