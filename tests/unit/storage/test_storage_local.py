"""Files of a disk: links, permissions, files that change or say what is not so, writers that are killed."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.errors import SourceError, SourcePermissionError, SourceReplacedError
from pecan_ray.plan.splits import Split
from pecan_ray.storage import local
from tests.sample_files import framed, tar_of


def table(rows: int) -> bytes:
    values = np.random.default_rng(0).integers(0, 1 << 60, (rows, 1280)).tolist()
    file = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array(values)}), file, row_group_size=50)
    return file.getvalue()


LONG = b"x" * 10_000
CHANGING: dict[str, Callable[[int], bytes]] = {
    "TextLines": lambda rows: (LONG + b"\n") * rows,
    "JsonLines": lambda rows: (b'{"b": "' + LONG + b'"}\n') * rows,
    "Csv": lambda rows: b"a,b\n" + (b"1," + LONG + b"\n") * rows,
    "TFRecords": lambda rows: framed(LONG) * rows,
    "WebDataset": lambda rows: tar_of({f"{row:06}.txt": LONG for row in range(rows)}),
    "Parquet": table,
}


def test_folders_that_link_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("b/1.txt", "b/2.bin", "b/c/3.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "b" / "c" / "up").symlink_to(tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "b" / "c")
    assert len(list(storage.list_files(f"{tmp_path}/b"))) == 3
    assert [file.path for file in storage.list_files(f"{tmp_path}/link/*.txt")] == [f"{tmp_path}/link/3.txt"]
    if os.geteuid():  # root may read everything
        (tmp_path / "a.txt").touch(mode=0)
        with pytest.raises(SourcePermissionError, match="Not allowed to read"):
            storage.read_all(f"{tmp_path}/a.txt")


def test_a_file_that_is_written_to_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1" * (3 << 20))
    info = storage.file_info(str(path))
    with storage.open_stream(str(path), version=info.version) as stream:
        assert stream.read(10) == b"1" * 10
        path.write_bytes(b"2" * (4 << 20))
        with pytest.raises(SourceReplacedError, match=f"{path} was replaced since it was listed"):
            stream.read()
    for read in (storage.open_stream, storage.open_random, storage.read_all):
        with pytest.raises(SourceReplacedError, match=f"{path} was replaced since it was listed"):
            read(str(path), version=info.version)
    assert storage.read_all(str(path)) == b"2" * (4 << 20)


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
