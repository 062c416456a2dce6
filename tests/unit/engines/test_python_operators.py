"""What operators of the python engine promise of any data: ranks, draws, pixels; `python_outcomes.txt` has examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.python.channel_arithmetic import PerChannelFunction, is_channel_arithmetic
from pecan_ray.engines.python.rows import RowsColumn
from pecan_ray.plan.grouping import Tail
from pecan_ray.plan.operators import Map
from pecan_ray.plan.splits import Lease
from tests.unit.engines.engine_leases import ListedLeases, column, numbers, run_engine, whole_leases
from tests.unit.engines.operator_cases import few, keyed


def test_take_leaves_nothing_open() -> None:
    pipe = numbers(100).take(5)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases)
    assert leases.take() is None, "all leases must be taken"
    assert {key for batch in produced for key in batch.spans} == {lease.key for lease in leases.given}


def test_mix_draws_in_proportion_to_the_weights_and_anew_in_each_epoch() -> None:
    pipe = few(300).mix(few(300).map(lambda i: i + 1000, on="i"), weights=[3, 1]).batch(600)
    leases = [whole_leases(tuple(pipe.plan.sources()), epoch=epoch) for epoch in range(2)]
    first, second = (column(run_engine(pipe, some, order="strict")) for some in leases)
    assert 0.6 < sum(i < 1000 for i in first[:300]) / 300 < 0.9
    assert [i for i in first if i < 1000] == list(range(300)), "each pipeline keeps its order"
    assert first != second and sorted(first) == sorted(second)


MEANS = np.array([123.68, 116.78, 103.94], np.float32)
DEVIATIONS = np.array([58.39, 57.12, 57.38])
ONE_MEAN = np.array([[[120.0]]])
SEEN: list[Any] = []


KNOWN: dict[str, Callable[[Any], Any]] = {
    "normalize": lambda image: (image.astype(np.float32) - MEANS) / DEVIATIONS,
    "clip": lambda image: np.clip((image - ONE_MEAN) * np.float32(2) - np.array([0.485, 0.456, 0.406]), -1, 1),
    "where": lambda image: np.where(image > MEANS, image, 0),
}
NO_ARITHMETIC: dict[str, Callable[[Any], Any]] = {
    "mean of an image": lambda image: image - MEANS - image.mean(),
    "swapped": lambda image: (image - MEANS)[..., ::-1],
}
"""What looks like it until it is run."""


def remembered(image: Any) -> Any:
    SEEN.append(image)
    return image - MEANS


OTHERS: list[Callable[..., Any]] = [
    lambda image: image.astype(np.float32),
    remembered,
    lambda image: next(iter(SEEN), None) or image - MEANS,
    lambda image, rng: image - MEANS,
    abs,
]


@pytest.mark.parametrize("name", [*KNOWN, *NO_ARITHMETIC])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_an_image_becomes_what_the_function_makes_of_it(name: str, dtype: Any) -> None:
    fn = {**KNOWN, **NO_ARITHMETIC}[name]
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3)).astype(dtype)
    by_rows = PerChannelFunction(fn)
    for given in (image, image[:, ::-1], image[::2, 5:], image[:4, :4]):
        made, expected = by_rows(given.copy()), fn(given.copy())
        assert made.dtype == expected.dtype and made.tobytes() == expected.tobytes()


def test_functions_are_known_by_what_they_name_and_asked_once() -> None:
    def is_known(fn: Callable[..., Any]) -> bool:
        return is_channel_arithmetic(Map(name="fn", fn=fn, on="image"))

    means = MEANS
    known = [*KNOWN.values(), lambda image: image - means]
    assert [is_known(fn) for fn in (*known, *OTHERS)] == [True] * len(known) + [False] * len(OTHERS)
    for fn in NO_ARITHMETIC.values():
        calls: list[bool] = []

        def counted(image: Any, fn: Any = fn, calls: list[bool] = calls) -> Any:
            calls.append(issubclass(type(image), RowsColumn))
            return fn(image)

        by_rows = PerChannelFunction(counted)
        for _ in range(3):
            by_rows(np.zeros((96, 96, 3), np.uint8))
        assert calls == [True, False, False, False]
    with pytest.raises(ValueError, match=r"operands could not be broadcast .*\(64,96,4\)"):
        PerChannelFunction(KNOWN["normalize"])(np.zeros((64, 96, 4), np.float32))


@pytest.mark.parametrize("tail", ["keep", "fill", "merge", "drop"])
def test_the_end_of_an_epoch_gives_each_rank_equally_many_batches(tail: Tail) -> None:
    for rows, ranks in ((53, 2), (53, 3), (48, 5), (4, 3), (2, 3)):
        pipe = keyed(rows, tail=tail)
        leases = [Lease(0, one.split, one.spans, passed=True) for one in whole_leases(tuple(pipe.plan.sources()))]
        produced = run_engine(pipe, leases, tail_ranks=ranks, order="strict")
        used = [one for one in produced if one.rank is not None]
        assert [one.rank for one in used] == list(range(ranks)) * (len(used) // ranks)
        assert all(one.partial for one in produced if one.rank is None and one.rows), "what no rank gets"
        left_out = rows - len(set(column(used, "i")))
        assert left_out < (4 * ranks + 9 if tail == "drop" else ranks)
        assert tail == "fill" or max(Counter(column(used, "i")).values(), default=1) == 1
        assert tail not in ("fill", "drop") or set(map(len, (batch.columns["i"] for batch in used))) <= {4}
        assert sum(one.rows for one in used) == rows - left_out, "rows that repeat others count as no elements"
    ordinary = run_engine(keyed(53, tail=tail), tail_ranks=2, order="strict")
    assert {one.rank for one in ordinary if not one.partial} == {None}, "before that whoever has room gets a batch"
