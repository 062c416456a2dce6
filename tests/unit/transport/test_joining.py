"""Rows of several blocks become one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.collate import collate
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.nested import BatchRows, finished
from pecan_ray.engines.row_types import split_by_kind
from pecan_ray.errors import BatchShapeError
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.transport.joining import UnequalRowsError, joined
from tests.long_form import examples
from tests.source_contract import same

NUMBER = st.sampled_from([1, 2, 0.5, True, np.float32(2), np.int64(3), 1 << 70])
TEXT = st.sampled_from(["a", "long", b"b", None, np.str_("c")])
NUMBERS = [np.zeros(2), np.zeros(3), np.zeros((2, 2)), np.ones(2, np.int64), np.zeros(0)]
ARRAY = st.sampled_from([*NUMBERS, np.array(["a", "bcd"]), np.array(["e"])])
LEAF = NUMBER | TEXT | ARRAY
LISTS = [st.lists(one, min_size=2, max_size=2) for one in (NUMBER, TEXT, LEAF)]
COLUMN = st.sampled_from(
    [LEAF, *LISTS, ARRAY, TEXT, st.fixed_dictionaries({"a": LISTS[1], "b": TEXT}), NUMBER | LISTS[0]]
)
ROWS = COLUMN.flatmap(lambda values: st.lists(values, min_size=2, max_size=5))


def test_some_rows_of_several_blocks_are_joined_in_order_and_those_of_one_are_not_copied() -> None:
    blocks: list[dict[str, Any]] = [
        {"x": np.arange(at, at + 4), "nested": {"a": (np.arange(4) * at,)}} for at in (0, 4)
    ]
    first, second = blocks
    batch = joined([(first, 2, 4), (second, 0, 4), (second, 0, 1)])
    assert batch["x"].tolist() == [2, 3, 4, 5, 6, 7, 4]
    assert batch["nested"]["a"][0].tolist() == [0, 0, 0, 4, 8, 12, 0]
    alone = joined([(second, 1, 3)])
    assert alone["x"].tolist() == [5, 6] and np.shares_memory(alone["x"], second["x"])
    assert np.shares_memory(alone["nested"]["a"][0], second["nested"]["a"][0])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"x": np.zeros(2, np.float64)}, "column 'x' of B is float64[], but that of A is int64[]. Convert elements"),
        ({"x": np.zeros((2, 3), np.int64)}, "int64[3], but that of A is int64[]. Resize"),
        ({"x": np.array(["a", "b"], object)}, "is a str, but that of A is int64[]. Convert one of them, or fill in"),
        ({"x": np.array([None, None], object)}, "is None, but"),
        ({"x": {"a{}": np.zeros(2)}}, "a dict with the keys ['a{}']"),
        ({"y": np.zeros(2, np.int64)}, "B has the columns ['y'], but A has ['x']"),
    ],
)
def test_rows_that_do_not_go_together_are_named(other: dict[str, object], said: str) -> None:
    rows = {"x": np.arange(2)}
    with pytest.raises(UnequalRowsError) as raised:
        joined([(rows, 0, 2), (rows, 0, 1), (other, 0, 1)])
    assert said in raised.value.message("B", "A") and raised.value.part == 2


@examples(300)
@given(ROWS, st.integers(1, 4))
def test_what_is_joined_of_blocks_of_one_kind_each_is_what_one_process_stacks(rows: list[object], cut: int) -> None:
    """Also that it cannot be stacked."""
    lease = Lease(0, Split(0))
    items = [Item({"x": row}, [], lease, number) for number, row in enumerate(rows)]

    def stacked(some: list[Item]) -> dict[str, Any]:
        return finished(collate(some, "batch"), BatchRows("batch", some[0], None))

    blocks = [block for part in (items[:cut], items[cut:]) for block in split_by_kind(part)]
    try:
        expected = stacked(items)
    except BatchShapeError:
        with pytest.raises((BatchShapeError, UnequalRowsError)):
            joined([(stacked(block), 0, len(block)) for block in blocks])
    else:
        assert same(joined([(stacked(block), 0, len(block)) for block in blocks]), expected)
