"""The sample: what it measures of each operator, and that it disturbs nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from examples import image_ops
from examples.photographs import derived_photographs
from pecan_ray.autoorder.facts import HOLDS_STATE
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.sample import sample_stretch
from pecan_ray.engines.counting import column_bytes, element_bytes
from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Element
from pecan_ray.plan.stretches import reordered, stretches
from pecan_ray.reorder import NEUTRAL_BAND, auto_order
from tests.unit.autoorder.sampled_rows import COUNT, double, keep, profile, rows, sampled, touched


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return derived_photographs(64, cache=tmp_path_factory.mktemp("photographs"))


# --- what is measured --------------------------------------------------------------------------------------


def test_real_photographs_give_the_factors_of_their_sizes(photographs: Path) -> None:
    pipe = (
        pecan.PecanPipeline(pecan.sources.ImageFolder(photographs), name="photographs")
        .map(image_ops.decode)
        .map(image_ops.random_flip, on="image")
        .map(image_ops.resize, on="image")
        .map(image_ops.subtract_mean, on="image")
        .batch(8)
    )
    found = profile(pipe)
    assert found.elements == 64 and [op.name for op in found.ops] == [
        "decode",
        "random_flip",
        "resize",
        "subtract_mean",
    ]
    decoded = [image_ops.decode_rgb(path.read_bytes()) for path in photographs.rglob("*.jpg")]
    into = sum(image.nbytes for image in decoded) + 64 * 8
    assert found["decode"].bytes_out == found["resize"].bytes_in == into
    assert found["resize"].inflation == pytest.approx(64 * (224 * 224 * 3 + 8) / into)
    assert found["subtract_mean"].inflation == pytest.approx((4 * 224 * 224 * 3 + 8) / (224 * 224 * 3 + 8))
    assert found["decode"].changes_kind and found["decode"].drops == {"path"}
    assert not found["resize"].changes_rank and not found["resize"].changes_kind
    assert found["random_flip"].random and not found["resize"].random
    order = auto_order(found.profiled, "pecan", neutral_band=NEUTRAL_BAND).order
    assert order == ("decode", "resize", "random_flip", "subtract_mean", "batch")


def test_time_is_measured_as_a_function_of_the_bytes() -> None:
    def burn(x: Any) -> Any:
        for _ in range(20):
            x = np.sqrt(x * x + 1)
        return x

    items = [{"x": np.ones(2_000 + 28_000 * (n % 8), np.float64)} for n in range(64)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items)).map(burn, on="x")
    (stretch,) = stretches(pipe.plan)
    found = sample_stretch(stretch, "python", 0, SampleLimits(64, deadline=1.0), clock=lambda: 0.0)
    points = found.profile().ops[0].points
    assert len(points) > 1 and points[0][0] < points[-1][0]
    sizes, seconds = zip(*points, strict=True)
    assert list(seconds) == sorted(seconds) and seconds[-1] > 2 * seconds[0]
    assert sizes[0] >= 16_000 and sizes[-1] <= 8 * 198_000


def test_columns_that_a_function_reads_writes_creates_and_drops_are_told_apart() -> None:
    def label(element: Element) -> Element:
        return {**element, "label": len(element["path"])}

    def shorter(element: Element) -> Element:
        return {**element, "x": element["x"][:4]}

    def without(element: Element) -> Element:
        return {name: element[name] for name in ("x", "label")}

    found = profile(rows().map(label).map(shorter).map(without))
    one, two, three = found.ops
    assert touched(one) == (["path"], [], ["label"], [])
    assert touched(two) == (["x"], ["x"], [], [])
    assert touched(three) == (["label", "x"], [], [], ["i", "path"])


def test_what_is_read_from_a_plain_copy_of_the_element_is_found_too() -> None:
    def hidden(element: Element) -> Element:
        own = dict(element)
        own["mask"] = own["x"] > 3
        return own

    def fresh(element: Element) -> Element:
        own = dict(element)
        own["x"] = np.zeros(2, np.float32)
        return own

    found = profile(rows().map(hidden).map(fresh))
    assert found["hidden"].reads == {"x"} and found["hidden"].creates == {"mask"}
    assert found["fresh"].reads == set() and found["fresh"].writes == {"x"}
    assert found["fresh"].profiled.defines == {"x"}


def test_an_operator_that_writes_into_its_input_poisons_nothing() -> None:
    data = np.arange(COUNT * 8, dtype=np.float32).reshape(COUNT, 8)
    original = data.copy()

    def scale(element: Element) -> Element:
        element["x"] *= 2
        return element

    def total(element: Element) -> Element:
        return {**element, "sum": float(element["x"].sum())}

    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=data)).map(scale).map(total)
    found = profile(pipe)
    assert found["scale"].writes == {"x"}
    assert not found["scale"].random and not found["scale"].stateful
    assert np.array_equal(data, original)
    peeked = pipe.peek(COUNT)
    assert isinstance(peeked, list)
    assert [element["sum"] for element in peeked] == [float(2 * row.sum()) for row in original]


def test_filters_and_flat_maps_count_elements() -> None:
    def even(i: Any) -> Any:
        return i % 2 == 0

    def thrice(element: Element) -> list[Element]:
        return [element, element, element]

    found = profile(rows().filter(even, on="i").flat_map(thrice).map(double, on="x"))
    assert (found["even"].elements_in, found["even"].elements_out) == (COUNT, COUNT // 2)
    assert found["even"].inflation == pytest.approx(0.5, abs=0.01) and found["even"].profiled.elements == 0.5
    assert found["thrice"].profiled.elements == 3 and found["thrice"].inflation == pytest.approx(3)
    assert found["double"].elements_in == 3 * COUNT // 2


def test_bytes_are_those_of_all_columns() -> None:
    assert column_bytes(np.zeros((2, 3), np.float16)) == 12
    assert [column_bytes(value) for value in (b"abc", "abcd", 1, 1.5, True, None, np.float32(1))] == [
        3,
        4,
        8,
        8,
        1,
        0,
        4,
    ]
    assert column_bytes(["ab", np.zeros(2, np.int8)]) == 4
    assert column_bytes(np.array([b"abc", b"d"], object)) == 4
    assert element_bytes({"a": {"b": b"xy"}, "c": 1}) == 10


# --- randomness and state ----------------------------------------------------------------------------------


def test_randomness_is_found_however_it_is_drawn() -> None:
    def declared(x: Any, rng: np.random.Generator) -> Any:
        return x + rng.random()

    def of_numpy(x: Any) -> Any:
        return x + np.random.random()

    def of_python(x: Any) -> Any:
        return x + random.random()

    found = profile(rows().map(declared, on="x").map(of_numpy, on="x").map(of_python, on="x").map(double, on="x"))
    assert [op.random for op in found.ops] == [True, True, True, False]
    assert not any(op.stateful for op in found.ops)


def counting() -> Callable[[Any], Any]:
    calls = [0]

    def count(x: Any) -> Any:
        calls[0] += 1
        return x + calls[0]

    return count


def test_an_operator_with_state_is_found_and_stays_where_it_is() -> None:
    found = sampled(rows().map(counting(), on="x"), "count")
    assert found.stateful and found.profiled.fixed == HOLDS_STATE
    vouched = sampled(rows().map(counting(), on="x", random=True), "count")
    assert not vouched.stateful and vouched.random and not vouched.profiled.fixed


def test_a_sample_leaves_state_and_shared_generators_as_they_are() -> None:
    count = counting()
    random.seed(1)
    np.random.seed(1)
    pipe = rows().map(count, on="x").map(lambda x: x + np.random.random() + random.random(), on="x")
    profile(pipe)
    drawn = (random.random(), np.random.random())
    random.seed(1)
    np.random.seed(1)
    assert drawn == (random.random(), np.random.random())
    assert count(0) == 1


# --- kinds, ranks, types -----------------------------------------------------------------------------------


def test_conversions_between_text_and_numbers_are_told() -> None:
    def parse(element: Element) -> Element:
        return {"x": element["x"], "number": int(element["path"].rpartition("-")[2])}

    def rename(element: Element) -> Element:
        return {**element, "name": element["path"].upper()}

    found = profile(rows().map(rename).map(parse).map(str, on="number", name="spell"))
    assert [op.changes_kind for op in found.ops] == [False, True, True]


def test_a_change_of_rank_is_told_also_under_another_name() -> None:
    def matrix(element: Element) -> Element:
        return {"matrix": element["x"].reshape(2, 4), "i": element["i"]}

    pipe = rows().map(lambda x: x[None], on="x", name="wider").map(lambda x: x[0, :4], on="x", name="narrower")
    found = profile(pipe.map(lambda x: x[:2], on="x", name="crop"))
    assert [op.changes_rank for op in found.ops] == [True, True, False]
    assert sampled(rows().map(matrix), "matrix").changes_rank


def test_a_cast_to_a_type_that_cpus_lack_is_told() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    pipe = rows().map(lambda x: x.astype(np.float16), on="x", name="half")
    pipe = pipe.map(lambda x: x.astype(ml_dtypes.bfloat16), on="x", name="brain").map(
        lambda x: x[:4], on="x", name="crop"
    )
    assert [op.custom_dtype_cast for op in profile(pipe).ops] == [False, True, False]


# --- stretches and joins -----------------------------------------------------------------------------------


def test_stretches_end_at_barriers_and_leave_out_operators_on_batches() -> None:
    left = rows().map(double, on="x", name="a").shuffle(4).map(double, on="x", name="b").map(keep, name="c")
    right = rows().map(double, on="x", name="d").batch(2).map(keep, name="on_batches").unbatch().map(keep, name="e")
    pipe = left.concat(right).map(keep, name="f").batch(2).map(keep, name="g")
    assert [one.names for one in stretches(pipe.plan)] == [("a",), ("b", "c"), ("d",), ("e",), ("f",)]
    assert [one.movable for one in stretches(rows().map(keep, keep_position=True).map(double, on="x").plan)] == [1]


def test_each_branch_of_a_join_is_sampled_by_itself() -> None:
    def half(x: Any) -> Any:
        return x[: len(x) // 2]

    left = rows().map(half, on="x").map(double, on="x")
    found = profile(left.concat(rows(10).map(half, on="x", name="right")).map(half, on="x", name="after").batch(4))
    assert [len(one.ops) for one in found.stretches] == [2, 1, 1]
    assert [one.elements for one in found.stretches] == [COUNT, 10, COUNT + 10]
    assert found["after"].bytes_in == sum(op.bytes_out for op in (found["double"], found["right"]))
    assert [op.fixed for op in found.profiled if op.fixed] == ["concat", "concat", "Batch is a barrier"]


def test_a_plan_is_rewritten_by_names() -> None:
    pipe = rows().map(double, on="x", name="a").map(keep, name="b").batch(2).concat(rows().map(keep, name="c").batch(2))
    plan = reordered(pipe.plan, {("a", "b"): ("b", "a")})
    assert [op.name for op in plan.all_ops()] == ["b", "a", "batch", "c", "batch_2"]
    assert {op.name: op for op in plan.all_ops()} == {op.name: op for op in pipe.plan.all_ops()}
    with pytest.raises(PlanError, match="each operator"):
        reordered(pipe.plan, {("a", "b"): ("a", "a")})
    assert isinstance(plan, Plan)
