"""Files on mounts that fail for a while (NFS, Lustre, FUSE): waited for, and never taken for bad data."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError, StorageOutageError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources import TextLines
from pecan_ray.storage.retry import Backoff, set_patience
from tests.sample_files import files_of_every_kind, sources_of_every_kind
from tests.source_contract import elements_of
from tests.unit.storage.conftest import Place

FAILING = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENOTCONN]
CALLS = ("open", "stat", "fstat", "scandir", "pread", "preadv", "replace", "unlink", "mkdir")


class Mount:
    """A folder for which every so many calls of the operating system fail."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.every = 0
        """0: none fails."""
        self.number = errno.EIO
        self.calls = self.failed = 0
        self._held: set[int] = set()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name: str, plain: Any) -> Any:
        def call(what: Any, *more: Any, **named: Any) -> Any:
            mine = what in self._held if isinstance(what, int) else str(what).startswith(str(self.root))
            if mine and self.every:
                self.calls += 1
                if self.calls % self.every == 0:
                    self.failed += 1
                    raise OSError(self.number, os.strerror(self.number), what)
            found = plain(what, *more, **named)
            if name == "open" and mine:
                self._held.add(found)
            return found

        return call


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    """A mount whose outages cost no time: pauses are drawn as nothing."""
    monkeypatch.setattr(random, "random", lambda: 0.0)
    yield Mount(tmp_path, monkeypatch)
    set_patience(Backoff.patience_s)


@pytest.mark.parametrize("number", FAILING)
def test_every_source_waits_for_its_mount(mount: Mount, number: int) -> None:
    Place(str(mount.root)).put(files_of_every_kind(rows=3000))
    for source in sources_of_every_kind(str(mount.root), split_bytes=4000):
        expected, name = elements_of(source), type(source).__name__
        assert expected, name
        mount.every, mount.number, mount.failed = 11, number, 0  # more calls than one try makes
        found = elements_of(source)
        assert mount.failed > 0, name
        assert repr(found) == repr(expected), name
        mount.every = 0


def test_an_outage_beyond_the_patience_ends_the_job_and_is_no_bad_data(mount: Mount) -> None:
    (mount.root / "a.txt").write_text("1\n" * 100)
    source = TextLines(str(mount.root / "a.txt"), split_bytes=20)
    config = pecan.Config(progress=False, reorder="off", error_budget=1.0, storage_patience_s=0.0)
    batches = iter(pecan.PecanPipeline(source, config=config).batch(10).iter_batches(debug=True, on_error="skip"))
    next(batches)
    mount.every = 1
    with pytest.raises(StorageOutageError, match=r"a\.txt could not be read: the storage failed .*\[Errno 5\]"):
        list(batches)
    with pytest.raises(StorageOutageError):
        list(source.splits())


def test_what_does_not_pass_is_told_at_once_and_files_are_written_behind_an_outage(mount: Mount) -> None:
    (mount.root / "a.txt").write_text("1\n")
    lasting = {errno.ENOENT: SourceNotFoundError, errno.EACCES: SourcePermissionError, errno.ENAMETOOLONG: SourceError}
    mount.every = 1
    for mount.number, error in lasting.items():
        mount.failed = 0
        for read in (lambda path: storage.read_range(path, 0), storage.open_stream):
            with pytest.raises(error):
                read(str(mount.root / "a.txt"))
        assert mount.failed == 2
    mount.every, mount.calls, mount.number = 5, 0, errno.EIO
    path = str(mount.root / "folder" / "a.bin")
    for content in (b"one", b"two"):
        storage.write_file(path, content)
    mount.every = 0
    assert [name.name for name in (mount.root / "folder").iterdir()] == ["a.bin"]
    assert storage.read_all(path) == b"two"
    storage.delete_file(path)
    storage.delete_file(path)


class Flaky:
    """A source of the user's own that opens its file by itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened = 0

    def splits(self) -> Iterator[Split]:
        yield Split(index=0, path=str(self.path))

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        self.opened += 1
        for number in range(start, 10):
            if number == 5 and self.opened < 4:
                raise OSError(errno.ESTALE, "Stale file handle", split.path)
            yield {"n": number}

    def num_elements(self) -> None:
        return None

    def identity(self) -> str:
        return "flaky"


def test_a_source_of_the_users_own_is_read_on_behind_an_outage(mount: Mount) -> None:
    source = Flaky(mount.root / "a")
    batches = pecan.PecanPipeline(source).batch(5).iter_batches(debug=True, on_error="skip")
    assert [n for batch in batches for n in batch["n"].tolist()] == list(range(10))
    assert source.opened == 4


def load(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return int(os.pread(fd, 9, 0))
    finally:
        os.close(fd)


def test_a_function_that_reads_files_is_called_again_unless_it_may_have_changed_its_element(mount: Mount) -> None:
    for n in range(20):
        (mount.root / f"{n}.txt").write_text(str(n))
    items = pecan.sources.Items([{"path": str(mount.root / f"{n}.txt")} for n in range(20)])
    numbered = pecan.PecanPipeline(items, config=pecan.Config(reorder="off", error_budget=1.0))
    pure = numbered.map(load, on="path").batch(10).iter_batches(debug=True, on_error="skip")
    mount.every = 7
    assert [n for batch in pure for n in batch["path"].tolist()] == list(range(20))
    assert mount.failed > 3
    whole = numbered.map(lambda element: {"n": load(element["path"])}).batch(10)
    with pytest.raises(OSError, match="Input/output error"):
        list(whole.iter_batches(debug=True, on_error="skip"))
