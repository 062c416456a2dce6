"""`pecan cache`: a session at a terminal, written down: what is kept on a disk, in memory and of buckets."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import pytest

from pecan_ray import cache_options
from pecan_ray.cache_options import MIB, Cache
from pecan_ray.caching.tiers import TieredStore
from pecan_ray.cli import main
from pecan_ray.storage import BlockCache
from pecan_ray.storage.ranges import FileRange

WRITTEN = Path(__file__).with_name("cache_command.txt")
"""`python -m tests.unit.autocache.test_cache_command` writes it anew."""
OURS, OTHERS = "0123abcd", "another"


class Session:
    """Commands and what they print; the folder is named FOLDER, that of the entries in memory MEMORY."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""

    def run(self, *arguments: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            status = main(["cache", "--path", str(self.folder / "disk"), *arguments])
        shown = f"$ pecan cache {' '.join(arguments)}\n{said.getvalue()}exit status {status}\n\n"
        memory = Cache(self.folder / "disk", memory_bytes=MIB).memory_folder
        self.text += shown.replace(str(memory), "MEMORY").replace(str(self.folder), "FOLDER")
        return said.getvalue()


def spoil(path: Path, place: int) -> None:
    held = bytearray(path.read_bytes())
    held[place] ^= 1
    path.write_bytes(held)


def of_a_node(session: Session) -> None:
    """Look at what is kept on the disk, in memory, and of buckets."""
    session.run("ls")
    cache = Cache(session.folder / "disk", 64 * MIB, memory_bytes=MIB, source_bytes=64 * MIB)
    tiers = TieredStore(cache.folder, max_bytes=cache.max_bytes, memory=cache.memory_folder, memory_bytes=MIB)
    with contextlib.closing(tiers):
        tiers.disk.note(f"name {OURS}", "ours: autocache behind decode")
        tiers.put("one", OURS, [b"1" * 2_000_000], elements=7, seconds=1.5)
        tiers.put("two", OTHERS, [b"2" * 300_000], elements=1, seconds=0.5)
        tiers.get("two")
    data = bytes(2 * MIB + 5)
    with contextlib.closing(BlockCache(cache.source_folder, cache.source_bytes)) as blocks:
        blocks.read(lambda start, stop, _: FileRange(data[start:stop], len(data), "v"), "s3://data/x/y", 0, None, "v")
    for command in ("ls", "du", "verify", "rm", "rm --all x", "rm ano"):
        session.run(*command.split())
    for folder, place in ((cache.folder, 0), (cache.source_folder, MIB + 100)):
        spoil(next((folder / "segments").iterdir()), place)
    for command in ("verify", "rm --all", "du"):
        session.run(*command.split())
    assert cache.memory_folder is not None and not cache.memory_folder.exists()


def transcript() -> str:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        session = Session(Path(folder))
        (session.folder / "shm").mkdir()
        patch.setattr(cache_options, "SHARED_MEMORY", session.folder / "shm")
        of_a_node(session)
        assert "us for an entry" in Session(session.folder).run("bench")
        return session.text


def test_a_session_prints_what_is_written_down() -> None:
    assert transcript() == WRITTEN.read_text()


if __name__ == "__main__":
    WRITTEN.write_text(transcript())
