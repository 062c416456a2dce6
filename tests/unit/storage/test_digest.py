"""Digests of datasets: made, written, read, held against what is there, and damaged in every way."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from pecan_ray import storage
from pecan_ray.cli import main
from pecan_ray.errors import CorruptSourceError, SourceNotFoundError
from pecan_ray.options import MIB
from pecan_ray.storage import ObjectDigest
from pecan_ray.storage.digest import BLOCK_HASH_BYTES, block_hash
from tests.object_stores import Bucket

OBJECTS = {"a": b"", "b/one": os.urandom(10), "b/two": os.urandom(2 * MIB), "c ü": os.urandom(MIB + 1)}


on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)


@pytest.fixture
def data(bucket: Bucket) -> str:
    """A prefix with some objects."""
    bucket.put({f"set/{name}": body for name, body in OBJECTS.items()})
    return f"{bucket.url}/set"


def made_of(data: str, where: str) -> dict[str, ObjectDigest]:
    storage.write_digest(where, storage.make_digest(data))
    return dict(storage.read_digest(where))


@on_s3
@pytest.mark.parametrize("in_bucket", [True, False])
def test_a_digest_tells_the_bytes_of_every_object(data: str, tmp_path: Path, in_bucket: bool) -> None:
    found = made_of(data, f"{data}-digest" if in_bucket else str(tmp_path / "digest"))
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


@pytest.mark.parametrize(
    "arguments",
    [[], ["s3://data/x"], ["--output", "x"], ["--check", "x", "s3://data/x"], ["--check", "x", "--output", "y"]],
)
def test_the_command_says_what_it_must_be_given(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "digest", *arguments]) == 2
    assert "give data and --output FILE, or --check FILE" in capsys.readouterr().err


@on_s3
def test_what_is_not_there_is_said(data: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError):
        storage.make_digest(f"{data}/nothing-*")
    with pytest.raises(SourceNotFoundError):
        storage.read_digest(str(tmp_path / "nothing"))


def local_digest(tmp_path: Path) -> tuple[str, bytes]:
    for number in range(5):
        (tmp_path / f"file-{number}").write_bytes(os.urandom(100 * number))
    path = str(tmp_path / "digest")
    storage.write_digest(path, storage.make_digest(str(tmp_path / "file-*")))
    return path, Path(path).read_bytes()


def test_any_damage_of_a_digest_is_found(tmp_path: Path) -> None:
    path, whole = local_digest(tmp_path)
    assert len(storage.read_digest(path)) == 5
    lines, draw = whole.splitlines(keepends=True), random.Random(0)
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
    for number in range(300):
        at = draw.randrange(len(whole) - 1)
        flipped = bytes([whole[at] ^ (1 << draw.randrange(8))])
        damaged[f"a bit of byte {at} ({number})"] = whole[:at] + flipped + whole[at + 1 :]
    wrong, said = [], []
    for name, data in damaged.items():
        Path(path).write_bytes(data)
        try:
            storage.read_digest(path)
            wrong.append(name)
        except CorruptSourceError as error:
            said.append(str(error))
    assert all(path in text and "pecan cache digest" in text for text in said)
    # What counts objects and bytes is not of use to anybody but people.
    end = len(whole) - len(lines[-1])
    assert [name for name in wrong if not name.startswith("a bit of byte") or int(name.split()[4]) < end] == []
