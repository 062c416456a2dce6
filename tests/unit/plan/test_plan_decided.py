"""What is told from plans drawn at random, without running them, written down: a change to it shows what it changes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.behind import plan_behind
from pecan_ray.plan.columns_read import columns_read
from pecan_ray.plan.element_identity import identity_lost_at
from pecan_ray.plan.empty_pass import endless_behind, endless_passes
from pecan_ray.plan.exact_arrays import exact_array
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.in_step import shape_of_job
from pecan_ray.plan.op_sequences import element_runs, op_sequences, without_buffers
from pecan_ray.plan.operators import Op, Plan, Shuffle
from pecan_ray.plan.pass_dependent_choices import why_choices_move
from pecan_ray.plan.rounds import check_rounds_supported
from pecan_ray.plan.shape import PlanShape, kept_points, last_batching, num_batches, yields_batches
from pecan_ray.sources import Arrays, TextLines

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.plan.test_plan_decided` writes all anew."""
PYTHON, OTHER = get_args(EngineName)
"""Engines: plans are only described for them."""


def same(value: Any) -> Any:
    return value


def noisy(value: Any, rng: np.random.Generator) -> Any:
    return value


STEPS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("map", (same,), {}),
    ("map", (same,), {}),
    ("map", (noisy,), {"keep_position": True}),
    ("filter", (bool,), {}),
    ("flat_map", (list,), {}),
    ("shuffle", (9,), {}),
    ("shuffle", (9,), {"seed": 1}),
    ("shuffle", (9,), {"reshuffle": False}),
    ("take", (3,), {}),
    ("skip", (2,), {}),
    ("repeat", (2,), {}),
    ("repeat", (), {}),
    ("prefetch", (2,), {}),
    ("autocache", (), {}),
    ("pack", (4,), {"on": "x"}),
    ("batch", (2,), {}),
    ("batch", (2,), {}),
    ("batch", (4,), {"drop_remainder": True}),
    ("padded_batch", (2,), {}),
    ("unbatch", (), {}),
    ("unbatch", (), {"same_rows": True}),
    ("bucket_by_length", ([3],), {"sizes": 2, "length": "x"}),
    ("bucket_by_length", ([3],), {"sizes": 2, "length": "x"}),
    ("bucket_by_length", ([3],), {"sizes": 2, "length": "x"}),
    ("group_by", ("x", 2), {}),
]
JOINS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("zip", (), {}),
    ("zip", (), {}),
    ("concat", (), {}),
    ("mix", (), {"weights": [1, 1]}),
    ("mix", (), {"weights": [1, 0]}),
    ("mix", (), {"weights": [1, 1], "stop": "first"}),
]


def drawn(draw: random.Random, most: int, joins: float, column: str = "x") -> tuple[str, PecanPipeline]:
    """Draw a pipeline, and how it is written."""
    rows = draw.choice((5, 10, 10, 10, None))
    source = TextLines(__file__) if rows is None else Arrays({column: np.arange(rows)}, split_rows=4)
    return extended(draw, f"{rows or 'lines'}", PecanPipeline(source), most, joins)


def in_step(draw: random.Random) -> tuple[str, PecanPipeline]:
    """Draw a zip whose inputs may be read in step, with steps behind it."""
    first, second = draw.choice(((5, 10), (10, 10), (10, 5)))
    left, right = (PecanPipeline(Arrays(x=np.arange(rows), split_rows=4)).map(same) for rows in (first, second))
    return extended(draw, f"{first}.map(same).zip({second}.map(same))", left.zip(right), 2, 0.0)


def extended(draw: random.Random, text: str, pipe: PecanPipeline, most: int, joins: float) -> tuple[str, PecanPipeline]:
    """Draw the next steps of a pipeline; those that are refused are left out."""
    for _ in range(draw.randint(most // 2, most)):
        joined = draw.random() < joins
        kind, values, options = draw.choice(JOINS if joined else STEPS)
        given = [*(getattr(one, "__name__", str(one)) for one in values), *map(str, options.values())]
        if joined:
            other, right = drawn(draw, 2, joins / 2, "y" if kind == "zip" else "x")
            values, given = (right,), [other, *given]
        with suppress(PlanError):
            pipe = getattr(pipe, kind)(*values, **options)
            text = f"{text}.{kind}({', '.join(given)})"
    return text, pipe


def spelled(value: Any) -> str:
    return value.name if isinstance(value, Shuffle) else str(value)


def shape_of(plan: Plan, engine: str, on_error: str) -> str:
    """Spell how a job spreads a plan: all that is neither false nor empty."""
    shape: PlanShape = shape_of_job(plan, engine, on_error)
    values = {name: value for name, value in vars(shape).items() if name != "order"} | vars(shape.order)
    values["shuffled"] = ", ".join(map(spelled, shape.shuffled))
    return "; ".join(name if value is True else f"{name} {value}" for name, value in values.items() if value)


def plan(draw: random.Random) -> Iterator[str]:
    """Yield what is told from a plan."""
    text, pipe = drawn(draw, 5, 0.2) if draw.random() < 0.8 else in_step(draw)
    yield text
    one = pipe.plan
    engine, on_error = draw.choice((*[PYTHON] * 4, OTHER)), draw.choice((*["raise"] * 4, "skip"))
    yield f"with {engine}, on_error={on_error}: {shape_of(one, engine, on_error)}"
    yields = "batches" if yields_batches(one) else "elements"
    yield f"{num_batches(one)} {yields}, kept at {[*kept_points(one)]}, identity lost at '{identity_lost_at(one)}'"
    for outputs in (0, 3):
        if (behind := plan_behind(one, outputs)) is not None:
            left = [getattr(op, "count", op.name) for op in behind.plan.all_ops()]
            yield f"behind {outputs} of these: {behind.elements} elements, {left}"
    for run in element_runs(one):
        begins = "behind the source" if run.behind_source else "later"
        yield f"at {run.place}, {begins}: {names(run.ops)}"
    for stretch in op_sequences(one):
        yield f"{stretch.movable} of {', '.join(stretch.names)} may move behind {names(stretch.prefix.all_ops())}"
    if "shuffle" in text or "repeat" in text:
        shorter, later = without_buffers(one), endless_behind(one.ops)
        yield f"a look at it runs: {names(shorter.all_ops())}; repeats come last in: {names(later)}"
    if (passes := endless_passes(one)) is not None:
        yield f"{passes.at_first} at first: {passes.error(3)}"
    if moves := why_choices_move(one):
        yield moves
    if isinstance(last_batching(one), BucketByLength):
        yield rounds(one, engine, on_error)


def names(ops: Iterable[Op]) -> str:
    return " ".join(op.name for op in ops)


def rounds(plan: Plan, engine: str, on_error: str) -> str:
    """Say whether rounds can be made of a plan's batches."""
    try:
        check_rounds_supported(plan, engine, on_error=on_error)
        return "rounds can be made of it"
    except PlanError as error:
        return str(error)


def arrays(draw: random.Random) -> Iterator[str]:
    """Yield which arrays lists become."""
    kinds: list[list[Any]] = [
        [1, -5, 1 << 53, (1 << 53) + 1, (1 << 63) + 1, (1 << 64) - 1, 1 << 64],
        [1.5, 2, 1 << 53, (1 << 53) + 1],
        ["a", "b\0", "c", 3],
        [b"a", b"b\0", b"c"],
        [np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00:00:01", "s"), np.datetime64(1 << 62, "s")],
    ]
    for _ in range(12):
        value = draw.sample(draw.choice(kinds), draw.randint(2, 3))
        text = ", ".join(str(one) if isinstance(one, np.generic) else ascii(one) for one in value)
        try:
            array = exact_array(value)
            yield f"{text}: {array.dtype} {array.tolist()}"
        except OverflowError as error:
            yield f"{text}: {error}"


def functions(_: random.Random) -> Iterator[str]:
    """Yield which columns functions read, and nothing else, of their element."""
    reading: dict[str, Callable[..., Any]] = {
        "two columns": lambda element: element["b"] + element["a"] * element["b"],
        "a partial": functools.partial(lambda element, more: element["a"] + more, more=1),
        "a partial by place": functools.partial(lambda more, element: element["a"] + more, 1),
        "a method": Counting().counted,
        "the element itself": lambda element: (element["a"], element),
        "a column by its number": lambda element: element[0],
        "an element held by an inner function": lambda element: [lambda: element["a"]],
        "one that looks at variables": lambda element: (element["a"], locals()),
        "a generator": Counting.each,
        "one without an element": lambda: 1,
        "one that is not Python's": len,
    }
    yield from (f"{what}: {columns_read(fn)}" for what, fn in reading.items())


class Counting:
    """Reads columns of elements in methods."""

    def counted(self, element: Any) -> Any:
        return element["a"]

    @staticmethod
    def each(element: Any) -> Iterator[Any]:
        yield element["a"]


CASES = [*[plan] * 64, *[arrays] * 2, functions]


def decided(case: int) -> str:
    """Return what is told in a case."""
    return "\n".join((f"case {case}", *CASES[case](random.Random(case))))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_is_told_in_a_case_is_what_is_written_down(case: int) -> None:
    assert decided(case) == WRITTEN.read_text().strip().split("\n\n")[case]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, range(len(CASES)))) + "\n")
