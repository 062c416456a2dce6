"""The sample: what it measures of each operator, and that it disturbs nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from examples import image_ops
from examples.photographs import derived_photographs
from pecan_ray.autoorder import OpSample, SampleProfile
from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.facts import HOLDS_STATE
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.op_tally import curve_points
from pecan_ray.autoorder.sample import sample_stretch
from pecan_ray.autoorder.stopwatch import ProcessStopwatch, Stopwatch
from pecan_ray.engines.counting import column_bytes, element_bytes
from pecan_ray.errors import ColumnError, OpError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import Element, Split
from pecan_ray.plan.stretches import reordered, stretches
from pecan_ray.reorder import NEUTRAL_BAND, auto_order

ROOT = Path(__file__).resolve().parents[2]
COUNT = 40


def rows(count: int = COUNT, **options: Any) -> pecan.PecanPipeline:
    items = [{"i": np.int64(n), "x": np.full(8, n, np.float32), "path": f"file-{n}"} for n in range(count)]
    return pecan.PecanPipeline(pecan.sources.Items(items, split_rows=1000), name="rows", **options)


def profile(pipe: pecan.PecanPipeline, elements: int = 300, seconds: float = 20.0) -> SampleProfile:
    return pecan.sample_profile(pipe, elements, seconds)


def sampled(pipe: pecan.PecanPipeline, name: str) -> OpSample:
    return profile(pipe)[name]


def touched(op: OpSample) -> tuple[list[str], list[str], list[str], list[str]]:
    """Columns that an operator reads, writes, creates and drops."""
    return sorted(op.reads), sorted(op.writes), sorted(op.creates), sorted(op.drops)


def double(x: Any) -> Any:
    return x * 2


def keep(element: Element) -> Element:
    return element


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
    order = auto_order(found.profiled, "paper", neutral_band=NEUTRAL_BAND).order
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


def test_a_column_that_is_asked_for_and_missing_counts_as_read() -> None:
    def look(element: Element) -> Element:
        return {**element, "y": element.get("mask", 0)}

    assert "mask" in sampled(rows().map(look), "look").reads


def test_a_function_of_one_column_reads_and_writes_that_one() -> None:
    found = sampled(rows().map(double, on="x"), "double")
    assert touched(found) == (["x"], ["x"], [], [])


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


# --- bounds and bad input ----------------------------------------------------------------------------------


def test_an_empty_source_gives_no_factors_and_a_note() -> None:
    found = profile(pecan.PecanPipeline(pecan.sources.Items([])).map(keep).map(double, on="x").batch(2))
    assert found.elements == 0 and "no element" in found.notes[0]
    assert auto_order(found.profiled, "paper").order == ("keep", "double", "batch")
    assert all("not reached" in op.profiled.fixed for op in found.ops)


def test_a_source_that_is_shorter_than_asked_is_measured_with_a_note() -> None:
    found = profile(rows(5).map(double, on="x"), elements=100)
    assert found.elements == 5 and found["double"].inflation == 1.0
    assert "5 of 100" in found.notes[0]
    assert profile(rows(5).map(double, on="x"), elements=5).notes == ()


def test_a_filter_that_lets_nothing_through_leaves_what_follows_unmeasured() -> None:
    found = profile(rows().filter(lambda i: i < 0, on="i", name="none").map(double, on="x"))
    assert not found["none"].measured and not found["double"].measured
    assert not found.stretches[0].complete


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_an_error_names_operator_and_element(engine: EngineName) -> None:
    def pick(x: Any) -> Any:
        if engine == "python":
            return [1, 2, 3][int(x[0])]
        import tensorflow as tf

        return tf.gather(tf.constant([1, 2, 3]), tf.cast(x[0], tf.int32))

    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    with pytest.raises(OpError, match="pick failed on element 2 of split 0") as caught:
        profile(rows(engine=engine).map(double, on="x", name="first").map(pick, on="x"))
    assert caught.value.op == "pick" and caught.value.element == 2


def test_a_wrong_column_name_is_told_at_once() -> None:
    with pytest.raises(ColumnError, match="there is no column 'image'"):
        profile(rows().map(double, on="image"))


def test_slow_operators_end_the_sample_in_time() -> None:
    now = 0.0

    def slow(x: Any) -> Any:
        nonlocal now
        now += 0.05
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return x

    (stretch,) = stretches(rows(300).map(slow, on="x").map(double, on="x").plan)
    sampled = sample_stretch(stretch, "python", 0, SampleLimits(300, deadline=0.5), clock=lambda: now)
    found = sampled.profile()
    assert 0.5 <= now < 0.7, "an operator that runs is not interrupted, and is watched by running it again"
    assert 0 < found.elements < 300 and "the time was over" in found.notes[0]
    assert found.ops[0].seconds is not None and found.ops[0].seconds > 0.004


@dataclass(frozen=True)
class Slow:
    """A source whose elements take their time."""

    clock: list[float]

    def splits(self) -> Iterator[Split]:
        yield Split(0)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for number in range(start, 10_000):
            self.clock[0] += 0.02
            yield {"x": np.full(4, number)}

    def num_elements(self) -> int | None:
        return None

    def identity(self) -> str:
        return "slow"


def test_a_slow_source_leaves_time_for_the_operators() -> None:
    clock = [0.0]
    (stretch,) = stretches(pecan.PecanPipeline(Slow(clock)).map(double, on="x").plan)
    found = sample_stretch(stretch, "python", 0, SampleLimits(300, deadline=0.6), clock=lambda: clock[0]).profile()
    assert 0 < found.elements < 60 and "reading took the time" in found.notes[0]
    assert found.ops[0].elements_in == found.elements


def test_the_bytes_that_are_held_are_bounded() -> None:
    pipe = rows(100).map(double, on="x")
    (stretch,) = stretches(pipe.plan)
    limits = SampleLimits(elements=100, bytes=10 * 47)
    found = sample_stretch(stretch, "python", 0, limits).profile()
    assert 9 <= found.elements <= 12 and "they fill" in found.notes[0]


@pytest.mark.parametrize(("elements", "seconds"), [(0, 1.0), (-1, 1.0), (10, 0.0), (True, 1.0)])
def test_bounds_that_make_no_sense_are_refused(elements: int, seconds: float) -> None:
    with pytest.raises(PlanError, match="a sample needs"):
        profile(rows().map(double, on="x"), elements, seconds)


def test_a_shuffle_is_not_filled_for_a_sample() -> None:
    clock = [0.0]
    pipe = pecan.PecanPipeline(Slow(clock)).shuffle(50_000).map(double, on="x")
    found = profile(pipe, elements=5, seconds=30.0)
    assert found.elements == 5 and clock[0] < 50 * 0.02


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
    barriers = [op.fixed for op in found.profiled if op.fixed]
    assert barriers == ["concat", "concat", "Batch is a barrier"]


def test_a_plan_is_rewritten_by_names() -> None:
    pipe = rows().map(double, on="x", name="a").map(keep, name="b").batch(2).concat(rows().map(keep, name="c").batch(2))
    plan = reordered(pipe.plan, {("a", "b"): ("b", "a")})
    assert [op.name for op in plan.all_ops()] == ["b", "a", "batch", "c", "batch_2"]
    assert {op.name: op for op in plan.all_ops()} == {op.name: op for op in pipe.plan.all_ops()}
    with pytest.raises(PlanError, match="each operator"):
        reordered(pipe.plan, {("a", "b"): ("a", "a")})
    assert isinstance(plan, Plan)


# --- the tensorflow engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tensor_profile() -> SampleProfile:
    """What was measured of operators of the tensorflow engine, in this process."""
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

    pipe = rows(engine="tensorflow").map(hidden).map(declared, on="x").map(undeclared, on="x")
    pipe = pipe.filter(lambda i: i % 2 == 0, on="i", name="even").flat_map(
        lambda x: tf.stack([x, x, x]), on="x", name="thrice"
    )
    return profile(pipe.map(lambda x: x[:2], on="x", name="crop").map(label).map(cast, on="x").batch(4))


def test_graphs_tell_what_they_read_write_create_and_drop(tensor_profile: SampleProfile) -> None:
    found = tensor_profile
    assert touched(found["hidden"]) == (["x"], [], ["mask"], [])
    assert touched(found["crop"]) == (["x"], ["x"], [], [])
    assert touched(found["label"]) == (["path", "x"], [], ["label"], ["i", "mask", "path"])


def test_graphs_have_factors_kinds_and_types(tensor_profile: SampleProfile) -> None:
    found = tensor_profile
    assert found.elements == COUNT and found.notes
    assert found["even"].profiled.elements == 0.5 and found["thrice"].profiled.elements == 3
    assert found["crop"].bytes_in - found["crop"].bytes_out == 3 * COUNT // 2 * 6 * 4
    assert [op.name for op in found.ops if op.changes_kind] == ["label"]
    assert [op.name for op in found.ops if op.custom_dtype_cast] == ["cast"]
    assert not any(op.changes_rank for op in found.ops)


def test_graphs_tell_whether_they_are_random(tensor_profile: SampleProfile) -> None:
    random_ops = {op.name for op in tensor_profile.ops if op.random}
    assert random_ops == {"declared", "undeclared"}
    assert not any(op.stateful for op in tensor_profile.ops)


# --- parts -------------------------------------------------------------------------------------------------


def test_noise_never_makes_more_bytes_cheaper() -> None:
    usual = [(100.0, 2.0)] * 16 + [(300.0, 1.0)] * 16 + [(900.0, 5.0)] * 16
    assert curve_points(usual) == ((100.0, 1.5), (300.0, 1.5), (900.0, 5.0))
    assert curve_points(usual, [(50.0, 0.5)] * 16)[0] == (50.0, 0.5)


def test_elements_of_nearly_one_size_tell_no_slope() -> None:
    assert len(curve_points([(100.0 + n, float(n)) for n in range(64)])) == 1


def test_a_spec_says_what_differs() -> None:
    mine, other = ElementSpec(), ElementSpec()
    for side in (3, 4):
        mine.add({"x": np.zeros((side, 2), np.float32), "name": "a"})
    other.add({"x": np.zeros((5, 2), np.float32), "name": "b"})
    assert mine.difference(other) == ""
    for element, said in (
        ({"x": np.zeros((3, 2), np.float64), "name": "a"}, "dtype is float64 instead of float32"),
        ({"x": np.zeros((3, 3), np.float32), "name": "a"}, r"shape is [3, 3] instead of [?, 2]"),
        ({"x": np.zeros(3, np.float32), "name": "a"}, "1 dimensions instead of 2"),
        ({"x": np.zeros((3, 2), np.float32)}, "lacks 'name'"),
        ({"x": np.zeros((3, 2), np.float32), "name": b"a"}, "dtype is bytes instead of str"),
    ):
        found = ElementSpec()
        found.add(element)
        assert said in mine.difference(found)


def test_equality_is_of_type_and_content() -> None:
    nan = np.array([np.nan, 1.0])
    assert equal({"a": nan, "b": ["x", b"y"]}, {"a": nan.copy(), "b": ["x", b"y"]})
    assert not equal(np.zeros(2, np.float32), np.zeros(2, np.float64))
    assert not equal({"a": 1}, {"a": 1, "b": 2})
    assert not equal([np.zeros(2)], [np.ones(2)])


@pytest.mark.parametrize("stopwatch", [Stopwatch(), ProcessStopwatch()])
def test_a_stopwatch_counts_work_and_waiting(stopwatch: Stopwatch | ProcessStopwatch) -> None:
    stopwatch.start()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert stopwatch.stop() >= 0.019
    stopwatch.start()
    threading.Event().wait(0.03)
    assert stopwatch.stop() >= 0.02


def test_a_call_apart_returns_and_raises_what_the_function_does() -> None:
    def fail(text: str) -> None:
        raise OpError(text, op="f", element=3)

    assert call_in_subprocess(sorted, [3, 1, 2], engine="python", seconds=10) == [1, 2, 3]
    with pytest.raises(OpError, match="nobody home") as caught:
        call_in_subprocess(fail, "nobody home", engine="python", seconds=10)
    assert caught.value.element == 3


WITHOUT_TENSORFLOW = """
import sys
import numpy as np
import pecan_ray as pecan

def crop(x):
    import tensorflow as tf
    return tf.identity(x[:4])

def double(x):
    return x + x

source = pecan.sources.Items([{"x": np.ones(4000, np.float32)}] * 20)
pipe = pecan.PecanPipeline(source, engine="tensorflow").map(double, on="x").map(crop, on="x")
profile = pecan.sample_profile(pipe, 20)
print(profile["crop"].inflation, profile["crop"].op.fn is crop, "tensorflow" in sys.modules)
"""


def test_a_trainer_without_tensorflow_stays_without_it() -> None:
    pytest.importorskip("tensorflow")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW], capture_output=True, text=True, timeout=200, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.001", "True", "False"]
