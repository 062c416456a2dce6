"""Samples in tar archives, as the WebDataset convention names them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import BinaryIO, ClassVar, Literal, NoReturn

from pecan_ray.errors import CorruptSourceError, PecanError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.compressed import compression_of, opened
from pecan_ray.sources.file_sources import NamedFiles
from pecan_ray.sources.files import MAX_RECORD_BYTES, are_local, check_positive, data_files, identity_of
from pecan_ray.sources.packed_estimate import PackedEstimate
from pecan_ray.sources.tar import BLOCK, TarMember, members
from pecan_ray.storage import FileInfo, is_remote, open_random

MEMBERS_LOOKED_AT = 64
"""Members of the first archive that tell how large samples are: 20 to 30 samples of two or three members."""
MOST_PLACES = 16
"""Archives of which a process knows how far it has come."""


@dataclass(frozen=True)
class SampleStart:
    """The beginning of a sample in an archive."""

    number: int = 0
    offset: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    """By the hashes of the keys of samples before it, those of their columns."""


class ArchivePlaces:
    """How far this process has come in archives: who reads one in parts passes over each member once, not each time."""

    def __init__(self) -> None:
        self._by_file: OrderedDict[tuple[str, str], SampleStart] = OrderedDict()
        self._lock = threading.Lock()
        """Guards what is known: threads of a worker read archives side by side."""

    def take(self, split: Split, start: int) -> SampleStart:
        """Return a sample that is the wanted one, or lies before it: from then on it is the caller's alone."""
        # Without a version nobody knows whether it is the same archive, and one without a size is decompressed.
        if not split.version or split.stop is None:
            return SampleStart()
        with self._lock:
            place = self._by_file.pop((split.path, split.version), SampleStart())
        return place if place.number <= start else SampleStart()

    def note(self, split: Split, place: SampleStart) -> None:
        """Note where a reader was stopped."""
        with self._lock:
            self._by_file[split.path, split.version] = place
            if len(self._by_file) > MOST_PLACES:
                self._by_file.popitem(last=False)


_places = ArchivePlaces()


@dataclass(frozen=True)
class WebDataset(NamedFiles):
    """The samples of tar archives (``.tar``, also compressed as ``.gz``, ``.bz2``, ``.xz``, ``.zst``), each a split.

    Neighbouring members with the same path up to the first dot of the file name are one sample: what
    follows the dot, in lower case, is the column (bytes, undecoded), and ``__key__`` the common part; of ``a.`` the
    column is called ``""``.
    Members without an extension, hidden ones and names like ``__this__`` are not samples.  Archives
    one behind the other in a file are read as one.  Raises CorruptSourceError for archives that are cut off or damaged,
    for a column that comes twice in one sample or is a link or a device, for a sample of more than
    `max_record_bytes`, and for an archive of which no member has an extension.
    """

    max_record_bytes: int = field(default=MAX_RECORD_BYTES, kw_only=True)

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(max_record_bytes=self.max_record_bytes)

    def splits(self) -> Iterator[Split]:
        """Yield one split for each archive."""
        sample_bytes, packed = 0.0, PackedEstimate(lambda stream: self._mean_sample_bytes("", stream, None))
        for index, file in enumerate(data_files(self.patterns)):
            if compression_of(file.path):
                # How long it is when it is unpacked is not known before its end.
                yield packed.split(index, file)
                continue
            local = not is_remote(file.path)
            sample_bytes = sample_bytes or (self._sample_bytes(file) if local else 0.0)
            about = max(1, round(file.size / max(1.0, sample_bytes))) if local else None
            yield Split(index=index, path=file.path, stop=file.size, version=file.version, about=about)

    @property
    def estimates_splits(self) -> bool:
        """Return whether files are local, so that they can be looked at."""
        return are_local(self.patterns)

    def _sample_bytes(self, file: FileInfo) -> float:
        """Return how many bytes a sample has on average at the beginning of an archive; 0: nothing is known."""
        # Whoever reads it tells why it cannot be opened.
        with suppress(OSError, PecanError), open_random(file.path, version=file.version, buffering=BLOCK) as stream:
            return self._mean_sample_bytes(file.path, stream, file.size)
        return 0.0

    def _mean_sample_bytes(self, path: str, stream: BinaryIO, size: int | None) -> float:
        found = members(path, stream, size, self.max_record_bytes)
        named = list(islice(_named(found, []), MEMBERS_LOOKED_AT))
        samples = sum(1 for _ in groupby(named, key=lambda one: one[0]))
        return (named[-1][2].offset + named[-1][2].size) / samples if named else 0.0

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield samples from number `start` on; the data of those before is skipped, on disks by seeking."""
        place = _places.take(split, start)
        number, seen, unnamed = place.number - 1, place.seen, list[str]()
        with opened(split, place.offset) as stream:
            found = members(split.path, stream, split.stop, self.max_record_bytes, place.offset)
            samples = groupby(_named(found, unnamed), key=lambda named: named[0])
            try:
                for number, (key, parts) in enumerate(samples, place.number):
                    first = next(parts)
                    place = SampleStart(number, first[2].begin, seen)
                    sample = chain([first], parts)
                    if number >= start:
                        element = _sample(split, number, key, sample, self.max_record_bytes)
                        _check_whole(split, number, key, frozenset(element), seen)
                        yield element
                    else:
                        # Also of what is skipped: a resumed job refuses what the first one would have refused.
                        columns = [column for _, column, _ in sample]
                        _check_whole(split, number, key, frozenset(("__key__", *columns)), seen)
            except GeneratorExit:
                _places.note(split, place)
                raise
            if number < 0 and unnamed:
                raise CorruptSourceError(
                    f"Archive {split.path} has files and no sample, since their names have no extension "
                    f"({unnamed[0]!r} is the first). Pack them as key.column: the extension names the column.",
                    path=split.path,
                )

    def identity(self) -> str:
        """Return a digest of every archive's path, size and version."""
        return identity_of("WebDataset", None, data_files(self.patterns))


def _named(found: Iterator[TarMember], unnamed: list[str]) -> Iterator[tuple[str, str, TarMember]]:
    """Yield (key, column, member) of the members that belong to samples; note the first that has no extension."""
    for member in found:
        # Dots in names of folders belong to the key.
        folder, name = os.path.split(member.name)
        stem, dot, extension = name.partition(".")
        if stem and dot and not (name.startswith("__") and name.endswith("__")):
            yield os.path.join(folder, stem), extension.lower(), member
        elif stem and not dot and not name.startswith("_") and not unnamed:
            # Only the first: an archive may hold millions.
            unnamed.append(member.name)


def _check_whole(split: Split, number: int, key: str, columns: frozenset[str], seen: dict[int, int]) -> None:
    """Raise CorruptSourceError for a key that has come with other columns before: its sample lies in two places.

    `seen`: by the hashes of keys those of their columns. Samples of archives one behind the other may have one key.
    """
    # Hashes, because the keys of all samples of an archive would take much memory.
    before = seen.setdefault(hash(key), hash(columns))
    if before != hash(columns):
        raise CorruptSourceError(
            f"Sample {key!r}, {split.where(number)}, has come before with other columns: members of a sample are not "
            "neighbours in the archive, and each was a sample of its own. Pack them with `tar --sort=name`.",
            path=split.path,
            element=number,
        )


def _sample(
    split: Split, number: int, key: str, parts: Iterator[tuple[str, str, TarMember]], max_record_bytes: int
) -> Element:
    element: Element = {"__key__": key}
    size = 0
    for _, column, member in parts:
        if column in element:
            problem = f"has {column!r} twice (the second at byte {member.offset}). Give neighbouring samples other keys"
            _reject(split, number, key, member, problem)
        if member.irregular:
            cure = "Pack it with `tar -h --hard-dereference`"
            problem = f"has a column {column!r} that is {member.irregular}, not a file. {cure}"
            _reject(split, number, key, member, problem)
        size += member.size
        if size > max_record_bytes:
            problem = f"has {size} bytes or more, more than max_record_bytes={max_record_bytes}"
            _reject(split, number, key, member, problem)
        element[column] = member.read()
    return element


def _reject(split: Split, number: int, key: str, member: TarMember, problem: str) -> NoReturn:
    raise CorruptSourceError(
        f"Sample {key!r}, {split.where(number)}, {problem}.", path=split.path, offset=member.offset, element=number
    )
