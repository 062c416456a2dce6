"""What all file sources share: which files they name, how those are cut, and when they have changed.

Decisions: docs/decisions/sources.md.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Protocol, TypeAlias, runtime_checkable

from pecan_ray.errors import PecanError, PlanError
from pecan_ray.plan.splits import SequentialSource, Source, Split
from pecan_ray.sources.compressed import compression_of
from pecan_ray.storage import (
    HEAD_BYTES,
    FileInfo,
    Head,
    holds,
    is_remote,
    is_shared,
    list_files,
    look_elsewhere,
    prefetch,
)
from pecan_ray.storage.ranges import RangeRequest

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
"""Files, folders and globs: local, ``s3://`` or ``gs://``."""

ABOUT_DATA = re.compile(
    r"(readme|license|licence|copying|notice)(\.(md|txt|rst|html|pdf))?"
    r"|.*\.(md|crc|md5|sha1|sha256|sha512)|(md5|sha1|sha256|sha512)sums?(\.txt)?"
    r"|citation\.cff|thumbs\.db|desktop\.ini"
    r"|_success|(_common)?_metadata|_(committed|started)_.*",
    re.IGNORECASE,
)
"""Names of files that lie in folders of data and hold none."""
# Splits whose files' beginnings are fetched ahead; their bytes are bounded by `storage.access.AHEAD_BYTES`.
SPLITS_AHEAD = 32
SPLIT_BYTES = 64 << 20
"""Default size that byte ranges aim at: eight ranged reads of a bucket, and half a second at 1 Gbit/s."""
LOCAL_SPLIT_BYTES = 4 << 20
"""The most that a byte range of a file of this machine has: who begins within a split skips half of it on average,
which takes 5 ms where lines have 100 bytes."""
MAX_RECORD_BYTES = 256 << 20
"""Default bound on one line, record or sample: a longer one is taken for a record without an end."""


@runtime_checkable
class SplitRangeProvider(Protocol):
    """A source that tells which bytes a split needs, where the split does not."""

    def needed_ranges(self, splits: Sequence[Split]) -> list[list[RangeRequest]]:
        """Return what reading each of some splits reads of buckets, as far as it is known: nothing is fetched."""
        ...


def patterns_of(paths: Paths) -> tuple[str, ...]:
    """Return the paths as absolute patterns: workers have other working directories than the trainer.

    Raises PlanError if there are none.
    """
    given: list[Any] = [paths]
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike)):
        given = list(paths)
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise PlanError(f"A path must be a str or a path-like object, but got {path!r}.")
    patterns = tuple(_absolute(os.fsdecode(path)) for path in given)
    if not patterns or "" in patterns:
        raise PlanError("A file source needs at least one path, and none of them empty.")
    irregular = next((path for path in patterns if "\0" in path), None)
    if irregular is not None:
        raise PlanError(f"The path {irregular!r} holds a character that no path can hold.")
    return patterns


def single_path(kind: str, path: Any) -> str:
    """Return the one path of a source as absolute, without a slash at its end; raises PlanError for several."""
    if not isinstance(path, (str, os.PathLike)):
        raise PlanError(f"{kind} reads one folder, but got {path!r}: name one path, and make a source for each folder.")
    return patterns_of(path)[0].rstrip("/") or "/"


def local_folder(kind: str, path: Any) -> str:
    """Return the one folder of a source whose library reads disks alone; raises PlanError for one elsewhere."""
    folder = single_path(kind, path)
    if is_remote(folder):
        raise PlanError(
            f"{kind} reads folders on disks, because its library does, but got {folder}: copy the folder to a disk "
            "that all workers see, or mount the bucket (gcsfuse, mountpoint-s3), and name that path."
        )
    return folder


def _absolute(path: str) -> str:
    if path.startswith("file://"):
        path = path[len("file://") :]
    if "://" in path or not path:
        return path
    return os.path.abspath(os.path.expanduser(path))


def check_positive(**values: int) -> None:
    """Raise PlanError for an option that is not a positive integer."""
    for name, value in values.items():
        if not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} must be a positive integer, but got {value!r}.")


def identity_of(kind: str, options: object, files: Iterable[FileInfo]) -> str:
    """Return a digest of the options and of every file's path, size and version."""
    digest = hashlib.sha256(repr((kind, options)).encode())
    for file in files:
        digest.update(repr((file.path, file.size, file.version)).encode())
    return f"{kind}:{digest.hexdigest()}"


def data_files(patterns: tuple[str, ...]) -> Iterator[FileInfo]:
    """Yield the files of patterns as `list_files` does, without those of folders that tell people about the data."""
    return list_files(patterns, without=_is_about_data)


def _is_about_data(path: str) -> bool:
    return ABOUT_DATA.fullmatch(path.rpartition("/")[2]) is not None


def split_bytes_of(path: str, split_bytes: int) -> int:
    """Return how many bytes of a file a split holds at most."""
    return split_bytes if is_remote(path) else min(split_bytes, LOCAL_SPLIT_BYTES)


def are_local(patterns: tuple[str, ...], *, plain: bool = False) -> bool:
    """Tell whether files lie on this machine; `plain`: and none of them is compressed.

    Then passing over what lies before an element takes little time, but in compressed ones.
    """
    if any(map(is_remote, patterns)):
        return False
    # Where files are seen by workers alone nothing is known of them here.
    with suppress(OSError, PecanError):
        files = data_files(patterns)
        if plain:
            return all(compression_of(file.path) is None for file in files)
        next(files, None)
        return True
    return False


def skip_bytes(stream: BinaryIO, count: int) -> int:
    """Move a stream on, by seeking where it can, and return by how much (a seek can lead behind the end)."""
    if stream.seekable():
        stream.seek(count, os.SEEK_CUR)
        return count
    left = count
    while left > 0:
        got = len(stream.read(min(left, 1 << 20)))
        if got == 0:
            break
        left -= got
    return count - left


def prefetching_files(source: Source, splits: Iterable[Split]) -> Iterator[Split]:
    """Yield splits that one reader goes through in this order; the files of the next ones are fetched meanwhile."""
    rest = iter(splits)
    if not isinstance(source, SequentialSource):
        yield from rest
        return
    coming: deque[Split] = deque()
    for split in rest:
        if "://" not in split.path:
            yield split
            continue
        prefetch_files(source, (split,))
        coming.append(split)
        if len(coming) > SPLITS_AHEAD:
            yield coming.popleft()
    yield from coming


def on_node(source: Source, splits: Iterable[Split]) -> tuple[int, ...] | None:
    """Return the indices of splits of which all bytes are on this node's disk; None where that need not be known.

    It need be where other jobs on the node read the same data, and take first what is here.  Known are files that are
    elements, byte ranges of files that are read from the front, and what a source tells of its splits.
    """
    # docs/decisions/shared-cache-and-pipe.md#54-cached-first-by-offers.
    if not is_shared():
        return None
    offered = list(splits)
    told = (
        source.needed_ranges(offered)
        if isinstance(source, SplitRangeProvider)
        else [_ranges(source, one) for one in offered]
    )
    known = [(split.index, ranges) for split, ranges in zip(offered, told, strict=True) if ranges]
    look_elsewhere(one for _, ranges in known for one in ranges)
    return tuple(index for index, ranges in known if holds(ranges))


def _ranges(source: Source, split: Split) -> list[RangeRequest]:
    """Return what reading a split reads; nothing where that is not known."""
    if split.files:
        versions = split.versions or ("",) * len(split.files)
        return [RangeRequest(path, 0, None, version) for path, version in zip(split.files, versions, strict=True)]
    if isinstance(source, SequentialSource):
        return [RangeRequest(split.path, split.start, split.stop, split.version)]
    return []


def prefetch_files(source: Source, splits: Iterable[Split]) -> None:
    """Begin to fetch the beginnings of files that splits begin with, where the source reads them from the front."""
    if isinstance(source, SequentialSource):
        prefetch(
            Head(split.path, split.version, HEAD_BYTES if split.stop is None else split.stop)
            for split in splits
            if split.start == 0 and not split.files
        )
