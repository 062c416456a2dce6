"""TFRecords: framing, ranges, broken files, and Examples with the features that few have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import CorruptSourceError, PlanError
from pecan_ray.sources import TFRecords
from tests.sample_files import framed
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


# --- Examples ---------------------------------------------------------------------------------------------------


def example(**features: Any) -> Any:
    tf = pytest.importorskip("tensorflow")
    made = tf.train.Example()
    for name, values in features.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        getattr(made.features.feature[name], kind).value.extend(values)
    return made


def sequence(steps: dict[str, list[list[Any]]], **context: Any) -> bytes:
    tf = pytest.importorskip("tensorflow")
    made = tf.train.SequenceExample(context=example(**context).features)
    for name, values in steps.items():
        for one in values:
            feature = made.feature_lists.feature_list[name].feature.add()
            kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(one[0])] if one else "int64_list"
            getattr(feature, kind).value.extend(one)
        made.feature_lists.feature_list[name].SetInParent()
    return bytes(made.SerializeToString())


def parsed(path: Path, *records: bytes, **how: Any) -> list[Any]:
    path.write_bytes(b"".join(map(framed, records)))
    return elements_of(TFRecords(str(path), parse=True, **how))


def test_parsing_examples_agrees_with_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    made = example(image=[b"jpeg"], tags=[b"a", b"bb"], label=[-7], boxes=[0.5, 1.5], score=[0.1], ids=[1, 2**40])
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


def test_feature_lists_are_lists_of_lists(tmp_path: Path) -> None:
    steps: dict[str, list[list[Any]]] = {"frames": [[b"a"], [b"bb"]], "ids": [[1, 2], [3]], "none": []}
    steps["even"] = [[0.5], [1.5]]
    (element,) = parsed(tmp_path / "a", sequence(steps, label=[3]))
    assert plain(element) == {**steps, "label": 3}
    assert element["even"].dtype == np.float32 and element["ids"][1].dtype == np.int64
    features = {"frames": "list<binary>", "even": "list<float32>", "none": "list<list<int64>>", "label": "list<int64>"}
    (fixed,) = parsed(tmp_path / "a", sequence(steps, label=[3]), features=features)
    assert plain(fixed) == {**steps, "frames": [b"a", b"bb"], "even": [0.5, 1.5], "label": [3]}
    assert fixed["none"].shape == (0, 0) and fixed["none"].dtype == np.int64
    for bad, said in (({"ids": "list<int64>"}, "other numbers of values"), ({"even": "list<int64>"}, "of float32")):
        with pytest.raises(CorruptSourceError, match=rf"element 0 of .*{said}"):
            parsed(tmp_path / "a", sequence(steps), features=bad)
    with pytest.raises(CorruptSourceError, match="'label' is a feature of the context, and"):
        parsed(tmp_path / "a", sequence({"label": [[1]]}, label=[3]))
    with pytest.raises(CorruptSourceError, match="steps of 'x' are of different types"):
        parsed(tmp_path / "a", sequence({"x": [[1], [0.5]]}))


UNKNOWN = {
    "example": b"\x1a\x01x",
    "features": b"\x0a\x02\x12\x00",
    "feature": b"\x0a\x09\x0a\x07\x0a\x01a\x12\x02\x22\x00",
}


@pytest.mark.parametrize("extra", UNKNOWN.values(), ids=UNKNOWN)
def test_examples_with_unknown_fields_are_refused(tmp_path: Path, extra: bytes) -> None:
    good = example(label=[3]).SerializeToString()
    with pytest.raises(CorruptSourceError, match=r"element 1 of .*fields that Examples have not.*parse=False"):
        parsed(tmp_path / "a", good, good + extra)


def test_features_fix_what_a_column_is(tmp_path: Path) -> None:
    features = {"ids": "list<int64>", "label": "int64", "tags": "list<binary>"}
    records = [example(ids=[1], label=[1], tags=[b"a"]), example(ids=[1, 2], label=[2], more=[0.5])]
    first, second = parsed(tmp_path / "a", *(one.SerializeToString() for one in records), features=features)
    assert [first["ids"].tolist(), second["ids"].tolist()] == [[1], [1, 2]]
    assert [first["tags"].tolist(), second["tags"].tolist()] == [[b"a"], []] and second["more"] == 0.5
    assert elements_of(TFRecords(str(tmp_path / "a"), features=features))[0]["label"] == 1  # parses without being told
    for bad in (example(ids=[1]), example(ids=[0.5], label=[1]), example(ids=[1], label=[1, 2])):
        with pytest.raises(CorruptSourceError, match=r"element 0 of .*features="):
            parsed(tmp_path / "a", bad.SerializeToString(), features=features)
    for given in ({"ids": "int32"}, {"ids": int}, ["ids"]):
        with pytest.raises(PlanError, match="features"):
            TFRecords("/nowhere", features=given)  # type: ignore[arg-type]  # what a user may write
