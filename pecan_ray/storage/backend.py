"""What every kind of storage offers, and the one meaning that globs have on all of them.

``*``, ``?`` and ``[...]`` match within one folder, ``**`` any number of folders.  As in a shell, a wildcard
at the beginning of a name does not match a leading dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Protocol

from pecan_ray.errors import PlanError, SourcePermissionError
from pecan_ray.storage.ranges import FileRange

MAGIC = re.compile(r"[*?\[]")
# PATH_MAX of Linux; a key of S3 has 1,024 bytes at most.
MOST_PATTERN = 4096
"""Characters of the longest pattern."""


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

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole, in place of one that is there: whoever reads it has the one or the other."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; nothing to do where there is none."""
        ...


def called_so(storage: Backend, pattern: str) -> FileInfo | None:
    """Return the file that is called like a pattern itself, with its stars and brackets; None if there is none."""
    try:
        return storage.info(pattern)
    except SourcePermissionError:  # some stores answer so for names that do not exist: the listing tells
        return None


def is_hidden(relative: str) -> bool:
    """Say whether a path below a listed folder is one of the marker files that data tools leave there."""
    return any(name.startswith((".", "_")) for name in relative.split("/"))


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Translate a glob over a whole path into a regular expression; raise PlanError for a broken one.

    Its time grows with the product of the lengths of pattern and path: what a star has been followed by is never
    looked for further right once it was found, since later parts of the pattern could only match less there.
    """
    if len(pattern) > MOST_PATTERN:
        raise PlanError(f"A pattern of {len(pattern)} characters is too long: paths have {MOST_PATTERN} at most.")
    names = [
        name
        for name, behind in zip_longest(pattern.split("/"), pattern.split("/")[1:])
        # `**/**` means `**`, and each further one would multiply the ways in which a path can be tried.
        if name != "**" or behind != "**"
    ]
    # Through the whole pattern, because an expression may have each name of a group once.
    groups = count()
    chunks = _split_runs(names, "**")
    parts = ["".join(_segment(name, groups) + "/" for name in chunks[0])]
    for number, chunk in enumerate(chunks[1:], start=1):
        if number < len(chunks) - 1:
            found = "".join(_segment(name, groups) + "/" for name in chunk)
            parts.append(_first(r"(?:(?!\.)[^/]*/)*?" + found, groups))
        else:
            inner = "".join(_segment(name, groups) + "/" for name in chunk)
            parts.append(r"(?:(?!\.)[^/]*/)*" + (inner or r"(?!\.)[^/]+/"))
    expression = "".join(parts).removesuffix("/") + r"\Z"
    try:
        return re.compile(expression, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise PlanError(f"Pattern {pattern!r} is not a valid glob: {error}.") from error


def _split_runs(values: Iterable[str], separator: str) -> list[list[str]]:
    """Return the runs of values between separators, maybe empty ones."""
    runs: list[list[str]] = [[]]
    for value in values:
        if value == separator:
            runs.append([])
        else:
            runs[-1].append(value)
    return runs


def _first(expression: str, groups: Iterator[int]) -> str:
    """Return an expression that matches as another one does first, and is not asked for further matches."""
    name = f"g{next(groups)}"
    # An atomic group by hand: `re` has them from Python 3.11 on, and 3.10 is supported.
    return f"(?=(?P<{name}>{expression}))(?P={name})"


def _segment(segment: str, groups: Iterator[int]) -> str:
    runs = _split_runs(_tokens(segment), "*")
    out = [r"(?!\.)"] if segment[:1] in ("*", "?", "[") else []
    out += runs[0]
    for run in runs[1:-1]:
        if run:
            out.append(_first("[^/]*?" + "".join(run), groups))
    if len(runs) > 1:
        out += ["[^/]*", *runs[-1]]
    return "".join(out)


def _tokens(segment: str) -> Iterator[str]:
    """Yield expressions for one character each, and ``*``."""
    at = 0
    while at < len(segment):
        character = segment[at]
        # Not from the first member on: `[]]` is the class of one bracket, as in a shell, and `[!]]` of all others.
        negated = segment.startswith(("!", "^"), at + 1)
        close = segment.find("]", at + 2 + negated) if character == "[" else -1
        if character == "*":
            yield "*"
        elif character == "?":
            yield "[^/]"
        elif close > 0:
            yield _character_class(segment[at + 1 : close])
            at = close
        else:
            yield re.escape(character)
        at += 1


def _character_class(inside: str) -> str:
    negated = inside.startswith(("!", "^"))
    members = inside[1:] if negated else inside
    # `-` stays a range. The others Python's `re` takes, or announces to take, for operations on sets.
    escaped = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
    # A negated class would match the slash too, and wildcards stay within one folder.
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
