"""What a store answers to a request for a range, checked: the bytes that were asked for, or an error.

A store may answer with the whole object (status 200), with another range, with fewer bytes than it announces, or with
another version than the one that was listed.  None of it may be taken for the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from pecan_ray.errors import SourceError, SourceReplacedError

WHOLE_BYTES = 64 << 20
"""An object is cut to the range here if the store sends all of it, up to this size."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(-?\d+)/(\d+)")
_NO_RANGE = re.compile(r"bytes \*/(\d+)")


class FileRange(NamedTuple):
    """A range of a file's bytes, and what is known of the file since."""

    data: bytes
    size: int
    """Of the whole file."""
    version: str = ""
    """As a listing shows it; empty where the store does not tell."""


class ShortResponseError(ConnectionError):
    """A store has sent fewer bytes than it was asked for and has: it is asked again."""


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """What is asked of a store."""

    path: str
    start: int
    stop: int | None
    """One behind the last byte; None: to the end."""
    version: str = ""
    """The version that is wanted; empty: any."""

    @property
    def ranged(self) -> bool:
        """Return whether it is less than the whole."""
        return self.start > 0 or self.stop is not None

    def header(self) -> dict[str, str]:
        """Return the header that asks for the range."""
        return {"Range": f"bytes={self.start}-{'' if self.stop is None else self.stop - 1}"} if self.ranged else {}

    def check_version(self, version: str) -> None:
        """Raise SourceReplacedError where an answer is of another version than the wanted one."""
        if self.version and version and version != self.version:
            raise replaced(self.path, self.start)

    def check_response_source(self, status: int, version: str) -> None:
        """Raise SourceError for a whole answer without a version, which the store's listing tells: it is another's."""
        if self.version and not version and status != 206:
            raise SourceError(
                f"{self.path}: the answer (status {status}) names no version, as the store does. It may be a page of a "
                "proxy, or of a network that asks for a login: look at it with `curl`.",
                path=self.path,
            )

    def check_size(self, status: int, length: int | None) -> None:
        """Raise SourceError where the whole of a large object is about to be sent instead of a range."""
        if self.ranged and too_long(status, length):
            raise self.ignored(length)

    def ignored(self, length: int | None) -> SourceError:
        """Return the error for a store that sends the whole of a large object instead of a range."""
        held = "an object of unknown size" if length is None else f"all {length:,} bytes"
        return SourceError(
            f"{self.path}: the store ignores ranges: asked for bytes {self.start} to "
            f"{'the end' if self.stop is None else self.stop}, it sends {held}. Use a store, or a proxy in front "
            "of it, that answers to Range headers.",
            path=self.path,
        )

    def check_whole(self, status: int, length: str | None, body: bytes) -> None:
        """Raise ShortResponseError where the whole of an object came, and the store says that it is another length."""
        if status == 200 and length is not None and length.isdigit() and int(length) != len(body):
            raise ShortResponseError(f"{len(body)} bytes came of {length}")

    def parse_response(self, status: int, content_range: str | None, body: bytes, version: str) -> FileRange:
        """Return what was asked for, from an answer with status 200 or 206."""
        if not self.ranged:
            return FileRange(body, len(body), version)
        if status == 200 and not content_range:  # else it is a range, whatever its status says
            return FileRange(body[self.start : self.stop], len(body), version)
        found = _CONTENT_RANGE.match(content_range or "")
        if found is None:
            raise SourceError(
                f"{self.path}: the store does not say which range it sends ({content_range}).", path=self.path
            )
        first, last, size = int(found[1]), int(found[2]), int(found[3])
        stop = size if self.stop is None else min(self.stop, size)
        if first != self.start or last >= stop:
            raise SourceError(
                f"{self.path}: asked for bytes {self.start} to {stop}, the store sends {content_range}.", path=self.path
            )
        if len(body) < stop - self.start:
            raise ShortResponseError(f"{len(body)} bytes came of {stop - self.start}")
        return FileRange(body[: stop - self.start], size, version)

    def nothing(self, content_range: str | None) -> FileRange:
        """Return what an answer with status 416 tells: the object ends before the range."""
        found = _NO_RANGE.match(content_range or "")
        size = int(found[1]) if found else None
        if not self.ranged or size is None or size > self.start:
            told = "does not say how many bytes the object has" if size is None else f"that the object has {size} bytes"
            raise SourceError(
                f"{self.path}: the store says that nothing lies behind byte {self.start}, and {told}. Check the store, "
                "and what stands between it and this machine.",
                path=self.path,
            )
        return FileRange(b"", size)


def too_long(status: int, length: int | None) -> bool:
    """Say whether an answer to a request for a range sends so much that it is not read and cut."""
    return status == 200 and (length is None or length > WHOLE_BYTES)


def replaced(path: str, offset: int | None = None) -> SourceReplacedError:
    """Return the error for a file that is another one than was listed; `offset`: so far it was read before."""
    copies = "" if "://" in path else " If each node has a copy of its own, keep its time (`cp -p`, `rsync -t`)."
    return SourceReplacedError(
        f"{path} was replaced since it was listed. Two versions of it would be mixed: start again once nobody writes "
        f"to it, and write new data under new names.{copies}",
        path=path,
        **({} if offset is None else {"offset": offset}),
    )
