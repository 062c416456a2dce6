"""What functions are given by the names of their parameters: a generator of random numbers, and the epoch."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import ElementOp, is_pass_dependent, wants_epoch, wants_rng
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import column, numbers, run_engine, whole_leases


def drawn(i: Any, rng: Any) -> float:
    return float(rng.random())


@functools.wraps(drawn)
def with_its_own(i: Any) -> float:
    return drawn(i, rng=np.random.default_rng(7))


@functools.wraps(drawn)
def passing_on(*args: Any, **keywords: Any) -> float:
    return drawn(*args, **keywords)


def bound() -> Any:
    return functools.partial(drawn, rng=np.random.default_rng(7))


def test_which_functions_are_given_a_generator() -> None:
    given: list[Any] = [drawn, passing_on, functools.partial(drawn, 1), functools.partial(passing_on, 1)]
    assert [wants_rng(function) for function in given] == [True] * len(given)
    left = [bound(), functools.partial(bound()), functools.partial(drawn, 1, 2), with_its_own, lambda i: drawn(i, 1)]
    assert [wants_rng(function) for function in [*left, len]] == [False] * 6


def test_the_users_generator_goes_on_from_element_to_element_in_another_process_too() -> None:
    mine = np.random.default_rng(7).random(3).tolist()
    pipe = PecanPipeline(Items([{"i": row} for row in range(3)], split_rows=3))
    for function, processes, wanted in ((bound(), False, mine), (bound(), True, mine), (with_its_own, False, mine[:1])):
        made = run_engine(pipe.map(function, on="i", processes=processes, name="draw").batch(3), order="strict")
        assert column(made, "i") == wanted * (3 // len(wanted))


ROWS = 12


def numbered(i: Any, epoch: int) -> int:
    return 100 * epoch + int(i)


def test_every_kind_of_function_is_given_it_and_a_pass_of_repeat_is_none() -> None:
    both = numbers(ROWS).map(lambda i, rng, epoch: numbered(i, epoch) + 0 * rng.random(), on="i", name="both")
    chains = {
        "map": numbers(ROWS).map(numbered, on="i").batch(5),
        "both": both.batch(5),
        "in processes": numbers(ROWS).map(numbered, on="i", processes=True).batch(5),
        "flat_map": numbers(ROWS).flat_map(lambda i, epoch: [numbered(i, epoch)], on="i").batch(5),
        "behind batch": numbers(ROWS).batch(5).map(lambda batch, epoch: {"i": batch["i"] + 100 * epoch}, name="behind"),
        "collate": numbers(ROWS).batch(
            5, collate=lambda rows, epoch: {"i": [numbered(one["i"], epoch) for one in rows]}
        ),
    }
    for name, chain in chains.items():
        assert sorted(i for b in chain.iter_batches(debug=True, epochs=2, first_epoch=3) for i in b["i"]) == [
            *range(300, 300 + ROWS),
            *range(400, 400 + ROWS),
        ], name
        leases = whole_leases(list(chain.plan.sources()), epoch=7)
        assert sorted(column(run_engine(chain, leases), "i")) == [*range(700, 700 + ROWS)], name
    some = numbers(ROWS).filter(lambda i, epoch: i >= epoch, on="i").repeat(2).batch(50)
    assert [len(batch["i"]) for batch in some.iter_batches(debug=True, epochs=2)] == [2 * ROWS, 2 * ROWS - 2]


def test_what_was_given_already_stays() -> None:
    bound = functools.partial(numbered, epoch=5)
    assert wants_epoch(numbered) and not wants_epoch(bound)
    (batch,) = numbers(ROWS).map(bound, on="i", name="bound").batch(ROWS).iter_batches(debug=True, first_epoch=2)
    assert batch["i"][0] == 500


def test_nothing_is_kept_behind_it() -> None:
    later = numbers(ROWS).map(numbered, on="i")
    (op,) = later.plan.ops
    assert isinstance(op, ElementOp) and is_pass_dependent(op) and not is_pass_dependent(replace(op, fn=len))
    with pytest.raises(
        PlanError, match=r"autocache: it stands behind numbered, which is given the number of the epoch"
    ):
        later.autocache()
    numbers(ROWS).autocache().map(numbered, on="i")
    numbers(ROWS).map(numbered, on="i", random=False).autocache()


def test_autoorder_leaves_it_where_it_is() -> None:
    chain = numbers(ROWS).map(lambda e: {**e, "x": np.zeros((9, 9))}, name="large").map(numbered, on="i").batch(4)
    assert "numbered" in (text := chain.explain()) and "a sample shows the first epoch alone" in text
