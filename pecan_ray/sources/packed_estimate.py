"""About how many elements compressed files hold, which are one split each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from pecan_ray.errors import PecanError
from pecan_ray.plan.splits import Split
from pecan_ray.sources.compressed import opened, unpacked_ratio
from pecan_ray.storage import FileInfo, is_remote

UNPACKED_BYTES = 2 << 20
"""Decompressed to find out how many bytes one of a file becomes: files are read, and decoded, 64 KB and more at a time.
This takes 10 ms, and 100 ms for bzip2."""


class PackedEstimate:
    """Estimates by the beginning of the first file, as the splits of others beside it are by their own."""

    def __init__(self, element_bytes: Callable[[BinaryIO], float]) -> None:
        """`element_bytes`: returns how many bytes an element has at the beginning of a file, decompressed."""
        self._element_bytes = element_bytes
        self._per_byte: float | None = None
        """Elements for each byte of a file, as it is compressed; None: no file of this machine has been looked at."""

    def split(self, index: int, file: FileInfo) -> Split:
        """Return the split of a file."""
        about = None
        if not is_remote(file.path):
            self._per_byte = self._elements_per_byte(file) if self._per_byte is None else self._per_byte
            about = max(1, round(file.size * self._per_byte))
        return Split(index, file.path, version=file.version, about=about, whole=True)

    def _elements_per_byte(self, file: FileInfo) -> float:
        # Whoever reads it tells why a file cannot be opened.
        with suppress(OSError, PecanError), opened(Split(0, file.path, version=file.version)) as stream:
            element_bytes = self._element_bytes(stream)
            stream.read(UNPACKED_BYTES)
            return unpacked_ratio(stream) / max(1.0, element_bytes)
        return 0.0
