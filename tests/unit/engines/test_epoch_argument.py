"""Functions with a parameter named epoch are given the number of the epoch in which their element is made."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import ElementOp, varies_by_pass, wants_epoch
from tests.unit.engines.engine_leases import column, run_engine, whole_leases

ROWS = 12


def pipe() -> pecan.PecanPipeline:
    """Elements 0 to 11."""
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS), split_rows=3), name="e")


def numbered(i: Any, epoch: int) -> int:
    """An element and its epoch."""
    return 100 * epoch + int(i)


def test_every_kind_of_function_is_given_it_and_a_pass_of_repeat_is_none() -> None:
    both = pipe().map(lambda i, rng, epoch: numbered(i, epoch) + 0 * rng.random(), on="i", name="both")
    chains = {
        "map": pipe().map(numbered, on="i").batch(5),
        "both": both.batch(5),
        "in processes": pipe().map(numbered, on="i", processes=True).batch(5),
        "flat_map": pipe().flat_map(lambda i, epoch: [numbered(i, epoch)], on="i").batch(5),
        "behind batch": pipe().batch(5).map(lambda batch, epoch: {"i": batch["i"] + 100 * epoch}, name="behind"),
        "collate": pipe().batch(5, collate=lambda rows, epoch: {"i": [numbered(one["i"], epoch) for one in rows]}),
    }
    for name, chain in chains.items():
        assert sorted(i for b in chain.iter_batches(debug=True, epochs=2, first_epoch=3) for i in b["i"]) == [
            *range(300, 300 + ROWS),
            *range(400, 400 + ROWS),
        ], name
        leases = whole_leases(list(chain.plan.sources()), epoch=7)
        assert sorted(column(run_engine(chain, leases), "i")) == [*range(700, 700 + ROWS)], name
    some = pipe().filter(lambda i, epoch: i >= epoch, on="i").repeat(2).batch(50)
    assert [len(batch["i"]) for batch in some.iter_batches(debug=True, epochs=2)] == [2 * ROWS, 2 * ROWS - 2]


def test_what_was_given_already_stays() -> None:
    bound = functools.partial(numbered, epoch=5)
    assert wants_epoch(numbered) and not wants_epoch(bound)
    (batch,) = pipe().map(bound, on="i", name="bound").batch(ROWS).iter_batches(debug=True, first_epoch=2)
    assert batch["i"][0] == 500


def test_nothing_is_kept_behind_it() -> None:
    later = pipe().map(numbered, on="i")
    (op,) = later.plan.ops
    assert isinstance(op, ElementOp) and varies_by_pass(op) and not varies_by_pass(replace(op, fn=len))
    with pytest.raises(
        PlanError, match=r"autocache: it stands behind numbered, which is given the number of the epoch"
    ):
        later.autocache()
    pipe().autocache().map(numbered, on="i")
    pipe().map(numbered, on="i", random=False).autocache()


def test_autoorder_leaves_it_where_it_is() -> None:
    chain = pipe().map(lambda e: {**e, "x": np.zeros((9, 9))}, name="large").map(numbered, on="i").batch(4)
    assert "numbered" in (text := chain.explain()) and "a sample shows the first epoch alone" in text
