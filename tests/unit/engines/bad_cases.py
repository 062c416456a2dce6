"""Pipelines in which an element, a function or a batch is bad: `python_outcomes.txt` says what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pecan_ray.errors import CorruptSourceError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Element
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import InColumns, Numbered
from tests.unit.engines.operator_cases import Build, Cases, Pieces, batched, few, items, keyed, of_lengths, rows

Change = Callable[[PecanPipeline], PecanPipeline]


def files(
    fail_at: int | None = None,
    error: type[Exception] = OSError,
    kind: type[Numbered] = Numbered,
    lengths: tuple[int, ...] = (5, 5),
) -> PecanPipeline:
    """Two files of five numbers, or files of so many, of which one may be impossible to read."""

    def make(number: int) -> Element:
        if number == fail_at:
            raise error("the disk is wet")
        return {"i": np.int64(number), "name": f"n{number % 5}"}

    return PecanPipeline(kind(*lengths, make=make, path="data/{}.bin"))


def refuses_7(element: Element) -> Element:
    if element["i"] == 7:
        raise ValueError("no sevens\nplease")
    return {**element, "i": element["i"] + 100}


def refuses_threes(i: Any) -> Any:
    if i % 3 == 0:
        raise ValueError(f"no {i}")
    return i


def unfinished(element: Element) -> Iterator[Element]:
    yield element
    if element["i"] == 3:
        raise KeyError("half way")


def changes_and_fails(element: Element) -> Element:
    element["i"] += 1000
    element["name"] = "changed"
    return refuses_7({"i": element["i"] - 1000})


def writes_and_fails(element: Element) -> Element:
    element["x"] += 8
    if element["x"][0] == 9:
        raise ValueError("after it has written")
    return element


async def later(value: Any) -> Any:
    return value


def endless(element: Element) -> Iterator[Element]:
    yield element
    while element["i"] == 7:
        yield element


class OwnDict(dict[Any, Any]):
    """A dict that does not tell its keys."""

    def keys(self) -> Any:
        raise RuntimeError("no keys")

    __iter__ = keys


class Unloadable:
    """What is pickled, and cannot be loaded."""

    def __init__(self) -> None:
        self.x = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("not here")


def list_of_itself() -> Any:
    value: list[Any] = [1, 2]
    value[1] = value
    return value


def array_of_itself() -> Any:
    value = np.empty(2, object)
    value[:] = [1, 2]
    value[1] = value
    return value


def nested(levels: int) -> Any:
    value: Any = [1]
    for _ in range(levels):
        value = [value]
    return value


def into_itself(element: Element) -> Element:
    element["i"].append(element["i"])
    return element


def no_model() -> Any:
    raise KeyError("no model")


def odd(value: Callable[[], Any]) -> Change:
    """Return what gives one element a column of another kind."""
    return lambda pipe: pipe.map(lambda e: {**e, "odd": value() if e["i"] == 7 else [1, "a"]}, name="add")


def answering(answer: Callable[[], Any]) -> Change:
    """Return a filter whose answer is odd for one element."""
    return lambda pipe: pipe.filter(lambda e: answer() if e["i"] == 7 else True, name="odd").batch(4)


def measuring(length: Any) -> Change:
    """Return what makes buckets by a length that is odd for one element."""
    return lambda pipe: pipe.bucket_by_length([4], sizes=2, length=lambda e: length if e["i"] == 7 else 3)


def masked(element: Element) -> Element:
    return {**element, "x": np.ma.masked_array([1, 2], [False, True])}


def rows_of_ten() -> PecanPipeline:
    return rows(*({"i": n, "x": np.full(2, n), "text": str(n)} for n in range(20)))


def cut_in_place(batch: Element) -> Element:
    batch["x"] = batch["x"][2:]
    return batch


def pads(elements: list[Element]) -> Element:
    return {"i": np.array([refuses_7(one)["i"] for one in elements])}


def packing(*elements: Element, **options: Any) -> Build:
    return lambda: rows(*elements, *elements).pack(4, **options).batch(1)


FUNCTIONS: dict[str, Build] = {
    "that fails": lambda: files().map(refuses_7),
    "that fails behind another": lambda: files().map(lambda i: i, on="i", name="same").map(refuses_7),
    "that changes what it is given and fails": lambda: files().shuffle(1).map(changes_and_fails),
    "that writes into an array and fails": lambda: items(*(np.full(2, n) for n in range(3))).map(writes_and_fails),
    "of a column that fails": lambda: files().map(refuses_threes, on="i"),
    "of columns that fails": lambda: PecanPipeline(Arrays(i=np.arange(1, 9))).map(refuses_threes, on="i"),
    "of outputs that fails half way": lambda: files().flat_map(unfinished),
    "of what is spread that fails": lambda: few(3).flat_map(lambda i: [i, i + 1], on="i").map(refuses_threes, on="i"),
    "that returns a number": lambda: files().map(lambda e: e["i"], name="f"),
    "that returns None": lambda: files().map(lambda e: None, name="f"),
    "of outputs that returns one": lambda: files().flat_map(lambda e: e, name="f"),
    "of outputs that returns numbers": lambda: files().flat_map(lambda e: [1], name="f"),
    "of outputs of a column that returns one": lambda: files().flat_map(lambda i: i, on="i", name="f"),
    "that returns a coroutine": lambda: files().map(lambda i: later(i), on="i", name="f"),
    "of a column that is not there": lambda: files().map(lambda x: x, on="x", name="f"),
    "that returns a dict without columns": lambda: few(9).map(lambda e: OwnDict(e) if e["i"] == 7 else e, name="own"),
    "of outputs without an end": lambda: few(9).flat_map(endless),
    "that returns a lock": lambda: odd(threading.Lock)(few(9)),
    "that returns a generator": lambda: odd(lambda: (one for one in "ab"))(few(9)),
    "that returns what cannot be loaded": lambda: odd(Unloadable)(few(9)),
    "that returns a list in itself": lambda: odd(list_of_itself)(few(9)),
    "that returns an array in itself": lambda: odd(array_of_itself)(few(9)),
    "that returns lists that are too deep": lambda: odd(lambda: nested(5000))(few(9)),
    "of outputs that returns a list in itself": lambda: few(3).flat_map(lambda e: [{**e, "o": list_of_itself()}]),
    "that puts a list into itself": lambda: few(3).map(lambda i: [int(i)], on="i").shuffle(3).map(into_itself),
    "that cannot be set up": lambda: few(2).map(lambda i, model: i, on="i", setup=no_model),
    "that returns lists unlike others": lambda: odd(lambda: [[1], [1, 2]])(few(9)),
    "that returns a masked array": lambda: few(9).map(masked),
    "that gives every third a masked array": lambda: few(4).map(
        lambda e: masked(e) if e["i"] == 2 else {**e, "x": np.arange(2)}, name="f"
    ),
    "that returns masked arrays which are filled": lambda: (
        few(3).map(masked).map(lambda e: {**e, "x": e["x"].filled(0)})
    ),
    "that returns None for some": lambda: few(4).map(lambda i: i if i == 2 else None, on="i"),
}
ON_BATCHES: dict[str, Callable[[Any], Any]] = {
    "fails": lambda batch: refuses_threes(int(batch["i"][0])),
    "returns a lock": lambda batch: {**batch, "lock": [None, threading.Lock()]},
    "returns a masked array": masked,
    "cuts a column": lambda batch: {"i": batch["i"], "j": batch["i"][:3]},
    "cuts by a mask": lambda batch: {**batch, "x": batch["x"][batch["i"] % 2 == 0]},
    "cuts in place": cut_in_place,
    "cuts texts": lambda batch: {**batch, "text": batch["text"][:4]},
    "leaves every third": lambda batch: {name: column[batch["i"] % 3 == 0] for name, column in batch.items()},
    "makes two of one": lambda batch: {"i": batch["i"], "x": np.concatenate([batch["x"], batch["x"]])},
}
UNLIKE: dict[str, list[Any]] = {
    "shapes": [np.zeros(2), np.zeros(3)],
    "dtypes": [1, 1.5],
    "large numbers": [1, 1 << 63],
    "None among numbers": [1.5, None],
    "an array among texts": ["a", np.zeros(2)],
    "lengths of lists": [[1, 2], [1]],
    "dtypes of lists": [[1, 2], [0.5, 1]],
    "lengths of lists of dicts": [[{}, {}], [{}]],
    "an empty array among lists": [[{}, {}], np.array([])],
    "None among lists": [[1, 2], None],
    "a dict among lists": [[1, 2], {"a": 1}],
    "keys": [{}, {"a": 1}],
    "None in dicts": [{"a": 1}, {"a": None}],
    "a set in lists": [{"a": [2]}, {"a": [{1}]}],
    "a set": ["a text", {1}],
    "numbers of more than 64 bits": ["a text", 2**70],
    "lists of texts": ["a text", ["a", "b"]],
    "arrays of texts": ["a text", np.array(["a", "b"])],
    "a dict among texts": ["a text", {"a": 1}],
    "None among texts": ["a text", None],
    "None in a list": [[1, 2], [1, None]],
    "unequal lists in a list": [[1, 2], [[1], [1, 2]]],
    "dimensions": [np.zeros(1, np.int16), np.zeros((1, 1), np.int16)],
}


def each_end(build: Build) -> dict[str, Build]:
    """Return what elements become in batches of each kind, and alone."""
    return {
        "in batches": lambda: build().batch(4),
        "behind a shuffle": lambda: build().shuffle(1).batch(4),
        "alone": build,
        "padded": lambda: build().padded_batch(4),
    }


def on_batches(fn: Callable[[Any], Any]) -> Build:
    return lambda: rows_of_ten().batch(10).map(fn, name="f")


THREE = np.arange(3)
BAD_CASES: Cases = {
    **{f"a function {name}": each_end(build) for name, build in FUNCTIONS.items()},
    **{f"a function on batches {name}": on_batches(fn) for name, fn in ON_BATCHES.items()},
    **{f"unlike {name}": batched(first, first, second) for name, (first, second) in UNLIKE.items()},
    **{f"unlike {name}, the other one first": batched(*pair[::-1]) for name, pair in UNLIKE.items()},
    "columns that change": lambda: PecanPipeline(Pieces(({"a": THREE}, {"a": THREE, "b": THREE}))).batch(4),
    "columns of unequal lengths": lambda: PecanPipeline(Pieces(({"a": THREE, "b": THREE[:2]},))).batch(2),
    "unlike columns": lambda: rows({"x": 1}, {"x": 2, "y": 3}).batch(2),
    "unlike columns, padded": lambda: rows({"x": 1}, {"y": 3}).padded_batch(2),
    "results of two types": lambda: few(4).shuffle(3).map(lambda i: float(i) if i > 1 else int(i), on="i").batch(4),
    "results of two shapes": lambda: few(4).shuffle(3).map(lambda i: np.zeros(2 + (i > 1)), on="i").batch(4),
    "a shuffled column of which some fail": lambda: (
        few(12).shuffle(5).map(refuses_threes, on="i").filter(lambda i: i % 2 == 0, on="i").batch(4)
    ),
    "a source of masked arrays": lambda: PecanPipeline(Arrays(x=np.ma.masked_array([1, 2], [False, True]))),
    "a filter answers NaN": lambda: answering(lambda: float("nan"))(few(9)),
    "a filter answers a coroutine": lambda: answering(lambda: later(True))(few(9)),
    "a filter answers several": lambda: answering(lambda: np.ones(3) > 0)(few(9)),
    "a filter answers None": lambda: answering(lambda: None)(few(9)),
    "a source that cannot be read": lambda: files(8).batch(3),
    "a source that cannot be read, by itself": lambda: files(8, CorruptSourceError).map(refuses_threes, on="i"),
    "columns that cannot be read": lambda: files(8, kind=InColumns).batch(3),
    "a source that cannot be read, behind what is taken": {
        "elements": lambda: files(8).take(8),
        "mapped": lambda: files(8).map(lambda e: e).take(8),
        "columns": lambda: files(8, kind=InColumns).map(lambda i: i, on="i").take(8),
        "filtered": lambda: files(8).filter(lambda i: i != 1, on="i").take(7).batch(5),
        "batches": lambda: files(8).map(lambda e: e).batch(4).take(2),
        "passes": lambda: files(8).map(lambda e: e).take(8).repeat(2).batch(5),
        "skipped": lambda: files(8).map(lambda e: e).skip(2).take(6).batch(5),
    },
    "a bad element behind what is taken": lambda: files().map(refuses_7).take(7).batch(4),
    "a bad element in passes": lambda: files().map(refuses_7).skip(4).repeat(2).batch(3),
    "a list in itself, in passes": lambda: odd(list_of_itself)(few(9)).repeat(2).batch(5),
    "a bad element beside another": lambda: files().map(refuses_7).zip(few(10, column="j")).batch(8),
    "a bad element in a branch": lambda: files().map(refuses_7).concat(files()).batch(8),
    "a bad element in batches that are cut": lambda: files().map(refuses_7).batch(3).unbatch().batch(4),
    "a length that is a text": lambda: measuring("3")(few(9)),
    "a length that is None": lambda: measuring(None)(few(9)),
    "a length that fails": lambda: of_lengths(1, 0, 2).bucket_by_length([1], sizes=3, length=lambda e: 2 // e["n"]),
    "a length of a column that is not there": lambda: of_lengths(1).bucket_by_length([1], sizes=3, length="y"),
    "a length of what has none": lambda: of_lengths(1).bucket_by_length([1], sizes=3, length="n"),
    "a key that is not there": lambda: keyed(4, "h"),
    "a key that fails": lambda: keyed(4, lambda e: 1 // int(e["i"])),
    "a key that is a list": lambda: keyed(4, lambda e: [1]),
    "a key that is NaN": lambda: keyed(4, lambda e: np.nan),
    "a key with NaN in it": lambda: keyed(4, lambda e: (1, np.nan)),
    "a size of none": lambda: keyed(4, size=lambda key: 0),
    "groups of unlike shapes": lambda: few(2).map(lambda e: {"x": np.zeros(e["i"])}).group_by(lambda e: 0, 2),
    "a shape that is too short": lambda: of_lengths(1, 3).padded_batch(2, shapes={"x": (2,)}),
    "a shape of a column that is not there": lambda: of_lengths(1, 3).padded_batch(2, shapes={"z": (2,)}),
    "a shape of other dimensions": lambda: of_lengths(1, 3).padded_batch(2, shapes={"x": (2, 2)}),
    "a padding of a column that is not there": lambda: of_lengths(1, 3).padded_batch(2, padding={"z": 2}),
    "a padding that is no value": lambda: of_lengths(1, 3).padded_batch(2, padding=0.5),
    "a padding that is too small": lambda: of_lengths(1, 3).padded_batch(2, padding=-40_000),
    "one shape for a column that is not there": lambda: of_lengths(1).padded_batch(2, same_shape=("x", "z")),
    "one shape for columns of other dimensions": lambda: rows({"a": [1], "b": [[2]]}).padded_batch(
        2, same_shape=["a", "b"]
    ),
    "fewer rows than unbatch wants": lambda: few(7).batch(3).map(lambda b: {"i": b["i"][:2]}).unbatch(same_rows=True),
    "a number that unbatch finds": lambda: few(7).batch(3).map(lambda b: {**b, "n": 2}, name="f").unbatch(),
    "rows of unequal columns": lambda: few(7).batch(3).map(lambda b: {**b, "z": np.zeros(2)}, name="f").unbatch(),
    "set up by no function": lambda: few(9).map(abs, on="i", setup=3),  # type: ignore[arg-type]  # as meant
    "seeded for each element, and given the epoch": lambda: few(9).map(lambda i, epoch: i, on="i", seed_globals=True),
    "fewer rows than were given": lambda: few(7).map(lambda c: {"i": c["i"][:2]}, rows=3, name="f").batch(2),
    "no rows": lambda: few(7).map(dict, rows=0),
    "a list that fails": lambda: few(9).batch(3, collate=pads),
    "a list that returns none": lambda: few(2).batch(2, collate=lambda rows: (rows,)),
    "a collate that is no function": lambda: few(2).batch(2, collate=3),  # type: ignore[arg-type]  # as meant
    "packing of fractions": packing({"tokens": [0.5]}),
    "packing of None": packing({"tokens": None}),
    "packing of another column": packing({"ids": [1]}),
    "packing with a padding that is no value": packing({"tokens": np.ones(3, np.uint8)}, padding=-1),
    "packing of fewer labels": packing({"tokens": [1, 2], "labels": [1]}, along={"labels": 0}),
    "packing of texts": packing({"tokens": [1], "labels": ["a"]}, along={"labels": 0}),
    "packing of labels that are not there": packing({"tokens": [1]}, along={"labels": 0}),
    "packing of labels with a padding that is no value": packing(
        {"tokens": [1], "x": np.array([1], np.uint8)}, along={"x": -100}
    ),
    "packing with labels forgotten": packing({"tokens": [1, 2], "labels": [3, 4]}),
    "packing along its own column": packing({"tokens": [1]}, along={"segment": 0}),
    "packing along a list": packing({"tokens": [1]}, along=["labels"]),
}
