"""The sample of the tensorflow engine's operators."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pecan_ray.autoorder.order import uses_subprocess
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.errors import OpError
from pecan_ray.plan.splits import Element
from tests.unit.autoorder.sampled_rows import COUNT, double, profile, rows, touched


def test_graphs_tell_columns_factors_kinds_types_and_whether_they_are_random() -> None:
    tf = pytest.importorskip("tensorflow")

    def hidden(element: Element) -> Element:
        own = dict(element)
        own["mask"] = own["x"] > 3.0
        return own

    def cast(x: Any) -> Any:
        return tf.cast(x, tf.bfloat16)

    def declared(x: Any, rng: Any) -> Any:
        return x + tf.random.stateless_uniform([], rng)

    def undeclared(x: Any) -> Any:
        return x + tf.random.uniform([])

    def label(element: Element) -> Element:
        return {"x": element["x"], "label": tf.strings.length(element["path"])}

    def thrice(x: Any) -> Any:
        return tf.stack([x, x, x])

    pipe = rows(engine="tensorflow").map(hidden).map(declared, on="x").map(undeclared, on="x")
    pipe = pipe.filter(lambda i: i % 2 == 0, on="i", name="even").flat_map(thrice, on="x")
    found = profile(pipe.map(lambda x: x[:2], on="x", name="crop").map(label).map(cast, on="x").batch(4))
    assert touched(found["hidden"]) == (["x"], [], ["mask"], [])
    assert touched(found["crop"]) == (["x"], ["x"], [], [])
    assert touched(found["label"]) == (["path", "x"], [], ["label"], ["i", "mask", "path"])
    assert found.elements == COUNT and found.notes
    assert found["even"].profiled.elements == 0.5 and found["thrice"].profiled.elements == 3
    assert found["crop"].bytes_in - found["crop"].bytes_out == 3 * COUNT // 2 * 6 * 4
    assert not any(op.profiled.changes_kind for op in found.ops), "one that makes another column is told by that"
    assert [op.name for op in found.ops if op.profiled.custom_dtype_cast] == ["cast"]
    assert not any(op.profiled.changes_rank or op.profiled.fixed for op in found.ops)
    assert {op.name for op in found.ops if op.profiled.random} == {"declared", "undeclared"}


def test_an_error_names_operator_and_element() -> None:
    tf = pytest.importorskip("tensorflow")

    def pick(x: Any) -> Any:
        return tf.gather(tf.constant([1, 2, 3]), tf.cast(x[0], tf.int32))

    with pytest.raises(OpError, match=r"pick failed on element \d+ of split 0") as caught:
        profile(rows(engine="tensorflow").map(double, on="x", name="first").map(pick, on="x"))
    assert caught.value.op == "pick" and caught.value.element >= 2


def test_a_trainer_without_tensorflow_stays_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    request = OrderRequest(rows(engine="tensorflow").plan, "tensorflow")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert uses_subprocess(request), "whatever is said of samples of the python engine"
