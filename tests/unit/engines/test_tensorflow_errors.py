"""What fails in a graph, and values of which no tensor can be made: errors name the operator and the element."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines.contract import BadElement
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Items
from tests.unit.engines.bad_cases import files
from tests.unit.engines.engine_leases import bad_of, column, delivered
from tests.unit.engines.tensorflow_rig import all_of, numbers, refuses, run

WRITTEN = Path(__file__).with_name("graph_errors.txt")
"""A paragraph for each case; `python -m tests.unit.engines.test_tensorflow_errors` writes all anew."""
ROWS = 40


def raising(error: BaseException) -> Callable[[Any], Any]:
    """A function of a tensor that raises while the graph runs, where 7 is in it."""

    def run(value: Any) -> Any:
        if 7 in value:
            raise error
        return value

    return lambda i: tf.ensure_shape(tf.numpy_function(run, [i], tf.int64), i.shape)


def of_one(fn: Any) -> Any:
    return lambda i: fn(i[tf.newaxis])[0]


many = raising(ValueError("no sevens"))
one = of_one(many)


def at_7(odd: Any) -> Callable[[Any], Any]:
    """A function of a number that returns it, and for 7 something else, when the graph runs."""
    return lambda i: tf.ensure_shape(tf.numpy_function(lambda v: odd if v == 7 else v, [i], tf.int64), ())


def sometimes(element: dict[str, Any]) -> dict[str, Any]:
    i = element["i"]
    return {"i": i[tf.newaxis], "j": tf.repeat(i[tf.newaxis], tf.where(i == 7, 2, 1))}


def no_length(element: Any) -> Any:
    raise ValueError("no length")


def bucketed(pipe: PecanPipeline, length: Any) -> PecanPipeline:
    return pipe.bucket_by_length([3, 50], sizes=[4, 4, 4], length=length)


def made(column: Any) -> PecanPipeline:
    """Numbers behind which a map makes something of a column that no tensor can be."""
    return numbers(ROWS).map(lambda e: {"i": column}, name="odd").map(lambda e: dict(e), name="next")


def items(*values: Any, usual: Callable[[int], Any] = lambda i: [[1, 2], [3, i]]) -> PecanPipeline:
    """Elements of a source, of which the first ones have these values."""
    given = [{"v": value} for value in values]
    return PecanPipeline(Items([*given, *({"v": usual(i)} for i in range(8))]), engine="tensorflow")


def torn_dataset() -> Any:
    return tf.data.Dataset.range(10).map(refuses(7))


TORN = PecanPipeline(*files(8).plan.sources(), engine="tensorflow")
"""Two files of five numbers, of which the one before the last cannot be read."""
SPARSE, RAGGED = tf.sparse.from_dense([1, 0]), tf.ragged.constant([[1], [1, 2]])
CASES: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    # functions that fail for one element while the graph runs
    "an assertion": lambda p: p.map(refuses(37), on="i", name="op").batch(16),
    "behind a batch": lambda p: p.batch(4).map(many, on="i", name="op"),
    "in an input of zip": lambda p: (
        p.map(one, on="i", name="op").zip(numbers(ROWS).map(lambda e: {"z": e["i"]}, name="z")).batch(4)
    ),
    "behind take": lambda p: p.take(30).map(one, on="i", name="op").batch(4),
    "a length": lambda p: bucketed(p, lambda e: one(e["i"])),
    "batches filtered": lambda p: p.batch(4).filter(lambda i: many(i)[0] >= 0, on="i", name="op"),
    "behind unbatch": lambda p: p.batch(4).unbatch().map(one, on="i", name="op").batch(2),
    "it ends the process": lambda p: p.map(of_one(raising(SystemExit(3))), on="i", name="op").batch(4),
    "a dict for 7": lambda p: p.map(at_7({"a": 1}), on="i", name="odd").batch(4),
    "NaN of a filter": lambda p: p.filter(lambda i: tf.where(i == 7, float("nan"), 2.0), on="i", name="odd").batch(4),
    "two answers": lambda p: p.filter(lambda i: tf.fill([tf.where(i == 7, 2, 1)], True), on="i", name="odd").batch(4),
    "unequal outputs": lambda p: p.flat_map(sometimes, name="odd").batch(4),
    "another shape": lambda p: p.map(lambda e: {"v": tf.zeros([tf.where(e["i"] == 30, 3, 2)])}, name="vary").batch(8),
    # functions of which no graph can be made
    "an object": lambda p: p.map(lambda e: {"i": object()}, name="odd").batch(4),
    "None": lambda p: p.map(lambda e: {"i": None}, name="odd").batch(4),
    "a masked array": lambda p: p.map(lambda e: {"i": np.ma.masked_array([1, 2], [False, True])}, name="odd").batch(4),
    "a filter that says nothing": lambda p: p.filter(lambda e: None, name="odd").batch(4),
    "a filter that says two things": lambda p: p.filter(lambda e: tf.constant([True, False]), name="odd").batch(4),
    "outputs without rows": lambda p: p.flat_map(lambda e: {"i": tf.constant(1)}, name="odd").batch(4),
    "ragged outputs": lambda p: p.flat_map(lambda e: {"i": RAGGED}, name="odd").batch(4),
    "outputs of unequal length": lambda p: p.flat_map(lambda e: {"i": tf.zeros(2), "j": tf.zeros(3)}, name="odd"),
    "a length that fails": lambda p: bucketed(p, no_length),
    "two lengths": lambda p: bucketed(p, lambda e: tf.stack([e["i"], e["i"]])),
    "the length of a number": lambda p: bucketed(p, "i"),
    "a list that is no tensor": lambda p: made([[1], [1, 2]]).batch(4),
    "a sparse tensor in a batch": lambda p: made(SPARSE).batch(4),
    "a sparse tensor that is padded": lambda p: made(SPARSE).padded_batch(4),
    "a ragged tensor that is padded": lambda p: made(RAGGED).padded_batch(4),
    "a column that there is not": lambda p: p.map(lambda v: v, on="nope").batch(4),
    "NumPy": lambda p: p.map(np.sum, on="i", name="by_numpy").batch(4),
    "processes": lambda p: p.map(lambda v: v, on="i", processes=True, name="other").batch(4),
    "two columns of one name": lambda p: p.zip(numbers(ROWS)).batch(4),
    "groups": lambda p: p.group_by("i", 2),
    "batches by a function of lists": lambda p: p.batch(2, collate=dict),
    "a function that is set up": lambda p: p.map(lambda i, value: i, on="i", setup=dict),
    "a function that draws from global generators": lambda p: p.map(lambda i: i, on="i", seed_globals=True),
    "a padding that is no value": lambda p: p.map(tf.range, on="i").padded_batch(4, padding=0.5),
    "a flat_map of batches": lambda p: p.batch(4).flat_map(lambda b: b, name="f"),
    "an unknown rank that is padded": lambda p: p.map(
        lambda e: {"i": tf.numpy_function(lambda v: v, [e["i"]], tf.int64)}
    ).padded_batch(4),
    # values of a source
    "uneven rows": lambda p: items([[0], [1, 2]]).batch(4),
    "uneven rows later": lambda p: items([[1, 2], [3, 4]], [[0], [1, 2]]).batch(4),
    "a dict of a source": lambda p: items({"a": 1}).batch(4),
    "None of a source": lambda p: items([[1, 2], [3, 4]], None).batch(4),
    "a ragged tensor of a source": lambda p: items([[1, 2], [3, 4]], RAGGED).batch(4),
    "another type of a source": lambda p: items(1, 1.5, usual=int).batch(4),
    "another rank of a source": lambda p: items(1, [1], usual=int).batch(4),
    "none that can be read": lambda p: TORN.map(dict, name="same").batch(4),
    "none that can be read, behind what is taken": lambda p: TORN.map(dict, name="same").take(8),
    "none that can be read, behind what is filtered": lambda p: TORN.filter(lambda i: i != 1, on="i").take(7).batch(5),
    "none that can be read, behind each pass": lambda p: TORN.map(dict, name="same").take(8).repeat(2),
    "none that can be read, behind what is skipped": lambda p: TORN.skip(2).take(6),
    "integers that the type of the others rounds": lambda p: items(
        [0.5, 1], [2**53 + 1, 0.5], usual=lambda i: [0.5, 1]
    ).batch(2),
    "integers that the type of the first rounds": lambda p: items(0.5, 2**53 + 1, usual=float).batch(2),
    "a dataset in place of a function": lambda p: PecanPipeline.from_tf_data(tf.data.Dataset.range(3)),
    "a function that makes no dataset": lambda p: PecanPipeline.from_tf_data(lambda: 3),
    "a dataset that fails": lambda p: PecanPipeline.from_tf_data(torn_dataset),
    "other columns": lambda p: PecanPipeline(Items([{"i": 1}, {"j": 1}]), engine="tensorflow").batch(2),
}


def told(name: str) -> str:
    """Return the error of a case, and what is told and left out where elements are put into quarantine."""
    lines = [name]
    for on_error in ("raise", "quarantine"):
        try:
            batches = run(CASES[name](numbers(ROWS)), on_error=on_error, order="strict")
        except errors.PecanError as error:
            text = f"{type(error).__name__}: {_words(str(error))}"
            lines += [] if text == lines[-1] else [text]
        else:
            lines += [_told_of(bad) for bad in bad_of(batches)]
            lines.append(f"{sum(batch.rows for batch in batches)} rows")
    return "\n".join(lines)


def _told_of(bad: BadElement) -> str:
    element = "" if bad.element is None else f", {sorted(bad.element)}"
    return f"{bad.op}, {bad.where}{element}, {bad.elements_left_out} left out: {_words(bad.error)}"


def _words(text: str) -> str:
    """Cut a text to its beginning, without TensorFlow's names of nodes, in which it counts."""
    plain = re.sub(r"\{\{.*?(?=ValueError|$)", "", " ".join(text.split()))
    return re.split(r" (?:Traceback|Condition|\[\[|\[Op:|to a numpy)", plain)[0][:160].rstrip()


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_told_as_it_is_written_down(name: str) -> None:
    written = WRITTEN.read_text().strip().split("\n\n")
    assert told(name) == written[list(CASES).index(name)]


def test_what_is_left_out_is_one_position_and_the_rest_is_delivered() -> None:
    pipe = numbers(ROWS).map(refuses(37), on="i", name="refuses_37").batch(16)
    with pytest.raises(errors.OpError) as caught:
        run(pipe)
    assert (caught.value.op, caught.value.element) == ("refuses_37", 2)
    for on_error, element in (("skip", None), ("quarantine", {"i": 37})):
        batches = run(pipe, on_error=on_error)
        assert sorted(column(batches)) == [i for i in range(ROWS) if i != 37] and delivered(batches) == all_of(pipe)
        assert [bad.element for bad in bad_of(batches)] == [element]


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


def test_what_fails_now_and_then_in_a_graph_is_told_as_a_bad_element() -> None:
    calls: list[int] = []

    def once(number: Any) -> Any:
        calls.append(int(number))
        if number == 7 and calls.count(7) == 1:
            raise ValueError("not now")
        return number

    pipe = numbers().map(lambda i: tf.ensure_shape(tf.numpy_function(once, [i], tf.int64), ()), on="i", name="odd")
    found = run(pipe.batch(4), on_error="skip")
    (bad,) = bad_of(found)
    assert bad.op == "odd" and "failed on element 0 of split 1" in bad.error
    assert "not when it was run alone" in bad.error and 7 not in column(found)


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(told, CASES)) + "\n")
