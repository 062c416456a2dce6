"""Rows of several blocks become one batch."""

from __future__ import annotations

import numpy as np
import pytest

from pecan_ray.errors import BatchShapeError
from pecan_ray.transport.joining import joined


def block(first: int) -> dict[str, object]:
    rows = np.arange(first, first + 4)
    text = np.array([f"row {row}" for row in rows], object)
    return {
        "x": rows,
        "image": np.repeat(rows[:, None], 3, 1).astype(np.float32),
        "text": text,
        "nested": {"a": (rows, text)},
    }


def test_rows_of_all_kinds_of_columns_are_joined_in_order() -> None:
    batch = joined([(block(0), 2, 4), (block(4), 0, 4), (block(8), 0, 1)])
    assert batch["x"].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert batch["image"].dtype == np.float32 and batch["image"].tolist() == [[row] * 3 for row in range(2, 9)]
    assert batch["text"].tolist() == [f"row {row}" for row in range(2, 9)]
    numbers, texts = batch["nested"]["a"]
    assert numbers.tolist() == batch["x"].tolist() and texts.tolist() == batch["text"].tolist()


def test_rows_of_one_block_are_not_copied() -> None:
    whole = block(0)
    batch = joined([(whole, 1, 3)])
    assert batch["x"].tolist() == [1, 2]
    assert np.shares_memory(batch["x"], whole["x"]) and np.shares_memory(batch["nested"]["a"][0], whole["x"])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"x": np.zeros(2, np.float64)}, r"column 'x' of some elements is float64\[\], but .* int64\[\]"),
        ({"x": np.zeros((2, 3), np.int64)}, r"int64\[3\]"),
        ({"x": np.array(["a", "b"], object)}, r"text\[\]"),
        ({"x": {"a": np.zeros(2)}}, "a dict"),
        ({"y": np.zeros(2, np.int64)}, r"have the columns \['y'\], but others"),
    ],
)
def test_rows_that_do_not_go_together_are_named(other: dict[str, object], said: str) -> None:
    with pytest.raises(BatchShapeError, match=said):
        joined([({"x": np.arange(2)}, 0, 2), (other, 0, 1)])
