"""Entries as bytes: what is plain comes back as it was, and everything else is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pecan_ray.engines.entry_format import EntryReader, EntryWriter
from pecan_ray.engines.plain import NotPlainError
from pecan_ray.plan.splits import OUTPUT_BITS
from tests.long_form import examples
from tests.unit.engines.engine_leases import exact

WIDTH = 1 << OUTPUT_BITS


def there_and_back(*values: dict[str, Any], length: int | None = None) -> list[dict[str, Any]]:
    writer = EntryWriter()
    for number, value in enumerate(values):
        writer.add(number, 0, WIDTH, value)
    entry = EntryReader(b"".join(writer.finish(len(values) if length is None else length)))
    assert len(entry) == len(values)
    return [one.value for one in entry]


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ARRAYS = arrays.arrays(
    st.sampled_from(["u1", "<i4", ">f4", "f8", "c8", "?", "M8[s]", "S3", "U2"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
SCALARS = arrays.arrays(st.sampled_from(["u1", "f4", "?"]), ()).map(lambda array: array[()])
VALUES = PLAIN | ARRAYS | SCALARS | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(), PLAIN, max_size=2)


@given(rows=st.lists(st.fixed_dictionaries({"a": VALUES, "é b": VALUES}), max_size=6))
@examples(300)
def test_whatever_is_plain_comes_back_as_it_was(rows: list[dict[str, Any]]) -> None:
    assert exact(there_and_back(*rows)) == exact(rows)


SINGLE: list[Any] = [
    np.arange(6, dtype=np.float32).reshape(2, 3).T,
    np.zeros((0, 5), np.uint8),
    float("nan"),
    np.array([1.5, 2.5], ml_dtypes.bfloat16),
    np.array(["a", "bcd"], object),
    np.array([b"a", b""], object),
    2**70,
    "\ud800 surrogate",
    (1, [2, {"three": 3}]),
]
MIXED: list[list[Any]] = [
    [np.zeros(3, "f4"), np.zeros(3, "f8"), None, "a", 5, np.float32(2), 2**65, 7],
    [np.zeros(3, "f4"), None, np.ones(3, "f4")],
    [np.zeros((0, 2), "f4"), np.zeros((3, 1), "f4"), np.zeros((2, 2), "f4")],
    [5, "five", None, 2**65, True, 5.5],
    [True, None, False, True, 1],
    [b"1", None, b"", "1", b"\0"],
]


def test_a_column_of_one_type_or_of_several_keeps_each() -> None:
    for values in [*([value] * 2 for value in SINGLE), *MIXED]:
        rows = [{"x": value} for value in values]
        assert exact(there_and_back(*rows)) == exact(rows)


def test_arrays_are_copied_when_they_are_added_and_may_be_written_into_when_they_are_read() -> None:
    array = np.arange(5)
    writer = EntryWriter()
    writer.add(0, 0, WIDTH, {"x": array})
    array[:] = 9
    (one,) = EntryReader(b"".join(writer.finish(1)))
    assert one.value["x"].tolist() == [0, 1, 2, 3, 4]
    one.value["x"][0] = 7
    (again,) = EntryReader(b"".join(writer.finish(1)))
    assert again.value["x"][0] == 0


def test_origins_and_the_length_of_the_split_are_kept() -> None:
    writer, source_refs = EntryWriter(), [(3, 0, WIDTH // 2), (3, WIDTH // 2, WIDTH // 2), (7, 0, WIDTH)]
    for origin in source_refs:
        writer.add(*origin, {"x": 1})
    entry = EntryReader(b"".join(writer.finish(9)))
    assert entry.length == 9 and [(one.element, one.output, one.width) for one in entry] == source_refs
    assert list(EntryReader(b"".join(EntryWriter().finish(4)))) == []


class Own:
    pass


def test_what_is_not_plain_or_has_other_columns_is_refused_by_name() -> None:
    masked = np.ma.masked_array([1, 2], [False, True])
    for value in (Own(), [Own()], np.array([Own()], object), masked):
        with pytest.raises(NotPlainError, match="column 'x', which holds a"):
            there_and_back({"y": 1, "x": value})
    with pytest.raises(NotPlainError, match=r"\['b'\] and \['a'\]"):
        there_and_back({"a": 1}, {"b": 1})


def test_what_is_no_entry_is_a_value_error() -> None:
    writer, large = EntryWriter(), EntryWriter()
    for number in range(5):
        writer.add(number, 0, WIDTH, {"x": np.arange(number), "y": "text", "z": [number]})
    large.add(0, 0, WIDTH, {"x": np.zeros(100_000, np.uint8)})
    whole, head = b"".join(writer.finish(5)), b"".join(large.finish(1))
    for cut in range(0, len(whole) - 64, 7):
        with pytest.raises(ValueError, match=r"no entry|format|damaged"):
            EntryReader(whole[:cut])
    assert len(EntryReader(head)) == 1
    for entry in (b"something else", head[:0], head[:7], head[:100], head[:-60_000]):
        with pytest.raises(ValueError, match="no entry"):  # though one that begins alike was whole
            EntryReader(entry)


def test_entries_that_begin_alike_are_read_each_by_itself() -> None:
    first, second = np.arange(12, dtype=np.int16), np.arange(12, 24, dtype=np.int16)
    for one in (first, second, first):
        (value,) = there_and_back({"x": one, "name": f"{one[0]:4}", "even": bool(one[0] % 24)})
        assert np.array_equal(value["x"], one)
        assert value["name"] == f"{one[0]:4}"
        assert value["even"] is bool(one[0] % 24)
