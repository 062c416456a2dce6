"""Pipelines of each operator on a few elements, of which `python_outcomes.txt` says what comes out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import InColumns, OwnSource, numbers

Build = Callable[[], PecanPipeline]
Cases = dict[str, Build | dict[str, Build]]
"""By name: what builds a pipeline, or several of which all or many give the same."""
few = functools.partial(numbers, split_rows=300)
"""So many numbers, in one split."""
five = functools.partial(numbers, split_rows=5)
"""Splits of five numbers."""


def rows(*elements: Element) -> PecanPipeline:
    """These elements, in one split."""
    return PecanPipeline(Items(elements, split_rows=100))


def items(*values: Any, name: str = "x") -> PecanPipeline:
    """Elements with one column each."""
    return rows(*({name: value} for value in values))


def of_lengths(*lengths: int) -> PecanPipeline:
    """Arrays of so many numbers, and how many these are."""
    return rows(*({"x": np.full(n, n, np.int16), "n": n} for n in lengths))


def keyed(rows: int = 20, key: Any = "g", size: Any = 4, **options: Any) -> PecanPipeline:
    """Groups of numbers with equal keys."""
    pipe = few(rows).map(lambda e: {"i": e["i"], "g": e["i"] % 3}, name="with_key")
    return pipe.group_by(key, size, **options)


def batched(*values: Any) -> dict[str, Build]:
    """Return batches of values in each way to make some."""
    return {
        "of columns": lambda: items(*values).batch(3),
        "in threads": lambda: items(*values).map(lambda e: e, name="same").batch(3),
        "behind a shuffle": lambda: items(*values).shuffle(1).batch(3),
        "padded": lambda: items(*values).padded_batch(3),
    }


def padded(*values: Any) -> dict[str, Build]:
    """Return a batch of values that are padded, as far as needed or to shapes."""
    shapes = {"x": (None,) * max(map(np.ndim, values))}
    return {
        "padded": lambda: items(*values).padded_batch(9),
        "padded to shapes": lambda: items(*values).padded_batch(9, shapes=shapes),
    }


@dataclass(frozen=True)
class Pieces(OwnSource):
    """Gives columns in pieces, which may be unlike."""

    pieces: tuple[dict[str, Any], ...]

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for piece in self.pieces:
            for row in range(len(next(iter(piece.values())))):
                yield {name: values[row] for name, values in piece.items()}

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        yield from self.pieces


def held() -> PecanPipeline:
    """Rows of arrays and lists that the source holds, and gives in two passes."""
    listed = np.empty(3, object)
    listed[:] = [[n] for n in range(3)]
    return PecanPipeline(Arrays(x=np.arange(6.0).reshape(3, 2), listed=listed, split_rows=3)).repeat(2)


def writes(element: Element) -> Element:
    element["x"] += 1
    for listed in element["listed"] if isinstance(element["listed"], np.ndarray) else [element["listed"]]:
        listed.append(-1)
    return element


def three_rows(element: Element) -> Element:
    return {name: np.repeat(value, 3) for name, value in element.items()}


def spread(element: Element) -> Iterator[Element]:
    """Yield as many outputs as the element's number says, modulo 4: none for every fourth."""
    for part in range(int(element["i"]) % 4):
        yield {**element, "part": part}


def halves(batch: Element) -> Iterator[Element]:
    yield {"i": batch["i"][:1]}
    yield {"i": batch["i"][1:]}


def noisy(element: Element, rng: np.random.Generator, epoch: int) -> Element:
    return {**element, "noise": int(rng.integers(100)) + epoch}


def with_lists(rows: list[Element]) -> Element:
    return {"n": len(rows), "each": [row["i"] for row in rows]}


def detection(rows: list[Element]) -> Mapping[str, Any]:
    """Return lists by image, beside arrays of any length, as references of torchvision do."""
    images = [np.full((1 + row["i"] % 3, 2), row["i"]) for row in rows]
    targets = [{"boxes": np.full((row["i"] % 3, 4), row["i"]), "i": row["i"]} for row in rows]
    return MappingProxyType({"images": images, "targets": targets, "rows": np.concatenate(images)})


def target() -> Element:
    return {"target": {"boxes": np.ones(1), "names": ["cat"]}}


def told(element: Element) -> Element:
    return {"told": str([(name, type(one).__name__, np.shape(one)) for name, one in sorted(element.items())])}


def document(length: int) -> Element:
    tokens = np.arange(length)
    return {"tokens": tokens, "mask": tokens % 2 == 0, "n": length / 2, "text": "left out"}


def scaled(target: Any) -> Any:
    target["boxes"] *= 2  # in place, as functions may
    target["names"].append("scaled")
    return target


UNLIKE_PIECES: tuple[Element, ...] = (
    {"a": np.arange(9), "b": np.arange(9.0)},
    {"a": np.arange(9, 18, dtype=np.int16), "b": np.array([f"t{n}" for n in range(9)])},
    {"a": np.ones((9, 3))},
    {"a": np.arange(9), "c": np.zeros((9, 40, 40))},
)
TWO_BY_TWO = {"x": np.ones((1, 2)), "y": np.ones(2, np.uint8), "s": "text"}
PAIRS = [{"a": [1, 1], "b": [2, 2, 2], "c": [1, 2, 3, 4]}, {"a": [], "b": [2], "c": []}, {"a": [], "b": [], "c": [1]}]
SAME_SHAPE: dict[str, Any] = {"same_shape": ("a", "b"), "padding": {"a": -1}}
TYPED: dict[str, list[Any]] = {
    "int": [1, 2],
    "float": [1.5, 2.5],
    "float32": [np.float32(1), np.float32(2)],
    "dates": [np.datetime64("2024-01-01"), np.datetime64("2024-01-02")],
    "empty arrays": [np.zeros((0, 2)), np.zeros((0, 2))],
    "bfloat16": [np.full(3, 1, ml_dtypes.bfloat16), np.full(3, 2, ml_dtypes.bfloat16)],
    "texts": ["a", "longer"],
    "bytes": [b"a", b""],
    "texts of numpy": [np.str_("a"), np.str_("longer")],
    "a text and None": [None, "x"],
    "lists of equal lengths": [[1, 2], [3, 4], [5, 6]],
    "tuples": [(0.5,), (1.5,), (2.5,)],
    "empty lists": [[]] * 3,
    "arrays of objects": [np.array([1, 2], object)] * 3,
    "lists of all kinds": [(np.full((2, 1), n), {"label": n}, "text", [n, None]) for n in range(3)],
    "dicts": [{"at": {"x": n, "y": 0.5}, "name": f"box {n}", "pixels": np.full((2, 2), n)} for n in range(3)],
}
EMPTY = np.array([])
"""What JSON's empty list is."""
PADDED: dict[str, list[Any]] = {
    "an empty list first": [EMPTY, np.array([1, 2])],
    "an empty list behind rows": [np.array([[1, 2]], np.uint8), EMPTY],
    "a number, an empty list and an array": [np.float32(7), EMPTY, np.array([1, 2], np.float32)],
    "a number and an empty array": [7, np.zeros(0, np.int64)],
    "a list and an empty list": [[1, 2], EMPTY],
    "empty arrays alone": [np.zeros(0, np.int32), np.zeros(0, np.int32)],
    "lists": [(), (7,), (7, 7)],
    "texts": ["", "a text", "another"],
}
OPERATOR_CASES: Cases = {
    "map": lambda: five(12).map(lambda i: i + 1, on="i").batch(5),
    "map with random numbers": lambda: five(12).map(noisy).batch(5),
    "functions that are given the epoch": {
        "of elements": lambda: few(5).map(lambda e, epoch: {"i": 100 * epoch + e["i"]}).batch(4),
        "of a column": lambda: few(5).map(lambda i, epoch: 100 * epoch + i, on="i").batch(4),
        "set up": lambda: few(5).map(lambda i, n, rng, epoch: n * epoch + i, on="i", setup=lambda: 100).batch(4),
        "spread": lambda: few(5).flat_map(lambda i, epoch: [100 * epoch + i], on="i").batch(4),
        "of batches": lambda: few(5).batch(4).map(lambda batch, epoch: {"i": batch["i"] + 100 * epoch}),
        "of lists": lambda: few(5).batch(
            4, collate=lambda e, epoch: {"i": 100 * epoch + np.array([x["i"] for x in e])}
        ),
        "of a filter": lambda: few(205).filter(lambda i, epoch: i >= 100 * epoch, on="i").batch(4),
    },
    "map of batches": lambda: five(12).batch(5).map(lambda batch: {"i": batch["i"] * 10}),
    "map with rows": lambda: five(12).map(lambda i: i + 1, on="i", rows=3).batch(5),
    "map to texts or None": lambda: few(5).map(lambda i: f"text {i}" if i % 2 else None, on="i").batch(3),
    "map to large numbers": lambda: few(3).map(lambda i: 2**62 + int(i), on="i").batch(3),
    "filter": lambda: five(12).filter(lambda i: i % 2 == 0, on="i").batch(4),
    "filter of all": lambda: five(12).filter(lambda i: False, on="i").batch(4),
    "filter of batches, which are spread": lambda: few(7).batch(3).filter(lambda b: b["i"][0] != 3).flat_map(halves),
    "flat_map": lambda: five(12).flat_map(spread).batch(5),
    "flat_map and filter": lambda: five(9).flat_map(spread).filter(lambda e: e["part"] != 1).map(noisy).batch(4),
    "no batch": lambda: rows({"x": np.arange(3), "s": "text", "n": 5, "b": b"raw"}),
    "batch": lambda: five(12).batch(5),
    "batch without a remainder": lambda: five(12).batch(5, drop_remainder=True),
    "batch with collate": lambda: five(7).batch(3, collate=with_lists),
    "batch with collate to lists of arrays": lambda: five(7).batch(3, collate=detection),
    "a function behind collate": lambda: (
        five(7).batch(3, collate=detection).map(lambda batch: {"sizes": [*map(len, batch["images"])]}).prefetch(2)
    ),
    "batches of columns": lambda: PecanPipeline(InColumns(7, 5)).batch(5),
    "rows of columns": lambda: PecanPipeline(InColumns(3, 2)).filter(lambda e: e["i"] != 1),
    "shuffle": lambda: five(20).shuffle(6).batch(5),
    "shuffle of pieces, mapped": lambda: five(9).flat_map(spread).shuffle(4).map(noisy).batch(5),
    "shuffle of columns": lambda: PecanPipeline(Arrays(i=np.arange(12), split_rows=12)).shuffle(5).batch(5),
    "prefetch": lambda: five(7).prefetch(2).batch(3).prefetch(1),
    "unbatch behind a function": lambda: few(7).batch(3).map(lambda i: i * 10, on="i").unbatch().batch(2),
    "unbatch of fewer rows": lambda: few(6).batch(3).map(lambda i: i[i % 2 == 0], on="i").unbatch().batch(2),
    "unbatch of no rows": lambda: few(6).batch(3).map(lambda batch: {"i": batch["i"][:0]}).unbatch().batch(2),
    "unbatch of rows of elements": lambda: five(4).map(three_rows).unbatch().batch(5),
    "batches with fewer rows": lambda: few(6).batch(3).map(lambda i: i[i % 2 == 0], on="i"),
    "take": lambda: five(12).take(7).batch(3),
    "take more than there is": lambda: five(4).take(9).batch(3),
    "skip": lambda: five(12).skip(7).batch(3),
    "take of batches, repeated": lambda: few(3).batch(2).take(2).repeat(2),
    "repeat": lambda: five(4).repeat(2).batch(3),
    "repeat of what is skipped": lambda: five(6).skip(4).map(noisy).repeat(3).batch(4),
    "repeat without end of full batches": lambda: few(3).batch(2, drop_remainder=True).repeat().take(2),
    "functions write deep into what is repeated": lambda: (
        rows(target()).take(1).repeat(3).map(scaled, on="target").batch(1)
    ),
    "functions write into rows of a source": lambda: held().map(writes).batch(3),
    "functions write into shuffled rows of a source": lambda: held().shuffle(2).map(writes).batch(3),
    "functions write into batches of a source": lambda: held().batch(3).map(writes),
    "filters write into rows of a source": lambda: held().filter(lambda e: e["x"].fill(0) or len(e["listed"])).batch(3),
    "a buffer of unlike and of large rows": lambda: PecanPipeline(Pieces(UNLIKE_PIECES)).shuffle(7).map(told).batch(3),
    "functions write deep into passes": lambda: rows(target()).repeat(3).map(scaled, on="target").batch(1),
    "zip": lambda: few(5).zip(few(3, column="j").map(lambda j: j * 10, on="j"), few(9, column="k")).batch(2),
    "zip of batches": lambda: five(7).batch(3).zip(few(9, column="j").batch(2)),
    "zip of equal columns": lambda: few(3).zip(few(3)),
    "concat": lambda: five(6).concat(few(3)).batch(4),
    "concat of batches": lambda: few(5).batch(2).concat(few(3).batch(2)),
    "concat of batches without remainders": lambda: few(5).batch(2, drop_remainder=True).concat(few(3).batch(2)),
    "mix": lambda: five(9).mix(few(5).map(lambda i: i + 100, on="i"), weights=[3, 1]).batch(5),
    "mix until the first ends": lambda: (
        five(9).mix(few(50).map(lambda i: i + 100, on="i"), weights=[1, 1], stop="first").batch(5)
    ),
    "padded_batch": lambda: of_lengths(1, 3, 2).padded_batch(2),
    "padded_batch with shapes": lambda: rows(TWO_BY_TWO).padded_batch(3, shapes={"x": (2, None), "y": (3,)}),
    "padded_batch with a padding": lambda: rows(TWO_BY_TWO).padded_batch(1, padding={"x": -1.5}, shapes={"x": (2, 3)}),
    "padded_batch with columns of one shape": lambda: rows(*PAIRS).padded_batch(2, **SAME_SHAPE),
    "padded_batch without a remainder": lambda: of_lengths(1, 3, 2).padded_batch(2, drop_remainder=True),
    "buckets with columns of one shape": lambda: rows(*PAIRS).bucket_by_length([1], sizes=2, length="b", **SAME_SHAPE),
    "buckets": lambda: of_lengths(1, 5, 2, 9, 2, 6, 1, 4).bucket_by_length(
        [3, 6], sizes=[2, 2, 1], length="x", padding=-1
    ),
    "buckets that do not fill": lambda: of_lengths(1, 5, 9).bucket_by_length([3, 6], sizes=2, length=lambda e: e["n"]),
    "buckets without remainders": lambda: of_lengths(1, 5, 1).bucket_by_length(
        [3], sizes=2, length="x", drop_remainder=True
    ),
    "pack": lambda: items([1, 2, 3], [4], [5, 6, 7, 8, 9], [], name="tokens").pack(4, padding=-1).batch(2),
    "pack, and draw for each row": lambda: items([1] * 3, [2] * 3, [3] * 3, name="tokens").pack(4).map(noisy).batch(3),
    "pack arrays, masks, and a number for all": lambda: (
        rows(*map(document, (3, 1, 6))).pack(4, along={"mask": False, "n": -1}, padding=-1).batch(3)
    ),
    "group_by with what is left": lambda: keyed(tail="keep"),
    "group_by filled": lambda: keyed(tail="fill"),
    "group_by merged": lambda: keyed(tail="merge"),
    "group_by dropped": lambda: keyed(tail="drop"),
    "group_by, rows again": lambda: keyed(tail="fill").unbatch().batch(20),
    "group_by texts": lambda: keyed(8, lambda e: "ab"[e["i"] % 2], 2),
    "group_by pairs": lambda: keyed(8, lambda e: (e["i"] % 2, None), 2),
    "group_by arrays": lambda: keyed(8, lambda e: np.array(e["i"] % 2), 2),
    "group_by with a size for each key": lambda: keyed(8, lambda e: e["i"] % 2, lambda key: 3 if key else 1),
    "group_by with collate": lambda: keyed(7, tail="fill", collate=with_lists),
    **{name: batched(*values) for name, values in TYPED.items()},
    **{name: padded(*values) for name, values in PADDED.items()},
}
