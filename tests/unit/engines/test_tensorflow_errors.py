"""What fails in a graph, and values of which no tensor can be made: errors name the operator and the element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.plan.splits import Origin
from tests.unit.engines.engine_leases import column, delivered
from tests.unit.engines.tensorflow_rig import ROWS, all_of, numbers, refuses, run


def raise_always(error: BaseException) -> Callable[[Any], Any]:
    """A function of a tensor that raises while the graph runs, where 7 is in it."""

    def run(value: Any) -> Any:
        if 7 in value:
            raise error
        return value

    return lambda i: tf.ensure_shape(tf.numpy_function(run, [i], tf.int64), i.shape)


REFUSED: dict[str, tuple[Callable[[pecan.PecanPipeline, Any], pecan.PecanPipeline], int, str]] = {
    "batch": (lambda p, fn: p.batch(4).map(fn, on="i", name="op"), 4, "op"),
    "zip": (
        lambda p, fn: (
            p.map(of_one(fn), on="i", name="op").zip(numbers(40).map(lambda e: {"z": e["i"]}, name="z")).batch(4)
        ),
        1,
        "op",
    ),
    "behind take": (lambda p, fn: p.take(40).map(of_one(fn), on="i", name="op").batch(4), 1, "op"),
    "length": (
        lambda p, fn: p.bucket_by_length([3, 50], sizes=[4, 4, 4], length=lambda e: of_one(fn)(e["i"])),
        1,
        "bucket_by_length",
    ),
    "batches filtered": (lambda p, fn: p.batch(4).filter(lambda i: fn(i)[0] >= 0, on="i", name="op"), 4, "op"),
    "behind unbatch": (lambda p, fn: p.batch(4).unbatch().map(of_one(fn), on="i", name="op").batch(2), 1, "op"),
}


def of_one(fn: Any) -> Any:
    return lambda i: fn(i[tf.newaxis])[0]


@pytest.mark.parametrize("case", REFUSED)
def test_what_fails_behind_a_batch_or_in_a_part_of_the_data_is_named_and_counted(case: str) -> None:
    make, left_out, op = REFUSED[case]
    with pytest.raises(errors.OpError) as caught:
        run(make(numbers(40), raise_always(ValueError("no sevens"))))
    assert caught.value.fields["op"] == op and "no sevens" in str(caught.value)
    batches = run(make(numbers(40), raise_always(ValueError("no sevens"))), on_error="quarantine")
    (bad,) = [bad for batch in batches for bad in batch.bad]
    assert (bad.op, bad.elements_left_out) == (op, left_out) and bad.error.endswith("ValueError: no sevens")
    assert sum(batch.rows for batch in batches) == 40 - left_out
    if left_out == 1:
        assert bad.origin == Origin(0, 0, 0, 1, 0) and bad.element["i"] == 7
    with pytest.raises(errors.OpError, match=rf"{op} failed .*SystemExit"):
        run(make(numbers(40), raise_always(SystemExit(3))), on_error="skip")


def raising(element: Any) -> Any:
    raise ValueError("no length")


@pytest.mark.parametrize(
    ("kind", "fn", "message"),
    [
        ("map", lambda e: {"i": object()}, "what it returns cannot be used in a TensorFlow graph"),
        ("map", lambda e: {"i": None}, "odd returned NoneType, but it must return a tensor in column 'i'"),
        ("map", lambda e: {"i": np.ma.masked_array([1, 2], [False, True])}, "odd returned MaskedArray"),
        ("filter", lambda e: None, "odd returned NoneType, but it must return whether to keep"),
        ("filter", lambda e: tf.constant([True, False]), "but it must return whether to keep the element, one bool"),
        ("flat_map", lambda e: {"i": tf.constant(1)}, "odd: column 'i' is one value and has no rows"),
        ("flat_map", lambda e: {"i": tf.ragged.constant([[1], [1, 2]])}, "cannot be used in a TensorFlow graph"),
        ("flat_map", lambda e: {"i": tf.zeros(2), "j": tf.zeros(3)}, "odd returned columns of unequal lengths"),
        ("length", raising, "bucket_by_length.*no length"),
        ("length", lambda e: tf.stack([e["i"], e["i"]]), "bucket_by_length.*must return one number"),
        ("length", "i", "column 'i' is one value, which has no length"),
    ],
)
def test_what_cannot_be_in_a_graph_is_an_error_by_name(kind: str, fn: Any, message: str) -> None:
    made = bucketed(numbers(), fn) if kind == "length" else getattr(numbers(), kind)(fn, name="odd")
    with pytest.raises(errors.ElementError, match=message) as caught:
        run(made.batch(4))
    assert kind == "length" or (caught.value.op, type(caught.value)) == ("odd", errors.OutputTypeError)


def at_7(odd: Any) -> Callable[[Any], Any]:
    """A function of a number that returns it, and for 7 something else, when the graph runs."""
    return lambda i: tf.ensure_shape(tf.numpy_function(lambda v: odd if v == 7 else v, [i], tf.int64), ())


def sometimes(element: dict[str, Any], times: Any) -> dict[str, Any]:
    return {"i": element["i"], "j": tf.repeat(element["i"], tf.where(tf.reduce_any(element["i"] == 7), times, 1))}


AT_7: dict[str, tuple[Callable[[pecan.PecanPipeline], pecan.PecanPipeline], str]] = {
    "dict": (lambda p: p.map(at_7({"a": 1}), on="i", name="odd"), "Unsupported object type dict"),
    "NaN of a filter": (lambda p: p.filter(lambda i: tf.where(i == 7, float("nan"), 2.0), on="i", name="odd"), "NaN"),
    "answers": (lambda p: p.filter(lambda i: tf.fill([tf.where(i == 7, 2, 1)], True), on="i", name="odd"), "one bool"),
    "outputs": (lambda p: p.flat_map(lambda e: sometimes({"i": e["i"][tf.newaxis]}, 2), name="odd"), "unequal lengths"),
}


def bucketed(pipe: pecan.PecanPipeline, length: Any) -> pecan.PecanPipeline:
    return pipe.bucket_by_length([3, 50], sizes=[4, 4, 4], length=length).unbatch()


@pytest.mark.parametrize("case", AT_7)
def test_a_value_that_is_none_for_one_element_is_an_error_with_its_place_or_left_out(case: str) -> None:
    make, text = AT_7[case]
    with pytest.raises(errors.ElementError, match=text) as caught:
        run(make(numbers(40)).batch(4))
    assert (caught.value.op, caught.value.element) == ("odd", 0) and "element 0 of split 1" in str(caught.value)
    batches = run(make(numbers(40)).batch(4), on_error="skip")
    [bad] = [one for batch in batches for one in batch.bad]
    assert (bad.op, bad.where) == ("odd", "element 0 of split 1")
    assert sorted(column(batches)) == [i for i in range(40) if i != 7]


def test_an_error_in_the_graph_names_op_and_element_which_are_left_out_and_told() -> None:
    pipe = numbers().map(refuses(37), on="i", name="refuses_37").batch(16)
    with pytest.raises(errors.OpError, match=r"refuses_37 failed on element 2 of split 5.*not 37") as caught:
        run(pipe)
    assert (caught.value.op, caught.value.element) == ("refuses_37", 2)
    for on_error in ("skip", "quarantine"):
        batches = run(pipe, on_error=on_error)
        assert sorted(column(batches)) == [i for i in range(ROWS) if i != 37]
        [bad] = [one for batch in batches for one in batch.bad]
        assert (bad.op, bad.where) == ("refuses_37", "element 2 of split 5") and "not 37" in bad.error
        assert bad.element == ({"i": 37} if on_error == "quarantine" else None)
        assert delivered(batches) == all_of(pipe)


@pytest.mark.parametrize(
    ("column", "behind", "text"),
    [
        ([[1], [1, 2]], "batch", "odd returned a list in column 'i' of which no tensor can be made"),
        (tf.sparse.from_dense([1, 0]), "batch", "is a SparseTensor where it leaves the graph"),
        (tf.sparse.from_dense([1, 0]), "padded_batch", "padded_batch: column 'i', which odd made, is a SparseTensor"),
        (tf.ragged.constant([[1], [1, 2]]), "padded_batch", "is a RaggedTensor where it is padded"),
    ],
)
def test_what_is_no_tensor_is_refused_where_it_would_leave_the_graph(column: Any, behind: str, text: str) -> None:
    pipe = numbers().map(lambda e: {"i": column}, name="odd").map(lambda e: dict(e), name="next")
    with pytest.raises(errors.OutputTypeError, match=text) as caught:
        run(getattr(pipe, behind)(4))
    assert caught.value.op in ("odd", "next")


def test_what_is_no_tensor_may_pass_from_one_map_to_the_next_and_a_tuple_is_one_tensor() -> None:
    sparse = numbers(8).map(lambda i: tf.sparse.from_dense([i, 0]), on="i").filter(lambda e: True)
    [batch] = run(sparse.map(tf.sparse.to_dense, on="i").batch(8))
    assert sorted(batch.columns["i"].tolist()) == [[i, 0] for i in range(8)]
    [batch] = run(numbers(4).map(lambda e: {"i": (e["i"], 2 * e["i"])}).batch(4))
    assert batch.columns["i"].tolist() == [[i, 2 * i] for i in range(4)]
    hollow: list[list[list[float]]] = [[[]] * 5, [[1.0], [], [2.0, 3.0], []]]
    for rows in hollow:  # TensorFlow's own unbatch ends the process at rows without content
        source = pecan.sources.Items([{"x": np.array(row, np.float32)} for row in rows])
        pipe = pecan.PecanPipeline(source, name="hollow", engine="tensorflow")
        assert [batch["x"].tolist() for batch in pipe.iter_batches(debug=True)] == rows


@pytest.mark.parametrize(
    ("value", "at"),
    [([[1], [1, 2]], 7), ({"a": 1}, 0), (None, 0), (None, 7), (tf.ragged.constant([[1], [1, 2]]), 7)],
    ids=lambda one: type(one).__name__,
)
def test_values_of_a_source_of_which_no_tensor_can_be_made_are_bad_elements(value: Any, at: int) -> None:
    items = [{"v": value if i == at else [[1, 2], [3, i]]} for i in range(20)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), engine="tensorflow").batch(4)
    with pytest.raises(errors.OutputTypeError, match=r"element \d of split \d: column 'v'"):
        run(pipe)
    batches = run(pipe, on_error="quarantine")
    [bad] = [one for batch in batches for one in batch.bad]
    assert bad.op == "source"
    assert bad.element is None or bad.element["v"] is value or bad.element["v"] == value  # lists come as copies
    assert sorted(v[1][1] for v in column(batches, "v")) == [i for i in range(20) if i != at]
    assert delivered(batches) == all_of(pipe)


def test_what_fails_now_and_then_in_a_graph_is_told_as_a_bad_element() -> None:
    calls: list[int] = []

    def once(number: Any) -> Any:
        calls.append(int(number))
        if number == 7 and calls.count(7) == 1:
            raise ValueError("not now")
        return number

    pipe = numbers().map(lambda i: tf.ensure_shape(tf.numpy_function(once, [i], tf.int64), ()), on="i", name="odd")
    found = run(pipe.batch(4), on_error="skip")
    (bad,) = [bad for one in found for bad in one.bad]
    assert bad.op == "odd" and "failed on element 0 of split 1" in bad.error
    assert "not when it was run alone" in bad.error and 7 not in column(found)


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
        (lambda p: p.map(np.sum, on="i", name="by_numpy"), errors.OpError, "by_numpy cannot be compiled"),
        (lambda p: p.map(lambda v: v, on="i", processes=True, name="other"), errors.PlanError, "other: processes=True"),
        (lambda p: p.zip(numbers()), errors.PlanError, "both sides have the column 'i'"),
        (lambda p: p.group_by("i", 2), errors.PlanError, 'the tensorflow engine has no group_by: use engine="python"'),
        (
            lambda p: p.batch(4).flat_map(lambda b: b, name="f"),
            errors.PlanError,
            "f: the tensorflow engine has no flat",
        ),
        (
            lambda p: p.map(lambda e: {"i": tf.numpy_function(lambda v: v, [e["i"]], tf.int64)}).padded_batch(4),
            errors.OutputTypeError,
            "not known how many dimensions column 'i' has",
        ),
    ],
)
def test_plans_that_cannot_be_a_graph_are_refused(build: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(build(numbers()).batch(4))
