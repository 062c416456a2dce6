"""Reading gzip streams with errors that say where they break."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from pecan_ray.errors import CorruptSourceError
from pecan_ray.storage import open_stream

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class _Checked(io.RawIOBase):
    """Decompresses, and turns what zlib and gzip raise into errors that name the file."""

    def __init__(self, path: str, version: str) -> None:
        super().__init__()
        self._path, self._offset = path, 0
        self._file = open_stream(path, version=version)
        self._plain = gzip.GzipFile(fileobj=self._file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            count = self._plain.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise CorruptSourceError(
                f"{self._path} is broken or cut off after {self._offset} decompressed bytes: {error}. "
                "Check it with `gzip -t` and copy it again.",
                path=self._path,
                offset=self._offset,
            ) from error
        self._offset += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._plain.close()
            self._file.close()
        super().close()


def open_gzip(path: str, version: str = "") -> BinaryIO:
    """Open a gzip file as its decompressed bytes; reading raises CorruptSourceError where it is broken."""
    return cast(BinaryIO, io.BufferedReader(_Checked(path, version), 1 << 20))
