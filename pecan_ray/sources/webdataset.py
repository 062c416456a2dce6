"""Samples in tar archives, as the WebDataset convention names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Literal

from pecan_ray.errors import CorruptSourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.compressed import open_gzip
from pecan_ray.sources.files import Paths, identity_of, is_gzip, open_plain, patterns_of
from pecan_ray.sources.tar import TarMember, members
from pecan_ray.storage import list_files


@dataclass(frozen=True)
class WebDataset:
    """The samples of tar archives (``.tar``, ``.tar.gz``): one archive is one split.

    Neighbouring members with the same path up to the first dot of the file name are one sample: what
    follows the dot, in lower case, is the column (bytes, undecoded), and ``__key__`` the common part.
    Members without an extension, hidden ones and names like ``__this__`` are not samples.  Raises
    CorruptSourceError for archives that are cut off, and for a column that comes twice in one sample.
    """

    paths: Paths = field(hash=False)
    patterns: tuple[str, ...] = field(init=False, repr=False)

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", patterns_of(self.paths))

    def splits(self) -> Iterator[Split]:
        """Yield one split for each archive."""
        for index, file in enumerate(list_files(self.patterns)):
            stop = None if is_gzip(file.path) else file.size
            yield Split(index=index, path=file.path, stop=stop, version=file.version)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield samples from number `start` on; the data of those before is skipped, on disks by seeking."""
        with open_gzip(split.path, split.version) if is_gzip(split.path) else open_plain(split) as stream:
            samples = groupby(_named(members(split.path, stream, split.stop)), key=lambda named: named[0])
            for number, (key, parts) in enumerate(samples):
                if number >= start:
                    yield _sample(split, number, key, parts)

    def num_elements(self) -> None:
        """Return None: samples are not counted without reading."""
        return

    def identity(self) -> str:
        """Return a digest of every archive's path, size and version."""
        return identity_of("WebDataset", None, list_files(self.patterns))


def _named(found: Iterator[TarMember]) -> Iterator[tuple[str, str, TarMember]]:
    """Yield (key, column, member) of the members that belong to samples."""
    for member in found:
        folder, name = os.path.split(member.name)
        stem, dot, extension = name.partition(".")
        if stem and dot and extension and not (name.startswith("__") and name.endswith("__")):
            yield os.path.join(folder, stem), extension.lower(), member


def _sample(split: Split, number: int, key: str, parts: Iterator[tuple[str, str, TarMember]]) -> Element:
    element: Element = {"__key__": key}
    for _, column, member in parts:
        if column in element:
            raise CorruptSourceError(
                f"Sample {key!r}, {split.where(number)}, has {column!r} twice (the second at "
                f"byte {member.offset}). Give neighbouring samples different keys.",
                path=split.path,
                offset=member.offset,
                element=number,
            )
        element[column] = member.read()
    return element
