"""Which files paths, folders, globs and braces name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from pecan_ray.errors import SourceNotFoundError
from pecan_ray.storage.backend import MAGIC, FileInfo, compile_glob, is_hidden
from pecan_ray.storage.clients import backend, is_remote
from pecan_ray.storage.pattern_expansion import expand_pattern, pattern_to_glob

Patterns: TypeAlias = str | Sequence[str]

# A lookup is one request; a listing is one for each 1,000 objects that begin alike, wanted or not.
FEW_NAMES = 16
"""Most names that braces stand for which are looked up one by one; more are found in one listing."""
ONLY_STARS = re.compile(r"\*+")


def list_files(patterns: Patterns, without: Callable[[str], bool] | None = None) -> Iterator[FileInfo]:
    """Yield the files of files, folders and globs, each pattern's in the order of their names, page by page.

    Folders are searched to any depth, leaving out names that begin with ``.`` or ``_``.  A file that two
    patterns name is yielded twice.  Raises SourceNotFoundError for a pattern that names nothing,
    SourcePermissionError where listing is not allowed.

    Args:
        patterns: braces stand for several patterns, in their order, each of which must name something.
        without: tells of a path whether it is left out where nobody has named it: in folders, and below ``*``.
    """
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        for named in _expand_patterns(pattern):
            if isinstance(named, FileInfo):
                yield named
                continue
            count = 0
            for file in _expand(named):
                if without is None or file.path == named or not _is_for_all(named) or not without(file.path):
                    count += 1
                    yield file
            if count == 0:
                raise SourceNotFoundError(_nothing(named), path=named)


def _expand_patterns(pattern: str) -> Iterator[str | FileInfo]:
    """Yield the patterns that braces stand for; files in their place where one listing has found them."""
    names = expand_pattern(pattern)
    # A file may really be called so, braces and all.
    if len(names) == 1 or backend(pattern).info(pattern) is not None:
        yield pattern
    elif len(names) <= FEW_NAMES or any(map(MAGIC.search, names)):
        yield from names
    else:
        wanted = set(names)
        found = {file.path: file for file in backend(pattern).glob(pattern_to_glob(pattern)) if file.path in wanted}
        # A name that the listing lacks stays a pattern, of which `list_files` then says that it names
        # nothing.
        yield from (found.get(name, name) for name in names)


def _is_for_all(pattern: str) -> bool:
    """Tell whether a pattern names a folder, or all files of one."""
    name = pattern.rpartition("/")[2]
    return MAGIC.search(pattern) is None or ONLY_STARS.fullmatch(name) is not None


def would_name(patterns: Patterns, path: str) -> bool:
    """Tell whether patterns would name a file, if there were one of this path."""
    names = [name for one in ([patterns] if isinstance(patterns, str) else patterns) for name in expand_pattern(one)]
    return any(_would_name(name, path) for name in names)


def _would_name(pattern: str, path: str) -> bool:
    if MAGIC.search(pattern):
        return compile_glob(pattern).match(path) is not None
    below = path.removeprefix(pattern.rstrip("/") + "/")
    return path == pattern or (below != path and not is_hidden(below))


def list_folder(folder: str) -> Iterator[FileInfo]:
    """Yield the files below a folder whose name is taken literally, as `list_files` does; maybe none."""
    return backend(folder).folder(folder)


def subfolders(folder: str) -> list[str]:
    """Return the sorted names of the folders directly below a folder, without those beginning with . or _."""
    return backend(folder).subfolders(folder)


def file_info(path: str) -> FileInfo:
    """Describe one file, or raise SourceNotFoundError."""
    found = backend(path).info(path)
    if found is None:
        raise SourceNotFoundError(_nothing(path), path=path)
    return found


def _expand(pattern: str) -> Iterator[FileInfo]:
    storage = backend(pattern)
    if MAGIC.search(pattern):
        yield from storage.glob(pattern)
        return
    found = storage.info(pattern)
    if found is not None:
        yield found
    else:
        yield from storage.folder(pattern)


def _nothing(pattern: str) -> str:
    if MAGIC.search(pattern):
        return (
            f"The pattern {pattern} matches no file. Check the folder and spelling; `*` stays within one "
            "folder, `**` crosses folders, and only files match."
        )
    where = "with this key or below this prefix" if is_remote(pattern) else "on this machine with this name or below it"
    return f"{pattern}: there is no file {where}. Check the path, and that all workers see the same storage."
