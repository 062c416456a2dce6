"""Small files in the user's cache folder: kept orders, and reports of jobs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def user_cache_folder(name: str) -> Path:
    """Return a folder of the package in the user's cache folder."""
    # The XDG specification says that a relative path is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "pecan_ray" / name


@contextlib.contextmanager
def written_beside(path: Path, text: str, mode: int = 0o600) -> Iterator[str]:
    """Write a file of another name beside its place, from where it can be renamed or linked; it is gone afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because links and renames do not cross file systems; no listing shows it.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            os.fchmod(handle, mode)
            file.write(text)
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
