"""Files of a disk and of mounts: links, files that change or say what is not so, writers that are killed, outages."""

from __future__ import annotations

import errno
import io
import os
import random
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.errors import (
    SourceError,
    SourceNotFoundError,
    SourcePermissionError,
    SourceReplacedError,
)
from pecan_ray.plan.splits import Element, Split
from pecan_ray.storage import local
from pecan_ray.storage.retry import Backoff, set_patience
from tests.sample_files import files_of_every_kind, sources_of_every_kind
from tests.source_contract import elements_of
from tests.unit.storage.conftest import Place


def table(rows: int) -> bytes:
    values = np.random.default_rng(0).integers(0, 1 << 60, (rows, 1280)).tolist()
    file = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array(values)}), file, row_group_size=50)
    return file.getvalue()


LONG = b"x" * 10_000
CHANGING: dict[str, Callable[[int], bytes]] = {
    "TextLines": lambda rows: (LONG + b"\n") * rows,
    "Parquet": table,
}
"""One that is read as a stream, and one that is read at random."""


@pytest.mark.skipif(not os.path.exists("/sys/kernel/uevent_seqnum"), reason="no /sys")
def test_a_file_that_says_to_have_another_size_than_it_has_is_refused() -> None:
    for path in ("/proc/self/status", "/proc/cpuinfo"):
        assert os.stat(path).st_size == 0
        for read in (storage.file_info, storage.read_all, lambda path: list(pecan.sources.TextLines(path).splits())):
            with pytest.raises(SourceError, match=f"{path} says to have 0 bytes, and has more"):
                read(path)
    path = "/sys/kernel/uevent_seqnum"
    version = storage.file_info(path).version
    with storage.open_stream(path, version=version) as stream, pytest.raises(SourceError, match=f"{path} ends at byte"):
        stream.read()
    for longer in (storage.read_all, lambda path: list(pecan.sources.TextLines(path).read(Split(0, path)))):
        with pytest.raises(SourceError, match=r"ends at byte \d, and says to have 4096"):
            longer(path)


@pytest.mark.parametrize("change", ["grows", "shrinks", "is emptied", "is written over"])
@pytest.mark.parametrize("kind", CHANGING)
def test_a_file_that_changes_while_it_is_read_is_refused_or_read_as_it_was(
    tmp_path: Path, kind: str, change: str
) -> None:
    path = tmp_path / f"data.{kind.lower()}"
    path.write_bytes(CHANGING[kind](400))
    source = getattr(pecan.sources, kind)(str(path))
    splits = list(source.splits())
    whole = sum(1 for split in splits for _ in source.read(split))
    assert whole == 400 and path.stat().st_size > 3 << 20
    elements = (element for split in splits for element in source.read(split))
    next(elements)
    changed = path.read_bytes()
    size = {"grows": len(changed) + 9, "shrinks": len(changed) // 2, "is emptied": 0}.get(change, len(changed))
    path.write_bytes((changed + changed[-9:])[:size])
    read: int | str
    try:
        read = 1 + sum(1 for _ in elements)
    except SourceReplacedError as error:
        read = str(error)
    assert read == whole or str(read).startswith(f"{path} was replaced since it was listed")


def _killed_in_the_middle(path: str) -> None:
    local.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]  # just before the end
    storage.write_file(path, b"second")


def test_a_writer_that_is_killed_or_may_not_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    storage.write_file(path, b"first")
    process = get_context("fork").Process(target=_killed_in_the_middle, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for refused in (f"{path}/below", "/proc/pecan/file"):
        with pytest.raises(SourceError, match=r"Cannot write|does not exist|proc"):
            storage.write_file(refused, b"x")
    assert storage.read_all(path) == b"first"
    assert [(file.path, file.size) for file in storage.list_folder(str(tmp_path))] == [(path, 5)]


# --- mounts that fail for a while (NFS, Lustre, FUSE): waited for, and never taken for bad data ----------------------

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


class Flaky(pecan.sources.Items):
    """A source that opens its file by itself."""

    opened: ClassVar[int] = 0

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        Flaky.opened += 1
        for number, element in enumerate(super().read(split, start), start):
            if number == 5 and self.opened < 4:
                raise OSError(errno.ESTALE, "Stale file handle", "a")
            yield element


def test_a_source_of_the_users_own_is_read_on_behind_an_outage(mount: Mount) -> None:
    source = Flaky(range(10), split_rows=10)
    batches = pecan.PecanPipeline(source).batch(5).iter_batches(debug=True, on_error="skip")
    assert [n for batch in batches for n in batch["item"].tolist()] == list(range(10))
    assert Flaky.opened == 4


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
