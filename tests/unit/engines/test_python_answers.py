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


def through(results: list[Any]) -> list[Any]:
    writer = AnswerWriter(len(results))
    for result in results:
        writer.add(result)
    return [answer.value() for answer in answers_in(writer.message())]


def in_columns(results: list[Any]) -> bool:
    writer = AnswerWriter(len(results))
    for result in results:
        writer.add(result)
    return isinstance(pickle.loads(writer.message()), AnswerColumns)


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


@pytest.mark.parametrize("results", [*OF_ONE_FORM.values(), *OF_SEVERAL_FORMS.values()])
def test_what_goes_in_comes_out(results: list[Any]) -> None:
    for one, other in zip(through(results), results, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("name", OF_ONE_FORM)
def test_results_of_one_form_travel_as_columns(name: str) -> None:
    assert in_columns(OF_ONE_FORM[name])


@pytest.mark.parametrize("name", OF_SEVERAL_FORMS)
def test_others_travel_one_by_one(name: str) -> None:
    assert not in_columns(OF_SEVERAL_FORMS[name])


def test_an_array_that_a_function_fills_anew_is_kept_as_it_was() -> None:
    writer, own = AnswerWriter(3), np.zeros(2)
    for number in range(3):
        own[:] = number
        writer.add({"x": own})
    assert [answer.value()["x"].tolist() for answer in answers_in(writer.message())] == [[0, 0], [1, 1], [2, 2]]


def test_arrays_are_of_their_own_and_can_be_written_into() -> None:
    first, second = through([{"x": np.zeros(3)}, {"x": np.zeros(3)}])
    first["x"][:] = 1
    assert second["x"].tolist() == [0, 0, 0]
    assert first["x"].base is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_comes_at_its_place(place: int) -> None:
    writer = AnswerWriter(3)
    for number in range(3):
        if number == place:
            writer.add_error(ValueError("no"))
        else:
            writer.add({"x": np.full(2, number)})
    answers = answers_in(writer.message())
    assert [answer.returned for answer in answers] == [number != place for number in range(3)]
    assert [answer.result["x"].tolist() for answer in answers if answer.returned] == [
        [number, number] for number in range(3) if number != place
    ]
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


def test_one_array_under_two_names_stays_one() -> None:
    for made in through([{"x": IN_ORDER, "y": IN_ORDER}] * 2):
        assert made["x"] is made["y"]
