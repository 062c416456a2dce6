"""Answers of a process of functions: what goes in comes out, as columns or one by one."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.python.answers import AnswerColumns, AnswerWriter, answers_in

IN_ORDER_OF_F = np.asfortranarray(np.arange(6).reshape(2, 3))
IN_ORDER = np.arange(6.0)
RECORD = np.zeros(2, [("a", np.int8)])

OF_ONE_FORM: dict[str, list[Any]] = {
    "arrays": [{"x": np.full(3, n, np.int16), "y": np.full((2, 2), n + 0.5)} for n in range(4)],
    "numbers": [{"n": n, "x": np.float32(n / 3), "b": np.bool_(n % 2), "c": np.complex64(n)} for n in range(4)],
    "texts": [{"t": "a" * n, "b": b"\x00" * n, "none": None} for n in range(4)],
    "python's types mixed": [{"n": 1}, {"n": 1.5}, {"n": "one"}, {"n": None}, {"n": True}],
    "no dict": [np.arange(n, n + 3) for n in range(4)],
    "answers of a filter": [True, False, True],
    "one": [{"x": np.arange(5)}],
    "arrays without items": [{"x": np.empty((0, 3))} for _ in range(3)],
    "another order of bytes": [{"x": np.arange(3, dtype=">i4")} for _ in range(3)],
}
OF_SEVERAL_FORMS: dict[str, list[Any]] = {
    "other shapes": [{"x": np.zeros(n)} for n in range(4)],
    "other dtypes": [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(2, np.float32)}],
    "other dtypes of numbers": [{"x": np.int8(1)}, {"x": np.int16(1)}],
    "an array of no dimension among numbers": [{"x": np.int64(1)}, {"x": np.array(1)}],
    "arrays of no dimension": [{"x": np.array(1)}, {"x": np.array(2)}],
    "a number among arrays": [{"x": np.zeros(1)}, {"x": 0.0}],
    "other columns": [{"x": 1}, {"x": 1, "y": 2}, {"y": 2}, {}],
    "no columns": [{}, {}, {}],
    "another order of columns": [{"x": 1, "y": 2}, {"y": 2, "x": 1}],
    "lists": [{"x": [1, [2]]}, {"x": []}],
    "a list at last": [{"x": np.zeros(1)}, {"x": np.ones(1)}, {"x": [1]}],
    "names that are no strings": [{0: np.zeros(1)}, {0: np.ones(1)}],
    "objects": [{"x": np.array([1, None], object)}] * 2,
    "texts in arrays": [{"x": np.array(["a", "bc"])}] * 2,
    "records": [{"x": RECORD}] * 2,
    "masked arrays": [{"x": np.ma.masked_array([1, 2], [False, True])}] * 2,
    "in the order of Fortran": [{"x": IN_ORDER_OF_F}] * 2,
    "no dict after a dict": [{"x": 1}, 1],
    "one array under two names": [{"x": IN_ORDER, "y": IN_ORDER}] * 2,
    "under two names later": [{"x": np.zeros(6), "y": np.ones(6)}, {"x": IN_ORDER, "y": IN_ORDER}],
    "as many dimensions as there can be": [{"x": np.zeros((1,) * 32)}] * 2,
}


def written(*results: Any) -> AnswerWriter:
    writer = AnswerWriter(len(results))
    for result in results:
        add = writer.add_error if isinstance(result, Exception) else writer.add
        add(result)
    return writer


def through(results: list[Any]) -> list[Any]:
    return [answer.value() for answer in answers_in(written(*results).message())]


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.flags.f_contiguous == other.flags.f_contiguous
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("name", [*OF_ONE_FORM, *OF_SEVERAL_FORMS])
def test_what_goes_in_comes_out_and_travels_as_columns_where_it_is_of_one_form(name: str) -> None:
    results = OF_ONE_FORM.get(name) or OF_SEVERAL_FORMS[name]
    for one, other in zip(through(results), results, strict=True):
        assert_same(one, other)
    assert isinstance(pickle.loads(written(*results).message()), AnswerColumns) == (name in OF_ONE_FORM)


def test_arrays_are_of_their_own_and_can_be_written_into() -> None:
    writer, own = AnswerWriter(3), np.zeros(2)
    for number in range(3):
        own[:] = number
        writer.add({"x": own})
    first, *others = [answer.value()["x"] for answer in answers_in(writer.message())]
    assert first.base is None
    first[:] = 9
    assert [one.tolist() for one in others] == [[1, 1], [2, 2]], "as they were when a function has returned them"
    for made in through([{"x": IN_ORDER, "y": IN_ORDER}] * 2):
        assert made["x"] is made["y"], "one array under two names stays one"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_comes_at_its_place(place: int) -> None:
    results: list[Any] = [{"x": np.full(2, number)} for number in range(3)]
    results[place] = ValueError("no")
    answers = answers_in(written(*results).message())
    for number, answer in enumerate(answers):
        assert answer.returned == (number != place)
        if answer.returned:
            assert answer.result["x"].tolist() == [number, number]
    with pytest.raises(ValueError, match="no"):
        answers[place].value()


def test_what_cannot_be_pickled_raises_and_adds_nothing() -> None:
    writer = AnswerWriter(3)
    writer.add({"x": 1})
    with pytest.raises((pickle.PicklingError, AttributeError)):
        writer.add({"x": lambda: 1})
    writer.add_error(ValueError("no"))
    writer.add({"x": 3})
    assert [answer.returned for answer in answers_in(writer.message())] == [True, False, True]


def test_a_column_takes_no_more_memory_than_is_bounded() -> None:
    writer = AnswerWriter(10_000)
    writer.add({"x": np.ones(1 << 14)})
    assert len(writer.message()) < 1 << 18
    assert answers_in(writer.message())[0].value()["x"].sum() == 1 << 14
