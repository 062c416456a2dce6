"""What every source must keep to; `check_contract` is run on each of them."""

from __future__ import annotations

import pickle
from itertools import zip_longest
from typing import Any

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.plan.splits import ColumnarSource, CountingSource, Element, Source, Split, as_columnar
from pecan_ray.sources.by_index import CAN_SEEK, indexed


def same(one: Any, other: Any) -> bool:
    """Compare values of elements, arrays by dtype, shape and content; NaN equals NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        left, right = np.asarray(one), np.asarray(other)
        return left.dtype == right.dtype and left.shape == right.shape and same(left.tolist(), right.tolist())
    if isinstance(one, (float, np.floating, np.datetime64, np.timedelta64)) and one != one:
        return bool(other != other)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def plain(value: Any) -> Any:
    """Return a value with Python's lists and numbers in the place of NumPy's, however deep."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def elements_of(source: Source) -> list[Any]:
    """Return all elements of a source."""
    return [element for split in source.splits() for element in source.read(split)]


def check_columns(source: ColumnarSource, split: Split, whole: list[Element]) -> None:
    """Check that a split's columns, from its beginning and from its middle, are its elements."""
    for start in (0, len(whole) // 2, len(whole)):
        rows: list[Element] = []
        for columns in source.read_columns(split, start):
            (count,) = {len(column) for column in columns.values()}
            rows += [{name: column[row] for name, column in columns.items()} for row in range(count)]
        assert same(rows, whole[start:]), (split, start)


def check_elements(source: Source, expected: list[Element], *, splits: int) -> None:
    """Check that a source holds these elements in so many splits: each is read once, by itself."""
    found = list(source.splits())
    assert len(found) == splits
    elements = elements_of(source)
    assert len(elements) == len(expected)
    for number, (got, wanted) in enumerate(zip(elements, expected, strict=True)):
        assert same(got, wanted), f"element {number}: {got} is not {wanted}"


def check_side_by_side(source: Source, splits: list[Split]) -> None:
    """Check that splits that are read at a time give what they give alone."""
    alone = [list(source.read(split)) for split in splits[:3]]
    together: list[list[Element]] = [[] for _ in alone]
    for row in zip_longest(*map(source.read, splits[:3])):
        for elements, element in zip(together, row, strict=True):
            elements += [] if element is None else [element]
    assert same(together, alone)


def check_by_index(source: Source, expected: list[Element]) -> None:
    """Check that a source that can be read by numbers gives the elements with these numbers, some of them again."""
    rows, refused = None, ""
    try:
        rows = indexed("the contract", source)
    except PlanError as error:
        refused = str(error)
    if rows is None:
        assert type(source).__name__ not in CAN_SEEK or "streamed" in refused
        return
    assert rows.num_elements() == len(expected)
    assert rows.identity() == indexed("the contract", source).identity()
    indices = [*range(len(expected))[::-2], *range(len(expected))[:2]]
    copy = pickle.loads(pickle.dumps(rows))
    assert same(list(copy.rows_at(indices)), [expected[index] for index in indices])


def check_contract(source: Source, expected: list[Element], *, splits: int) -> None:
    """Check a source that holds exactly the expected elements in exactly so many splits."""
    check_elements(source, expected, splits=splits)
    assert isinstance(source, Source)
    found = list(source.splits())
    assert [split.index for split in found] == list(range(splits))
    assert list(source.splits()) == found, "listing again must give the same splits"
    copy = pickle.loads(pickle.dumps(source))
    assert list(copy.splits()) == found, "a pickled source must give the same splits"
    assert copy.identity() == source.identity()

    check_side_by_side(source, found)
    check_by_index(copy, expected)
    for split in found:
        whole = list(source.read(split))
        if (columnar := as_columnar(source)) is not None:
            check_columns(columnar, split, whole)
        if split.elements is not None:
            assert split.elements == len(whole), split
        for start in range(len(whole) + 1):
            tail = list(copy.read(pickle.loads(pickle.dumps(split)), start))
            assert same(tail, whole[start:]), (split, start)
    known = source.num_elements()
    assert known is None or known == len(expected)
    if known is not None and all(split.elements is not None for split in found):
        assert isinstance(source, CountingSource) and source.counts_splits, "several workers keep its order"
