"""Items and Arrays."""

from __future__ import annotations

import collections
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray import PecanPipeline
from pecan_ray.by_value import dumps_with_arrays, loads_with_arrays
from pecan_ray.errors import PlanError
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.splits import Source, Split, as_columnar
from pecan_ray.sources import Arrays, Items
from pecan_ray.sources.listing import MOST_LISTED, FirstSplits, list_splits
from pecan_ray.sources.packed_items import packed
from tests.source_contract import check_columns, check_contract, check_elements, elements_of, same


def test_items_are_elements_or_the_values_of_one_column() -> None:
    check_contract(Items([10, 20, 30]), [{"item": 10}, {"item": 20}, {"item": 30}], splits=3)
    rows = [{"x": np.arange(n), "name": f"row {n}"} for n in range(40)]
    check_contract(Items(rows, split_rows=7), rows, splits=6)
    for count, splits in ((0, 0), (1, 1), (15, 15), (16, 16), (100, 17), (100_000, 25)):
        found = list(Items(range(count)).splits())
        assert len(found) == splits and sum(split.elements or 0 for split in found) == count
        assert Items(range(count)).num_elements() == count


def test_arrays_give_rows_of_all_columns_with_their_dtypes() -> None:
    image = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    label = np.arange(5, dtype=np.int16)
    expected = [{"image": image[n], "label": label[n]} for n in range(5)]
    check_contract(Arrays(image=image, label=label), expected, splits=5)
    check_contract(Arrays({"image": image}, label=label, split_rows=2), expected, splits=3)


def test_writing_into_an_element_does_not_change_the_source() -> None:
    torch, image = pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    cells = np.empty((1, 1), object)
    cells[0, 0] = [0]
    held = {"boxes": np.zeros(2), "names": ["a"], "size": (np.zeros(1), "b"), "cells": cells}
    held |= {"tensor": [torch.zeros(2)], "picture": image.new("L", (1, 1))}
    objects = np.empty(1, object)
    objects[0] = [held]
    flat = (Arrays(x=np.zeros((1, 3))), Items([{"x": np.zeros(3)}]))
    for source in flat * 2:
        (element,) = elements_of(source)
        assert element["x"].sum() == 0
        element["x"] += 1
    for source in (Items([{"item": [held]}]), Items([[held]]), Arrays(item=objects)) * 2:
        found: Any = elements_of(source)[0]["item"][0]
        assert found["boxes"].sum() == found["size"][0].sum() == found["tensor"][0].sum() == 0
        assert found["names"] == ["a"] and found["cells"].tolist() == [[[0]]]
        assert found["picture"].getpixel((0, 0)) == 0
        found["boxes"] += 1
        found["size"][0][:] = 1
        found["names"].append("b")
        found["cells"][0, 0].append(1)
        found["tensor"][0].add_(1)
        found["picture"].putpixel((0, 0), 9)


def test_identity_follows_the_content() -> None:
    same, numbers = Arrays(x=np.arange(4)), np.arange(4)
    assert Arrays(x=numbers).identity() == same.identity()
    assert same.identity() not in {Arrays(x=numbers[::-1]).identity(), Arrays(y=numbers).identity()}
    assert Items([1, 2]).identity() != Items([1, 3]).identity()
    assert Items(["ab", "c"]).identity() != Items(["a", "bc"]).identity()


REFUSED: list[tuple[Callable[[], Source], str]] = [
    (lambda: Arrays(x=[1, 2], y=[1, 2, 3]), "x: 2, y: 3"),
    (lambda: Arrays(), "at least one array"),
    (lambda: Arrays(x=[1], y=3), "y has no rows"),
    (lambda: Arrays(words=[[1], [2, 3]]), "no array can be made of words"),
    (lambda: Items([{"a": 1}, 2]), r"1 dicts among 2 values \(see item 1\)"),
    (lambda: Items([1], split_rows=0), "split_rows must be a positive integer, but got 0"),
]


def test_what_cannot_be_rows_is_refused() -> None:
    for make, words in REFUSED:
        with pytest.raises(PlanError, match=words):
            make()


def test_items_that_are_alike_come_by_columns_and_each_as_it_was() -> None:
    rows = [{"x": np.full((2, 3), n), "n": n, "share": n / 2, "kind": np.int8(n), "t": f"{n}"} for n in range(9)]
    source = Items(rows, split_rows=4)
    check_contract(source, rows, splits=3)
    assert source.columnar is not None
    (columns,) = source.columnar.read_columns(next(source.splits()), 1)
    assert "".join(column.dtype.kind for column in columns.values()) == "iOOiO"
    large = Items([{"x": np.zeros(1 << 17)}] * 3, split_rows=3)
    assert large.columnar is not None
    assert [len(part["x"]) for part in large.columnar.read_columns(next(large.splits()))] == [1, 1, 1]
    found = Items(rows)
    before = describe_plan(PecanPipeline(found).batch(2).plan)
    assert found.columnar is not None
    assert describe_plan(PecanPipeline(found).batch(2).plan) == before, "what was found of a list is no part of it"
    for row in rows:
        row["label"] = np.int64(7)
    sent = pickle.loads(pickle.dumps(found))
    assert "label" in next(iter(sent.columnar.read_columns(next(iter(sent.splits())))))


UNLIKE: tuple[list[Any], ...] = (
    [],
    [{}],
    [{"x": np.zeros(2)}, {"x": np.zeros(3)}],
    [{"x": np.zeros(2)}, {"x": np.zeros(2, np.int64)}],
    [{"x": np.float32(1)}, {"x": np.float64(1)}],
    [{"x": 1}, {"x": 1.0}],
    [{"x": 1}, {"y": 1}],
    [{"x": True}],
    [{"x": None}],
    [{"x": [1]}],
    [{"x": np.array(1.0)}],
    [{"x": np.zeros(2, ">f4")}],
    [{"x": np.ma.masked_array(np.zeros(2))}],
    [collections.UserDict({"x": 1})],
)


def test_items_that_a_column_would_change_come_one_by_one() -> None:
    assert [rows for rows in UNLIKE if Items(rows).columnar is not None] == []


def test_what_is_large_is_sent_apart_and_read_as_it_was() -> None:
    rows = [{"n": n, "data": np.full(300, n)} for n in range(1000)]
    ragged = [{"n": n, "data": np.zeros(n * 5)} for n in range(500)]
    numbers = np.arange(300_000).reshape(1000, 300)
    texts = np.array([f"{n}" for n in range(1000)], object)
    for source in (Items(rows), Items(ragged), Arrays(numbers=numbers, texts=texts)):
        apart: dict[str, Any] = {}
        sent = dumps_with_arrays(source, apart)
        assert len(sent) < 50_000 < sum(array.nbytes for array in apart.values())
        mapped = {name: np.frombuffer(one.tobytes(), one.dtype).reshape(one.shape) for name, one in apart.items()}
        there: Any = loads_with_arrays(sent, mapped)
        splits = list(source.splits())
        assert there.identity() == source.identity() and list(there.splits()) == splits
        for copy in (there, pickle.loads(pickle.dumps(there))):
            check_elements(copy, elements_of(source), splits=len(splits))
        assert (as_columnar(there) is None) == (as_columnar(source) is None)
        if (by_columns := as_columnar(there)) is not None:
            check_columns(by_columns, splits[3], list(there.read(splits[3])))
        first = next(iter(there.read(splits[3])))
        first[next(name for name in first if name != "n")][:1] = 7
        assert same(next(iter(there.read(splits[3]))), next(iter(source.read(splits[3])))), "elements are copies"
    apart = {}
    held = loads_with_arrays(dumps_with_arrays(Items(rows), apart), apart).items
    numbers_of = [[one["n"] for one in held[part]] for part in (slice(900, 5, -100), slice(-3, None), slice(7, 70, 31))]
    assert numbers_of == [[*range(900, 5, -100)], [997, 998, 999], [7, 38, 69]] and held[-1]["n"] == 999
    small: dict[str, Any] = {}
    dumps_with_arrays([Items([1, 2]), Arrays(x=np.arange(9))], small)
    assert small == {}


def test_the_first_splits_of_a_source_are_listed_as_far_as_they_are_soon_known() -> None:
    few, many = list_splits(Items(range(3))), list_splits(Items(range(2 * MOST_LISTED), split_rows=1), lambda: 0.0)
    assert few.complete and few.elements == 3
    assert not many.complete and many.elements is None and len(many.splits) == MOST_LISTED
    seconds = itertools.count(0.0, 0.1)
    assert len(list_splits(Items(range(9)), lambda: next(seconds)).splits) == 3
    assert FirstSplits((Split(0, elements=1), Split(1)), complete=True).elements is None


def test_packed_items_are_a_sequence_like_their_list() -> None:
    items = [(number, bytes(1 << 16)) for number in range(20)]
    found = packed(items, "some")
    assert found is not None and list(found) == items and found[-3] == items[-3]
    for part in (slice(3, 17), slice(2, None, 5), slice(None, None, -1), slice(17, 3, -4), slice(5, 5)):
        assert found[part] == items[part]
