"""Numbers of tables of Hugging Face that come as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pecan_ray.sources.hugging_face_numbers import exact_columns

BIG = 2**53 + 1
THIRDS = np.array([1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("kind", "stored", "read"),
    [
        (pa.float64(), [1 / 3, None], [np.float64(1 / 3), np.float64("nan")]),
        (pa.uint64(), [2**64 - 1, 1], [np.uint64(2**64 - 1), np.uint64(1)]),
        (pa.int64(), [BIG, None], [np.int64(BIG), None]),
        (pa.list_(pa.float64()), [[1 / 3, 2 / 3], [0.1]], [THIRDS, np.array([0.1])]),
        (pa.list_(pa.uint64(), 2), [[2**64 - 1, 1]], [np.array([2**64 - 1, 1], np.uint64)]),
        (pa.list_(pa.int64()), [[BIG, None], [1, 2]], [[np.int64(BIG), None], np.array([1, 2])]),
        (pa.list_(pa.list_(pa.float64())), [[[1 / 3, 2 / 3]], None], [THIRDS[None], None]),
        (
            pa.struct({"x": pa.list_(pa.float64()), "n": pa.int64(), "t": pa.string()}),
            [{"x": [1 / 3, 2 / 3], "n": BIG, "t": "a"}],
            [{"x": THIRDS, "n": np.int64(BIG), "t": "a"}],
        ),
        (pa.list_(pa.struct({"x": pa.float64()})), [[{"x": 1 / 3}]], [[{"x": np.float64(1 / 3)}]]),
    ],
)
def test_numbers_that_the_numpy_format_would_change_are_exact(kind: Any, stored: Any, read: Any) -> None:
    assert_alike(exact_columns(pa.table({"x": pa.array(stored, kind)}))["x"], read)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.float32(), [0.5, None]),
        (pa.int64(), [2**53 + 1, 2]),
        (pa.list_(pa.list_(pa.float32())), [[[0.5, 2.0]]]),
        (pa.struct({"text": pa.string(), "starts": pa.list_(pa.int32())}), [{"text": "a", "starts": [1]}]),
        (pa.string(), ["a", None]),
    ],
)
def test_what_the_numpy_format_gives_exactly_is_left_to_it(kind: Any, stored: Any) -> None:
    assert exact_columns(pa.table({"x": pa.array(stored, kind)})) == {}


def assert_alike(found: Any, expected: Any) -> None:
    """Compare values with their types, also inside of lists and dicts."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        assert_alike(list(found.values()), list(expected.values()))
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
