"""TFRecords: framing, ranges, broken files, and Examples as TensorFlow writes them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import CorruptSourceError
from pecan_ray.sources import TFRecords
from tests.sample_files import example, field, framed
from tests.source_contract import check_contract, elements_of, plain

RECORDS = [bytes([n]) * (n * 7 % 50) for n in range(30)]
DATA = b"".join(map(framed, RECORDS))
ELEMENTS = [{"record": record} for record in RECORDS]


def test_small_files_are_one_split_each_and_large_ones_are_cut_at_records(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(DATA)
    source = TFRecords(path, split_bytes=200)
    pieces = list(source.splits())
    assert all((split.stop or 0) - split.start <= 200 for split in pieces)
    assert len(pieces) > 5 and pieces[-1].stop == len(DATA)
    check_contract(source, ELEMENTS, splits=len(pieces))
    before = source.identity()
    assert TFRecords(path, split_bytes=200).identity() == before
    assert TFRecords(path, split_bytes=200, parse=True).identity() != before
    (tmp_path / "b.tfrecord").write_bytes(framed(b"more"))
    (tmp_path / "c.tfrecord").write_bytes(b"")
    check_contract(TFRecords(str(tmp_path)), [*ELEMENTS, {"record": b"more"}], splits=3)
    path.write_bytes(DATA + framed(b"one more"))
    assert source.identity() != before


THIRD = framed(b"z" * 10)
BROKEN = {f"cut off at byte {at}": THIRD[:at] for at in (3, 11, 12, 14, 20)}
for at, part in ((0, "record's length"), (12, "record's data"), (25, "record's data")):
    BROKEN[f"bit of byte {at}: {part}"] = THIRD[:at] + bytes([THIRD[at] ^ 1]) + THIRD[at + 1 :] + framed(b"next")


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(("start", "split_bytes"), [(0, 1 << 20), (2, 1 << 20), (0, 1)])
def test_a_truncated_file_names_file_byte_and_element(tmp_path: Path, how: str, start: int, split_bytes: int) -> None:
    path, good = tmp_path / "a", framed(b"x" * 10) + framed(b"y" * 10)
    path.write_bytes(good + BROKEN[how])
    source, got = TFRecords(str(path), split_bytes=split_bytes), list[Any]()
    elements = (element for split in source.splits() for element in source.read(split, start))
    with pytest.raises(CorruptSourceError, match=how.partition(": ")[2] or "broken at byte") as caught:
        got.extend(elements)
    assert got == [{"record": b"x" * 10}, {"record": b"y" * 10}][start:]
    assert (caught.value.path, caught.value.offset) == (str(path), len(good))
    assert caught.value.element == 2 or split_bytes == 1


# --- Examples; those that are refused, and features=, are in test_readings ---------------------------------------


def test_parsing_examples_agrees_with_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    values: dict[str, list[Any]] = {
        "image": [b"jpeg"],
        "tags": [b"a", b"bb"],
        "label": [-7],
        "boxes": [0.5, 1.5],
        "score": [0.1],
    }
    written = example(**values, ids=[1, 2**40])
    made = tf.train.Example.FromString(written)
    assert [*made.features.feature["ids"].int64_list.value] == [1, 2**40]
    made.features.feature["none"].float_list.SetInParent()
    made.features.feature["unset"].SetInParent()
    path = str(tmp_path / "examples.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(made.SerializeToString())
    expected = {
        **{"image": b"jpeg", "tags": np.array([b"a", b"bb"], dtype=object), "label": -7, "score": np.float32(0.1)},
        **{"boxes": np.array([0.5, 1.5], np.float32), "ids": np.array([1, 2**40]), "none": np.array([], np.float32)},
    }
    check_contract(TFRecords(path, parse=True), [expected], splits=1)


def test_features_in_several_parts_and_numbers_that_are_not_packed_are_those_of_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    whole = field(3, b"\x08\x01\x08\x02") + field(3, field(1, b"\x03\x04"))  # 1 and 2 apart, then 3 and 4 packed
    halves = field(2, b"\x0d" + struct.pack("<f", 0.5) + field(1, struct.pack("<f", -0.0)))
    entries = [field(1, field(1, b"i") + field(2, one)) for one in (field(3, b"\x08\x07"), whole)]  # the last counts
    record = field(1, b"".join(entries)) + field(1, field(1, field(1, b"f") + field(2, halves)))
    features = tf.train.Example.FromString(record).features.feature
    (tmp_path / "a").write_bytes(framed(record))
    (element,) = elements_of(TFRecords(str(tmp_path / "a"), parse=True))
    assert plain(element) == {"i": [1, 2, 3, 4], "f": [0.5, -0.0]}
    assert plain(element) == {"i": [*features["i"].int64_list.value], "f": [*features["f"].float_list.value]}
