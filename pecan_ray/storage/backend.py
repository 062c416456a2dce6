"""What every kind of storage offers, and the one meaning that globs have on all of them.

``*``, ``?`` and ``[...]`` match within one folder, ``**`` any number of folders.  As in a shell, a wildcard
at the beginning of a name does not match a leading dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pecan_ray.storage.ranges import FileRange

MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class FileInfo:
    """One file or object, as a listing shows it."""

    path: str
    """Absolute path, or URI with its scheme."""
    size: int
    """Bytes."""
    version: str
    """Changes when the content does: modification time, ETag or generation."""


class Backend(Protocol):
    """One kind of storage.  All methods raise `SourceError`s only; paths carry their scheme."""

    def info(self, path: str) -> FileInfo | None:
        """Return the file's description, or None if there is no such file."""
        ...

    def folder(self, path: str) -> Iterator[FileInfo]:
        """Yield the files below a folder in the order of their names, page by page."""
        ...

    def glob(self, pattern: str) -> Iterator[FileInfo]:
        """Yield the files that match, in the order of their names, page by page."""
        ...

    def subfolders(self, path: str) -> list[str]:
        """Return the sorted names of the folders directly below a folder."""
        ...

    def read(self, path: str, start: int, stop: int | None, version: str) -> FileRange:
        """Return bytes `start` to `stop`; fewer where the file ends before.

        Raises SourceReplacedError if the file has another version; empty: any will do.
        """
        ...


def is_hidden(relative: str) -> bool:
    """Say whether a path below a listed folder is one of the marker files that data tools leave there."""
    return any(name.startswith((".", "_")) for name in relative.split("/"))


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Translate a glob over a whole path into a regular expression; raise ValueError for a broken one."""
    segments = pattern.split("/")
    parts = []
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            parts.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else ""))
        else:
            parts.append(_segment(segment) + ("" if last else "/"))
    try:
        return re.compile("".join(parts) + r"\Z", re.DOTALL)
    except re.error as error:
        raise ValueError(f"Pattern {pattern!r} is not a valid glob: {error}.") from error


def _segment(segment: str) -> str:
    out = [r"(?!\.)"] if segment[:1] in ("*", "?", "[") else []
    at = 0
    while at < len(segment):
        character = segment[at]
        close = segment.find("]", at + 2) if character == "[" else -1
        if character == "*":
            out.append("[^/]*")
        elif character == "?":
            out.append("[^/]")
        elif close > 0:
            out.append(_character_class(segment[at + 1 : close]))
            at = close
        else:
            out.append(re.escape(character))
        at += 1
    return "".join(out)


def _character_class(inside: str) -> str:
    negated = inside.startswith(("!", "^"))
    members = inside[1:] if negated else inside
    escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
