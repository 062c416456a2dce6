"""Digests of datasets: made, written, read, held against what is there, and damaged in every way."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pecan_ray import storage
from pecan_ray.cli import main
from pecan_ray.errors import CorruptSourceError, SourceNotFoundError
from pecan_ray.options import MIB
from pecan_ray.storage.digest import BLOCK_HASH_BYTES, block_hash
from tests.object_stores import Bucket

OBJECTS = {"a": b"", "b/one": os.urandom(10), "b/two": os.urandom(2 * MIB), "c ü": os.urandom(MIB + 1)}


on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)


@pytest.fixture
def data(bucket: Bucket) -> str:
    """A prefix with some objects."""
    bucket.put({f"set/{name}": body for name, body in OBJECTS.items()})
    return f"{bucket.url}/set"


@on_s3
def test_a_digest_tells_the_bytes_of_every_object(data: str, tmp_path: Path) -> None:
    for where in (f"{data}-digest", str(tmp_path / "digest")):
        storage.write_digest(where, storage.make_digest(data))
        found = dict(storage.read_digest(where))
        assert list(found) == sorted(f"{data}/{name}" for name in OBJECTS)
        for name, body in OBJECTS.items():
            one = found[f"{data}/{name}"]
            assert one.size == len(body) and one.version == storage.file_info(one.path).version
            assert one.blake2b == hashlib.blake2b(body, digest_size=32).hexdigest()
            blocks = [block_hash(body[at : at + MIB]) for at in range(0, len(body), MIB)]
            assert one.block_hashes == b"".join(blocks)
            assert [one.block(number) for number in range(len(blocks))] == blocks
            assert all(len(block) == BLOCK_HASH_BYTES for block in blocks)


@on_s3
def test_the_command_makes_one_and_finds_what_has_changed(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "digest")
    assert main(["cache", "digest", data, "--output", path]) == 0
    assert f"4 objects with 3.1 MB: {path}" in capsys.readouterr().out
    storage.write_file(f"{data}/b/two", OBJECTS["b/two"])  # the same bytes again
    assert main(["cache", "digest", "--check", path]) == 0
    assert f"4 of 4 objects are as {path} tells" in capsys.readouterr().out
    storage.write_file(f"{data}/b/one", os.urandom(10))
    storage.write_file(f"{data}/c ü", b"shorter")
    storage.delete_file(f"{data}/a")
    assert main(["cache", "digest", "--check", path]) == 1
    said = capsys.readouterr().out
    assert f"{data}/b/one has other bytes than it had" in said
    assert f"{data}/c ü has 7 bytes, and had 1,048,577" in said and f"{data}/a is gone" in said
    assert f"1 of 4 objects are as {path} tells" in said


def test_the_command_says_what_it_must_be_given_and_what_is_not_there_is_said(tmp_path: Path, capsys: Any) -> None:
    for arguments in ([], ["s3://x"], ["--output", "x"], ["--check", "x", "s3://x"], ["--check", "x", "--output", "y"]):
        assert main(["cache", "digest", *arguments]) == 2
        assert "give data and --output FILE, or --check FILE" in capsys.readouterr().err
    for make in (storage.make_digest, storage.read_digest):
        with pytest.raises(SourceNotFoundError):
            make(f"{tmp_path}/nothing")


def test_any_damage_of_a_digest_is_found(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"file-{number}").write_bytes(os.urandom(100 * number))
    path = tmp_path / "digest"
    storage.write_digest(str(path), storage.make_digest(str(tmp_path / "file-*")))
    assert len(storage.read_digest(str(path))) == 5
    whole, draw = path.read_bytes(), random.Random(0)
    lines = whole.splitlines(keepends=True)
    damaged = {
        "empty": b"",
        "cut in a line": whole[:-10],
        "without an end": b"".join(lines[:-1]),
        "a line less": b"".join(lines[:2] + lines[3:]),
        "lines in another order": b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
        "another format": whole.replace(b'"pecan_digest":1', b'"pecan_digest":2'),
        "no digest": b"some text\n" * 5,
        "binary": os.urandom(500),
        "no object": json.dumps([1]).encode() + b"\n{}\n",
    }
    for number in range(300):  # what counts objects and bytes, at the end, is not of use to anybody but people
        at = draw.randrange(len(whole) - len(lines[-1]))
        flipped = bytes([whole[at] ^ (1 << draw.randrange(8))])
        damaged[f"a bit of byte {at} ({number})"] = whole[:at] + flipped + whole[at + 1 :]
    for name, data in damaged.items():
        path.write_bytes(data)
        with pytest.raises(CorruptSourceError, match="pecan cache digest") as told:
            pytest.fail(f"{name} is read: {storage.read_digest(str(path))}")
        assert str(path) in str(told.value)
