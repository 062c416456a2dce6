"""Files of tokens as Megatron's tools write them: ``.bin``, the tokens, and ``.idx``, where documents begin."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import CorruptSourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources.files import check_positive, identity_of, local_folder
from pecan_ray.sources.memory import row_ranges
from pecan_ray.storage import file_info

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the tokens' type, number of sequences, number of documents and one more."""
# 6 and 7 are floats, which no tokens are.
TYPES: dict[int, str] = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of whole numbers by their codes."""
SEQUENCE_BYTES, DOCUMENT_BYTES = 4 + 8, 8
"""For each sequence its length and its place; for each document its first sequence."""


@dataclass(frozen=True)
class TokenFiles:
    """The documents of a pair of files, or windows of `length` tokens and one more over all of them: column tokens.

    Window k begins at token ``k * length`` and goes on over the ends of documents: its first `length` tokens are the
    input of a model, and its last ones the targets.  What does not fill the last one is left out.  The files are mapped
    into memory, so they must lie on a disk that all workers see.
    """

    path: str | os.PathLike[str]
    """Of both files, without their extensions, or of one of them."""
    length: int | None = None
    """Tokens in a window; None: documents."""
    split_rows: int | None = field(default=None, kw_only=True)
    """Documents or windows in a split; None: so that there are at least 16 splits."""
    counts_splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = {"length": self.length, "split_rows": self.split_rows}
        check_positive(**{name: value for name, value in given.items() if value is not None})
        prefix = local_folder("TokenFiles", self.path)
        object.__setattr__(self, "path", prefix.removesuffix(".bin").removesuffix(".idx"))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to workers: not what was opened here."""
        return {name: value for name, value in self.__dict__.items() if name != "_held"}

    def splits(self) -> Iterator[Split]:
        """Yield ranges of documents or windows."""
        for split in row_ranges(self.num_elements(), self.split_rows):
            yield Split(split.index, f"{self.path}.bin", split.start, split.stop, split.elements)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield documents or windows from number `start` on."""
        return self.rows_at(range(split.start + start, self.num_elements() if split.stop is None else split.stop))

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the documents or windows with some numbers."""
        tokens, bounds = self._held
        for index in indices:
            if self.length is None:
                first, stop = bounds[index], bounds[index + 1]
            else:
                first, stop = int(index) * self.length, (int(index) + 1) * self.length + 1
            # A copy: functions may write into it, and the file is mapped for reading.
            yield {"tokens": np.array(tokens[first:stop])}

    def num_elements(self) -> int:
        """Return the number of documents or windows."""
        _, bounds = self._held
        return len(bounds) - 1 if self.length is None else max(0, (int(bounds[-1]) - 1) // self.length)

    def identity(self) -> str:
        """Return a digest of both files' paths, sizes and versions, and of the length."""
        files = (file_info(f"{self.path}.{ending}") for ending in ("bin", "idx"))
        return identity_of("TokenFiles", (self.length, self.split_rows), files)

    @cached_property
    def _held(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """All tokens, and where documents begin, and the last one ends."""
        index = self._mapped("idx", np.dtype("u1"))
        code, sequences, documents = self._header(index)
        at = HEADER.size
        sizes = np.frombuffer(index, "<i4", sequences, at).astype(np.int64)
        places = np.frombuffer(index, "<i8", sequences, at + 4 * sequences)
        firsts = np.frombuffer(index, "<i8", documents, at + SEQUENCE_BYTES * sequences)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        tokens = self._mapped("bin", np.dtype(TYPES[code]))
        # A wrong pair of files would give tokens that look like any others.
        if (sizes < 0).any() or not np.array_equal(places, ends[:-1] * tokens.itemsize) or len(tokens) != ends[-1]:
            self._reject(f"its sequences are not the {len(tokens)} tokens of {self.path}.bin, one behind the other")
        if not documents or firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
            self._reject(f"its documents are not made of its {sequences} sequences")
        return tokens, ends[firsts]

    def _header(self, index: npt.NDArray[Any]) -> tuple[int, int, int]:
        """Return the code of the tokens' type, and how many sequences and entries of documents an index has."""
        if len(index) < HEADER.size:
            self._reject("it has no header")
        magic, version, code, sequences, documents = HEADER.unpack(index[: HEADER.size].tobytes())
        if magic != MAGIC or version != 1 or code not in TYPES:
            self._reject(f"it begins with {bytes(magic)!r}, version {version}, tokens of type {code}")
        if len(index) != HEADER.size + sequences * SEQUENCE_BYTES + documents * DOCUMENT_BYTES:
            self._reject(f"it has {len(index)} bytes, which are not those of {sequences} sequences")
        return code, sequences, documents

    def _mapped(self, ending: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        path = f"{self.path}.{ending}"
        size = file_info(path).size
        if size % dtype.itemsize:
            self._reject(f"its tokens have {dtype.itemsize} bytes each, and {path} has {size}")
        # An empty file cannot be mapped.
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)

    def _reject(self, why: str) -> NoReturn:
        path = f"{self.path}.idx"
        raise CorruptSourceError(f"{path} is no index of tokens that Megatron's tools write: {why}.", path=path)
