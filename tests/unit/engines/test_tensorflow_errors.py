"""Errors in graphs, plans and sources of the tensorflow engine name the operator and the element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines import positions
from pecan_ray.plan.splits import Origin
from tests.unit.engines.tensorflow_rig import ROWS, all_of, covered, numbers, refuses_37, run, values


def test_an_error_in_the_graph_names_op_and_element_which_are_left_out_and_told() -> None:
    pipe = numbers().map(refuses_37, on="i").batch(16)
    with pytest.raises(errors.OpError, match=r"refuses_37 failed on element 2 of split 5.*not 37") as caught:
        run(pipe)
    assert (caught.value.op, caught.value.element) == ("refuses_37", 2)
    for on_error in ("skip", "quarantine"):
        batches = run(pipe, on_error=on_error)
        assert sorted(values(batches)) == [i for i in range(ROWS) if i != 37]
        [bad] = [one for batch in batches for one in batch.bad]
        assert (bad.op, bad.where) == ("refuses_37", "element 2 of split 5") and "not 37" in bad.error
        assert bad.element == ({"i": 37} if on_error == "quarantine" else None)
        assert covered(batches) == all_of(pipe)


def test_a_truncated_jpeg_is_named(tmp_path: Path) -> None:
    whole = tf.io.encode_jpeg(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).numpy()
    (tmp_path / "class").mkdir()
    for number in range(5):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(whole[:200] if number == 3 else whole)
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(tmp_path), engine="tensorflow")
    pipe = pipe.map(lambda image: tf.image.decode_jpeg(image, channels=3), on="image", name="decode").batch(2)
    with pytest.raises(errors.OpError, match=r"decode failed on .*3\.jpg: Invalid"):
        run(pipe)


def test_elements_that_differ_are_named() -> None:
    pipe = numbers().map(lambda e: {"v": tf.zeros([tf.where(e["i"] == 50, 3, 2)])}, name="vary").batch(16)
    with pytest.raises(errors.BatchShapeError, match=r"'v' of element 1 of split 7"):
        run(pipe)
    for other, text in (({"j": 1}, "columns"), ({"i": 1.5}, "float64"), ({"i": [1]}, r"int64\[1\]")):
        with pytest.raises(errors.OutputTypeError, match=text):
            run(pecan.PecanPipeline(pecan.sources.Items([{"i": 1}, other]), engine="tensorflow").batch(2))


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda p: p.map(lambda v: v, on="nope"), errors.ColumnError, "no column 'nope'; there are \\['i'\\]"),
        (lambda p: p.map(lambda e: e["i"], name="bare"), errors.OutputTypeError, "bare returned .*must return a dict"),
        (lambda p: p.map(np.sum, on="i", name="by_numpy"), errors.OpError, "by_numpy cannot be compiled"),
        (lambda p: p.map(lambda v: v, on="i", processes=True, name="other"), errors.PlanError, "other: processes=True"),
        (lambda p: p.zip(numbers()), errors.PlanError, "both sides have the column 'i'"),
    ],
)
def test_plans_that_cannot_be_a_graph_are_refused(build: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(build(numbers()).batch(4))


def test_a_corrupt_file_raises_the_source_error(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(10):
            writer.write(b"%d" % number * 100)
    path.write_bytes(path.read_bytes()[:-30])
    pipe = pecan.PecanPipeline(pecan.sources.TFRecords(path), engine="tensorflow").batch(4)
    with pytest.raises(errors.CorruptSourceError, match=r"data\.tfrecord"):
        run(pipe)
    batches = run(pipe, on_error="skip")
    assert len(values(batches, "record")) == 9
    assert [one.op for batch in batches for one in batch.bad] == ["read TFRecords"]


def test_bad_elements_are_told_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_BAD", 16)

    def below_ten(i: Any) -> Any:
        tf.debugging.Assert(i < 10, [i])
        return i

    pipe = numbers().map(below_ten, on="i").batch(8)
    produced = run(pipe, on_error="skip")
    reports = [batch for batch in produced if not batch.rows]
    assert [(len(one.bad), one.partial) for one in reports] == [(16, False)] * 5 + [(10, False)]
    assert covered(produced) == all_of(pipe)
    identities = [bad.identity for one in reports for bad in one.bad]
    assert len(set(identities)) == 90 and identities[0] == ("below_ten", Origin(0, 0, 0, 1, 3))
