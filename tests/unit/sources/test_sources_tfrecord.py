"""TFRecords: framing, ranges, parsing, broken files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from pecan_ray.errors import CorruptSourceError
from pecan_ray.sources import TFRecords
from pecan_ray.sources.tfrecord import masked_crc
from tests.source_contract import check_contract


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))


RECORDS = [bytes([n]) * (n * 7 % 50) for n in range(30)]
DATA = b"".join(map(framed, RECORDS))
ELEMENTS = [{"record": record} for record in RECORDS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(DATA)
    return path


def test_small_files_are_one_split_each(tmp_path: Path, file: Path) -> None:
    (tmp_path / "b.tfrecord").write_bytes(framed(b"more"))
    (tmp_path / "c.tfrecord").write_bytes(b"")
    check_contract(TFRecords(str(tmp_path)), [*ELEMENTS, {"record": b"more"}], splits=3)


def test_large_local_files_are_cut_at_records(file: Path) -> None:
    source = TFRecords(file, split_bytes=200)
    pieces = list(source.splits())
    assert all((split.stop or 0) - split.start <= 200 for split in pieces)
    assert pieces[-1].stop == len(DATA)
    check_contract(source, ELEMENTS, splits=len(pieces))
    assert len(pieces) > 5


@pytest.mark.parametrize("cut", [3, 11, 12, 14, 20])
@pytest.mark.parametrize("start", [0, 2])
def test_a_truncated_file_names_file_byte_and_element(tmp_path: Path, cut: int, start: int) -> None:
    path = tmp_path / "cut.tfrecord"
    good = framed(b"x" * 10) + framed(b"y" * 10)
    path.write_bytes(good + framed(b"z" * 10)[:cut])
    (split,) = TFRecords(str(path)).splits()
    with pytest.raises(CorruptSourceError, match="broken at byte") as caught:
        list(TFRecords(str(path)).read(split, start))
    assert (caught.value.path, caught.value.offset, caught.value.element) == (str(path), len(good), 2)


@pytest.mark.parametrize(("byte", "problem"), [(0, "record's length"), (12, "record's data"), (-1, "record's data")])
@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_a_flipped_bit_is_found(tmp_path: Path, byte: int, problem: str, split_bytes: int) -> None:
    first, second = framed(b"first"), bytearray(framed(b"second"))
    second[byte] ^= 1
    path = tmp_path / "flipped"
    path.write_bytes(first + second + framed(b"third"))
    source = TFRecords(str(path), split_bytes=split_bytes)
    elements = (element for split in source.splits() for element in source.read(split))
    assert next(elements) == {"record": b"first"}
    with pytest.raises(CorruptSourceError, match=problem) as caught:
        next(elements)
    assert caught.value.offset == len(first)


def test_parsing_examples_agrees_with_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    def feature(**kind: list[object]) -> object:
        (name, values), *_ = kind.items()
        held = {"bytes": tf.train.BytesList, "float": tf.train.FloatList, "int64": tf.train.Int64List}[name]
        return tf.train.Feature(**{f"{name}_list": held(value=values)})

    features = {
        "image": feature(bytes=[b"jpeg"]),
        "tags": feature(bytes=[b"a", b"bb"]),
        "label": feature(int64=[-7]),
        "boxes": feature(float=[0.5, 1.5, 2.5]),
        "score": feature(float=[0.1]),
        "ids": feature(int64=[1, 2**40]),
        "none": feature(float=[]),
        "unset": tf.train.Feature(),
    }
    path = str(tmp_path / "examples.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    expected = {
        "image": b"jpeg",
        "tags": np.array([b"a", b"bb"], dtype=object),
        "label": -7,
        "boxes": np.array([0.5, 1.5, 2.5], dtype=np.float32),
        "score": np.float32(0.1),
        "ids": np.array([1, 2**40]),
        "none": np.array([], dtype=np.float32),
    }
    check_contract(TFRecords(path, parse=True), [expected], splits=1)


def test_identity_changes_with_the_file(file: Path) -> None:
    before = TFRecords(str(file)).identity()
    assert TFRecords(str(file)).identity() == before
    assert TFRecords(str(file), parse=True).identity() != before
    file.write_bytes(DATA + framed(b"one more"))
    assert TFRecords(str(file)).identity() != before
