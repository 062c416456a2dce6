"""Operators that are left to the trainer: which they may be, and that the trainer gives the bits that workers give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import Unfinished
from pecan_ray.engines.python.channel_arithmetic import PerChannelFunction
from pecan_ray.engines.python.deferral import Deferral, Finisher, deferrable_ops
from pecan_ray.errors import ClusterError
from pecan_ray.placement.cut import LinkCosts, choose_cut
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.operators import Map

MEANS, DEVIATIONS = np.array([0.4, 0.5, 0.6], np.float32), np.array([0.2, 0.25, 0.3], np.float32)
always = functools.partial(choose_cut, link=LinkCosts(), always=True)
seen: list[Any] = []


def fails_on_large(x: Any) -> Any:
    if (x > 200).any():
        raise ValueError("too large")
    return x.astype(np.float32)


def counts_calls(x: Any) -> Any:
    seen.append(1)
    return x.astype(np.float32)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "to_float": lambda x: x.astype(np.float32),
    "scaled": lambda x: x.astype(np.float32) / 255,
    "normalize": lambda x: (x - MEANS) / DEVIATIONS,
    "signed": lambda x: np.where(x > 127, x.astype(np.float64) - 256.0, x) * 0.1,
    "tenth": functools.partial(np.multiply, 0.1),
    "narrow": lambda x: x.astype(np.uint8),
    "by_value": lambda x: x.astype(np.float32) if x.max() > 100 else x.astype(np.float64),
    "fails_on_large": fails_on_large,
    "mean_free": lambda x: x.astype(np.float32) - x.mean(),
    "logarithm": lambda x: np.log(x.astype(np.float32) + 1),
    "counts_calls": counts_calls,
    "noise": lambda x, rng: x + rng.random(x.shape),
    "flat": lambda x: x.reshape(-1).astype(np.float32),
    "by_shape": lambda x: x.astype(np.float32) if x.shape[0] < 10 else x.astype(np.float32) + x.min(),
}
"""Of what a user does to a column `x`; they have these names in pipelines."""


def rows_before_batch(*names: str, **options: Any) -> pecan.PecanPipeline:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.zeros((4, 6, 5, 3), np.uint8), y=np.arange(4)))
    for name in names:
        pipe = pipe.map(FUNCTIONS[name], on="x", name=name, **options)
    return pipe.batch(2)


def chains(pipe: pecan.PecanPipeline) -> dict[str, list[str]]:
    found = deferrable_ops(pipe.plan, describe_plan(pipe.plan))
    return {column: [op.name for op in ops] for column, ops in found.items()}


def deferral(pipe: pecan.PecanPipeline) -> tuple[Deferral, list[Callable[[Any], Any]]]:
    """Return what leaves all that it may of maps of `x`, and the functions that its worker runs."""
    made = Deferral(deferrable_ops(pipe.plan, describe_plan(pipe.plan)), always)
    return made, [op.fn for op in made.guarded(pipe.plan).ops if hasattr(op, "fn")]


def ran(functions: list[Callable[[Any], Any]], value: Any) -> Any:
    for fn in functions:
        value = fn(value)
    return value


def images(count: int, *shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(count).integers(0, 255, (count, *shape)).astype(dtype)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("scaled",), images(9, 8, 8, 3)),
        (("scaled", "normalize"), images(40, 64, 64, 3)),
        (("to_float",), images(3, 5, dtype=np.int16)),
        (("signed",), images(7, 4, 4, 4)),
        (("scaled", "normalize"), images(5, 6, 5, 3)[:, ::-1]),
        (("tenth",), images(6, 11)),
    ],
)
def test_the_trainer_makes_of_a_batch_what_a_worker_makes_of_each_row(names: Any, rows: Any) -> None:
    pipe = rows_before_batch(*names)
    made, guards = deferral(pipe)
    handed_on = [ran(guards, row) for row in rows]
    assert all(one is row for one, row in zip(handed_on, rows, strict=False)) or np.array_equal(handed_on, rows)
    batch = {"y": np.arange(len(rows)), "x": np.stack(handed_on)}
    left, notes = made.unfinished(batch), list[str]()
    assert left is not None and left.ops == names and not made.refused
    finisher = Finisher(pipe.plan)
    for _ in range(2):
        done = finisher.finish(left, batch, notes.append)
    one_by_one = np.stack([ran([FUNCTIONS[name] for name in names], row) for row in rows])
    assert list(done) == ["y", "x"] and done["x"].dtype == one_by_one.dtype
    assert done["x"].tobytes() == one_by_one.tobytes()
    assert len(notes) == 1 and "run where batches arrive" in notes[0]


@pytest.mark.parametrize("name", ["by_value", "fails_on_large", "mean_free", "logarithm", "flat"])
def test_a_function_that_looks_at_values_or_at_more_than_one_number_runs_on_the_worker(name: str) -> None:
    made, guards = deferral(rows_before_batch(name))
    for row in images(3, 6, 5, 3) // 2:
        assert np.array_equal(ran(guards, row), FUNCTIONS[name](row))
    assert not made.active and made.unfinished({"x": np.zeros(1)}) is None


def test_only_what_stands_last_and_is_plain_may_be_left() -> None:
    plain = rows_before_batch("scaled")
    before = pecan.PecanPipeline(pecan.sources.Arrays(x=np.zeros((4, 3), np.uint8), y=np.arange(4))).map(
        FUNCTIONS["scaled"], on="x", name="scaled"
    )
    left: list[tuple[pecan.PecanPipeline, list[str]]] = [
        (rows_before_batch("scaled", "normalize"), ["scaled", "normalize"]),
        (rows_before_batch("scaled", "counts_calls", "normalize"), ["normalize"]),
        (rows_before_batch("noise"), []),
        (rows_before_batch("scaled", random=True), []),
        (rows_before_batch("scaled", processes=True), []),
        (plain.map(lambda batch: batch, name="on batches"), []),
        (plain.prefetch(2), ["scaled"]),
        (before.shuffle(4).map(str, on="y").repeat(2).batch(2), ["scaled"]),
        (before.filter(lambda y: y > 1, on="y").batch(2), ["scaled"]),
        (before.filter(lambda x: x[0] > 1, on="x").batch(2), []),
        (before.map(lambda element: element, name="whole").batch(2), []),
        (before.padded_batch(2), []),
        (before, []),
    ]
    for pipe, names in left:
        assert chains(pipe).get("x", []) == names
    assert deferrable_ops(plain.plan, describe_plan(rows_before_batch("to_float").plan)) == {}, "unknown to the trainer"
    by_rows = replace(
        plain.plan, ops=(Map(name="scaled", fn=PerChannelFunction(FUNCTIONS["scaled"]), on="x"), plain.plan.ops[1])
    )
    assert [one.name for one in deferrable_ops(by_rows, describe_plan(plain.plan))["x"]] == ["scaled"]


def test_another_dtype_is_refused_and_another_shape_is_proved_anew() -> None:
    made, guards = deferral(rows_before_batch("scaled", "normalize"))
    assert ran(guards, images(1, 6, 5, 3)[0]).dtype == ran(guards, images(1, 9, 9, 3)[0]).dtype == np.uint8
    assert not made.refused
    other = images(1, 6, 5, 3, dtype=np.uint16)[0]
    assert np.array_equal(ran(guards, other), ran([FUNCTIONS["scaled"], FUNCTIONS["normalize"]], other))
    assert "scaled, normalize were left to the trainer, but a value is uint16[6, 5, 3], where uint8" in made.refused
    made, guards = deferral(rows_before_batch("by_shape"))
    assert ran(guards, images(1, 6, 5)[0]).dtype == np.uint8 and not made.refused
    assert ran(guards, images(1, 12, 5)[0]).dtype == np.float32
    assert "by_shape does not do the same to values of shape [12, 5]" in made.refused


def test_an_element_that_fails_decides_nothing_and_fails_in_its_own_operator() -> None:
    made, guards = deferral(rows_before_batch("fails_on_large", "scaled"))
    with pytest.raises(ValueError, match="too large"):
        ran(guards, np.full((6, 5, 3), 255, np.uint8))
    good = images(1, 6, 5, 3)[0] // 2
    assert np.array_equal(ran(guards, good), FUNCTIONS["scaled"](fails_on_large(good))) and not made.active
    with pytest.raises(ValueError, match="too large"):
        ran(guards, np.full((6, 5, 3), 255, np.uint8))


def test_the_cut_may_lie_between_the_operators() -> None:
    made, guards = deferral(rows_before_batch("narrow", "to_float"))
    rows = images(4, 6, 5, dtype=np.int32)
    handed_on = np.stack([ran(guards, row) for row in rows])
    assert handed_on.dtype == np.uint8
    assert (left := made.unfinished({"x": handed_on})) is not None and left.ops == ("to_float",)


def test_a_trainer_that_cannot_do_what_was_left_to_it_says_what_to_do() -> None:
    with pytest.raises(ClusterError, match=r'mean_free cannot be run .* Config\(split_pipeline="off"\)'):
        Finisher(rows_before_batch("mean_free").plan).finish(
            Unfinished(("mean_free",), "why"), {"x": images(2, 3)}, seen.append
        )
