"""What sources have in common of which each element is a file: groups of files as splits, and one folder per class."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pecan_ray.errors import PlanError, SourceError, SourceNotFoundError
from pecan_ray.plan.splits import Split
from pecan_ray.storage import FileInfo, list_folder, read_each, read_many, subfolders

logger = logging.getLogger("pecan_ray")

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


def read_group(split: Split, start: int) -> Iterator[tuple[str, object, bytes]]:
    """Yield path, payload and content of the files of a group; from object stores many are fetched at a time.

    One that was replaced since it was listed is refused.
    """
    contents = read_many(split.files[start:], split.versions[start:])
    return zip(split.files[start:], split.payload[start:], contents, strict=True)


def read_group_past_errors(split: Split, start: int) -> Iterator[tuple[str, object, bytes | SourceError]]:
    """Yield what `read_group` does, and errors in the place of what cannot be read."""
    contents = read_each(split.files[start:], split.versions[start:])
    return zip(split.files[start:], split.payload[start:], contents, strict=True)


@dataclass(frozen=True)
class ClassFolders:
    """The files of ``root/<class>/**`` with some endings."""

    root: str
    endings: tuple[str, ...]
    """In small letters."""
    kind: str
    """The source, for errors."""
    noun: str
    """What one of its files is."""
    given: tuple[str, ...] | None
    """Classes in the order of their labels; None: all folders, by name."""

    def classes(self) -> list[str]:
        """Return the names of the classes in the order of their labels; raises SourceNotFoundError for none."""
        names = subfolders(self.root)
        if not names:
            raise SourceNotFoundError(
                f"There is no class folder in {self.root}. {self.kind} expects {self.root}/<class>/<file>.",
                path=self.root,
            )
        if self.given is None:
            return names
        missing = [name for name in self.given if name not in names]
        if missing:
            raise SourceNotFoundError(
                f"{self.kind}(classes=...) names {', '.join(map(repr, missing))}, and {self.root} has no such folder. "
                f"It has: {', '.join(names[:MAX_NAMED])}{' ...' if len(names) > MAX_NAMED else ''}. "
                "Make an empty folder for a class without files.",
                path=self.root,
            )
        return list(self.given)

    def files(self) -> Iterator[tuple[FileInfo, int]]:
        """Yield files and their labels, listing one class after the other."""
        found = False
        left_out: Counter[str] = Counter()
        for label, name in enumerate(self.classes()):
            for file in list_folder(f"{self.root}/{name}"):
                if file.path.lower().endswith(self.endings):
                    found = True
                    yield file, label
                else:
                    left_out[_ending(file.path)] += 1
        if not found:
            raise SourceNotFoundError(
                f"There is no {self.noun} in the class folders of {self.root}; these extensions count: "
                f"{', '.join(self.endings)}.",
                path=self.root,
            )
        if left_out:
            kinds = ", ".join(f"{count:,} {ending}" for ending, count in left_out.most_common(MAX_NAMED))
            logger.info("%s(%r) leaves out files by their extensions: %s", self.kind, self.root, kinds)


def checked_classes(kind: str, classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the classes that a user has given; raises PlanError for what cannot be names of folders."""
    if classes is None:
        return None
    names = () if isinstance(classes, str) else tuple(classes)
    strange = [name for name in names if not isinstance(name, str) or not name or "/" in name]
    if not names or strange or len(set(names)) < len(names):
        raise PlanError(
            f"{kind}(classes=...) must be a list of different names of folders, in the order of their labels, but got "
            f"{classes!r}."
        )
    return names


def _ending(path: str) -> str:
    name = path.rpartition("/")[2]
    return f".{name.rpartition('.')[2].lower()}" if "." in name else "without extension"
