"""Sequence packing: every token is in one row, and rows say whose it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sampling.packing import pack_rows
from pecan_ray.sources import Items, TextLines


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 16))
def test_every_token_is_in_exactly_one_row(lengths: list[int], row: int) -> None:
    rows = pack_rows(lengths, row)
    assert all(0 < sum(piece.tokens for piece in pieces) <= row for pieces in rows)
    found = sorted((p.sequence, at) for pieces in rows for p in pieces for at in range(p.start, p.stop))
    assert found == [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    assert all(min(row, length) in {p.tokens for pieces in rows for p in pieces} for length in lengths if length)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=60))
def test_no_two_rows_would_fit_into_one(lengths: list[int]) -> None:
    used = sorted(sum(piece.tokens for piece in pieces) for pieces in pack_rows(lengths, 16))
    assert len(used) == 1 or used[0] + used[1] > 16


def sequences(count: int = 200) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [[1000 * number + at for at in range(int(random.integers(0, 30)))] for number in range(count)]


def packed(pipe: PecanPipeline) -> dict[int, list[tuple[int, int]]]:
    """Run a pipeline; return the tokens of each sequence, with their places."""
    found: dict[int, list[tuple[int, int]]] = {}
    for batch in pipe.iter_batches(debug=True):
        assert batch["tokens"].shape[1:] == batch["segment"].shape[1:] == batch["position"].shape[1:] == (20,)
        assert (batch["tokens"][batch["segment"] == 0] == -1).all()
        for row, segments, places in zip(batch["tokens"], batch["segment"], batch["position"], strict=True):
            for segment in range(1, int(segments.max()) + 1):
                within = segments == segment
                (owner,) = {int(token) // 1000 for token in row[within]}
                found.setdefault(owner, []).extend(zip(row[within].tolist(), places[within].tolist(), strict=True))
    return found


@pytest.mark.parametrize("make", [list, np.asarray], ids=["lists", "arrays"])
def test_a_pipeline_packs_without_losing_a_token(make: Any) -> None:
    given = sequences()
    source = Items([{"tokens": make(one), "text": "left out"} for one in given])
    found = packed(PecanPipeline(source, name="p").pack(20, among=64, padding=-1).batch(8))
    assert {owner: sorted(tokens) for owner, tokens in found.items()} == {
        number: [(token, at) for at, token in enumerate(one)] for number, one in enumerate(given) if one
    }


def test_what_is_no_list_of_tokens_is_named() -> None:
    pipe = PecanPipeline(Items([{"tokens": [1]}, {"tokens": [0.5]}]), name="p").pack(4).batch(1)
    with pytest.raises(TypeError, match=r"pack\(on='tokens'\) needs a list of whole numbers, but got float64\[1\]"):
        pipe.peek()
    with pytest.raises(KeyError, match="there is no such column"):
        PecanPipeline(Items([{"ids": [1]}]), name="p").pack(4).peek()


def test_the_tensorflow_engine_refuses_it_by_name() -> None:
    with pytest.raises(PlanError, match="pack: the tensorflow engine has no pack"):
        PecanPipeline(TextLines("x.txt"), engine="tensorflow").pack(4)
    with pytest.raises(PlanError, match="pack needs a whole number >= 1, but got 0"):
        PecanPipeline(Items([1])).pack(0)
