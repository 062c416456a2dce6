"""Functions on batches whose columns come apart: a part of a column beside whole ones is an error, and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import OpError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import run_engine

ROWS = 40


def batches() -> PecanPipeline:
    rows = [{"i": row, "x": np.full(3, row), "text": str(row)} for row in range(ROWS)]
    return PecanPipeline(Items(rows, split_rows=ROWS)).batch(10)


def a_part_beside(batch: Any) -> Any:
    return {"i": batch["i"], "j": batch["i"][:3]}


def one_cut(batch: Any) -> Any:
    return {**batch, "x": batch["x"][batch["i"] % 2 == 0]}


def in_place(batch: Any) -> Any:
    batch["x"] = batch["x"][2:]
    return batch


def texts_cut(batch: Any) -> Any:
    return {**batch, "text": batch["text"][:4]}


@pytest.mark.parametrize("cut", [a_part_beside, one_cut, in_place, texts_cut])
def test_a_part_of_a_column_beside_whole_ones_is_refused_by_name(cut: Any) -> None:
    with pytest.raises(OpError, match=rf"^{cut.__name__} failed on element 0 .* the 10 of the batch: .* is a part of"):
        run_engine(batches().map(cut))
    with pytest.raises(ValueError, match=r"returned column '[jx]|text' with . rows"):
        list(run_inprocess(batches().map(cut).plan))


def packed(batch: Any) -> Any:
    return {
        "i": batch["i"],
        "tokens": batch["x"].reshape(-1),
        "cu_seqlens": np.arange(0, 31, 3),
        "longest": np.array([3]),
    }


def two_views(batch: Any) -> Any:
    return {"i": batch["i"], "x": np.concatenate([batch["x"], batch["x"]])}


def few_shots(batch: Any) -> Any:
    return {name: batch["x"][at] for name, at in (("support", slice(0, 3)), ("query", slice(3, None)))}


def fewer_rows(batch: Any) -> Any:
    return {name: column[batch["i"] % 3 == 0] for name, column in batch.items()}


def flattened(batch: Any) -> Any:
    return {"i": batch["i"], "text": np.array([text for text in batch["text"] if len(text) > 1][:2], object)}


def test_columns_of_their_own_lengths_are_the_users(caplog: pytest.LogCaptureFixture) -> None:
    for made in (packed, two_views, few_shots, fewer_rows):
        assert all(batch.rows for batch in run_engine(batches().map(made)))
    assert not caplog.records


def test_what_may_be_meant_is_warned_of_once_and_not_in_a_dict(caplog: pytest.LogCaptureFixture) -> None:
    def beside(batch: Any) -> Any:
        return {"i": batch["i"], "classes": np.arange(3), "extra": {"more": np.arange(4)}}

    run_engine(batches().map(beside, name="once"))
    (record,) = caplog.records
    assert "once: it returned column 'classes' with 3 rows, and 'i' with the 10" in record.getMessage()
    run_engine(batches().map(flattened))
    assert len(caplog.records) == 2
