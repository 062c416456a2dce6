"""Batches that are packed of tokens, and arrays in what a function of the user's makes of a list of elements."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pecan_ray as pecan
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.nested_columns import extract_arrays, restore_arrays
from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sampling.packing import pack_rows
from pecan_ray.sources import Items
from tests.long_form import examples
from tests.unit.engines.engine_leases import ListedLeases, delivered, missing, run_engine, whole_leases


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 16))
def test_every_token_is_in_exactly_one_row_and_no_two_rows_would_fit_into_one(lengths: list[int], row: int) -> None:
    rows = pack_rows(lengths, row)
    used = sorted(sum(piece.tokens for piece in pieces) for pieces in rows)
    assert all(0 < tokens <= row for tokens in used)
    found = sorted((p.sequence, at) for pieces in rows for p in pieces for at in range(p.start, p.stop))
    assert found == [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    assert all(min(row, length) in {p.tokens for pieces in rows for p in pieces} for length in lengths if length)
    assert len(used) < 2 or max(lengths) > row or used[0] + used[1] > row


def pieces(element: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut a sequence into pieces, as a flat_map before packing does: none of an empty one."""
    tokens = element["tokens"]
    return [{"tokens": tokens[at : at + 13]} for at in range(0, len(tokens), 13)]


def tokens_of(produced: list[Produced]) -> list[int]:
    rows = [(batch.columns["tokens"], batch.columns["segment"] > 0) for batch in produced if batch.rows]
    return [int(token) for tokens, used in rows for token in tokens[used]]


BEFORE: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "elements": lambda pipe: pipe,
    "pieces": lambda pipe: pipe.flat_map(pieces),
    "rows of batches": lambda pipe: pipe.map(lambda e: {"tokens": [e["tokens"]]}).batch(5).unbatch().map(first_of),
    "shuffled": lambda pipe: pipe.shuffle(9),
}


def first_of(element: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": element["tokens"][0]}


@examples(100)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=40),
    st.sampled_from(sorted(BEFORE)),
    st.integers(1, 12),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_rest_of_a_group_is_packed_by_any_worker_and_no_token_is_lost_or_repeated(
    lengths: list[int], before: str, among: int, behind: bool, chance: Random
) -> None:
    """Three workers one after the other are lost, each with some of its batches delivered."""
    given = [{"tokens": [1000 * number + at for at in range(length)]} for number, length in enumerate(lengths)]
    pipe = BEFORE[before](PecanPipeline(Items(given, split_rows=7), name="p")).pack(20, among=among)
    pipe = (pipe.shuffle(5) if behind else pipe).batch(2)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    received = [one for one in run_engine(pipe, leases) if chance.random() < 0.5]
    for _ in range(2):
        received += [one for one in run_engine(pipe, missing(leases, received), threads=2) if chance.random() < 0.5]
    received += run_engine(pipe, missing(leases, received), order="strict")
    assert sorted(tokens_of(received)) == [token for one in given for token in one["tokens"]]
    assert delivered(received) == leases.target()


def test_rows_of_a_group_come_mixed_and_tell_where_their_segments_begin() -> None:
    given = [np.full(length, 1) for length in np.random.default_rng(0).integers(1, 60, 400)]
    elements = [{"tokens": one, "mask": one, "bounds": np.arange(4)} for one in given]
    pipe = PecanPipeline(Items(elements), name="p").pack(64, among=400, along={}).batch(1000)
    (batch,) = pipe.iter_batches(debug=True)
    many = batch["segment"].max(axis=1) > 2
    third = len(many) // 3
    assert many[:third].mean() > many[-third:].mean() / 2, "rows do not run from long sequences to short ones"
    assert batch["position"].max() < 64
    bounds = pecan.cu_seqlens(batch["segment"])
    lengths, padding = np.diff(bounds), (batch["segment"] == 0).any(axis=1).sum()
    assert bounds.dtype == np.int32 and bounds[0] == 0 and bounds[-1] == batch["segment"].size
    assert len(lengths) == len(given) + padding
    assert pecan.cu_seqlens(np.array([1, 1, 2, 0])).tolist() == [0, 2, 3, 4]
    for wrong in (np.ones(3), np.ones((2, 2, 2), int)):
        with pytest.raises(PlanError, match='cu_seqlens needs the column "segment"'):
            pecan.cu_seqlens(wrong)


def test_arrays_in_containers_are_columns_of_their_own_on_the_way() -> None:
    large, small = np.arange(2000.0), np.arange(3)
    batch = {"a": [large, (small, {"b": large + 1})], "c": large, "d": [], "e": "text"}
    flat = extract_arrays(batch)
    assert sum(type(column) is np.ndarray for column in flat.values()) == 3
    back = restore_arrays(flat)
    assert list(back) == list(batch) and back["a"][0] is large and back["a"][1][0] is small
    assert np.array_equal(back["a"][1][1]["b"], large + 1) and restore_arrays(back) is back
