"""Batches that are packed of tokens, and those that a function of the user's makes of a list of elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pecan_ray as pecan
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.nested_columns import extract_arrays, restore_arrays
from pecan_ray.errors import OutputTypeError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sampling.packing import pack_rows
from pecan_ray.sources import Arrays, Items
from tests.long_form import examples
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, missing, run_engine, whole_leases


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 16))
def test_every_token_is_in_exactly_one_row_and_no_two_rows_would_fit_into_one(lengths: list[int], row: int) -> None:
    rows = pack_rows(lengths, row)
    used = sorted(sum(piece.tokens for piece in pieces) for pieces in rows)
    assert all(0 < tokens <= row for tokens in used)
    found = sorted((p.sequence, at) for pieces in rows for p in pieces for at in range(p.start, p.stop))
    assert found == [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    assert all(min(row, length) in {p.tokens for pieces in rows for p in pieces} for length in lengths if length)
    assert len(used) < 2 or max(lengths) > row or used[0] + used[1] > row


def sequences(count: int = 200) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [[1000 * number + at for at in range(int(random.integers(0, 30)))] for number in range(count)]


def packed(pipe: PecanPipeline) -> dict[int, list[tuple[int, int]]]:
    """Run a pipeline; return the tokens of each sequence, with their places."""
    found: dict[int, list[tuple[int, int]]] = {}
    for batch in pipe.iter_batches(debug=True):
        assert batch["tokens"].shape[1:] == batch["segment"].shape[1:] == batch["position"].shape[1:] == (20,)
        assert (batch["tokens"][batch["segment"] == 0] == -1).all()
        for row, segments, places in zip(batch["tokens"], batch["segment"], batch["position"], strict=True):
            for segment in range(1, int(segments.max()) + 1):
                within = segments == segment
                (owner,) = {int(token) // 1000 for token in row[within]}
                found.setdefault(owner, []).extend(zip(row[within].tolist(), places[within].tolist(), strict=True))
    return found


@pytest.mark.parametrize("make", [list, np.asarray], ids=["lists", "arrays"])
def test_a_pipeline_packs_without_losing_a_token(make: Any) -> None:
    given = sequences()
    source = Items([{"tokens": make(one), "text": "left out"} for one in given])
    found = packed(PecanPipeline(source, name="p").pack(20, among=64, padding=-1).batch(8))
    assert {owner: sorted(tokens) for owner, tokens in found.items()} == {
        number: [(token, at % 20) for at, token in enumerate(one)] for number, one in enumerate(given) if one
    }


def pieces(element: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut a sequence into pieces, as a flat_map before packing does: none of an empty one."""
    tokens = element["tokens"]
    return [{"tokens": tokens[at : at + 13]} for at in range(0, len(tokens), 13)]


def tokens_of(produced: list[Produced]) -> list[int]:
    rows = [(batch.columns["tokens"], batch.columns["segment"] > 0) for batch in produced if batch.rows]
    return [int(token) for tokens, used in rows for token in tokens[used]]


BEFORE: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "elements": lambda pipe: pipe,
    "pieces": lambda pipe: pipe.flat_map(pieces),
    "rows of batches": lambda pipe: pipe.map(lambda e: {"tokens": [e["tokens"]]}).batch(5).unbatch().map(first_of),
    "shuffled": lambda pipe: pipe.shuffle(9),
}


def first_of(element: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": element["tokens"][0]}


@examples(100)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=40),
    st.sampled_from(sorted(BEFORE)),
    st.integers(1, 12),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_rest_of_a_group_is_packed_by_any_worker_and_no_token_is_lost_or_repeated(
    lengths: list[int], before: str, among: int, behind: bool, chance: Random
) -> None:
    """Three workers one after the other are lost, each with some of its batches delivered."""
    given = [{"tokens": [1000 * number + at for at in range(length)]} for number, length in enumerate(lengths)]
    pipe = BEFORE[before](PecanPipeline(Items(given, split_rows=7), name="p")).pack(20, among=among)
    pipe = (pipe.shuffle(5) if behind else pipe).batch(2)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    received = [one for one in run_engine(pipe, leases) if chance.random() < 0.5]
    for _ in range(2):
        received += [one for one in run_engine(pipe, missing(leases, received), threads=2) if chance.random() < 0.5]
    received += run_engine(pipe, missing(leases, received), order="strict")
    assert sorted(tokens_of(received)) == [token for one in given for token in one["tokens"]]
    assert delivered(received) == leases.target()


def test_other_columns_are_packed_along_and_rows_draw_random_numbers_of_their_own() -> None:
    def noisy(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**row, "noise": rng.integers(1 << 62)}

    given = sequences(60)
    elements = [
        {"tokens": one, "labels": [-token for token in one], "mask": np.array(one) % 2 == 0, "document": number / 2}
        for number, one in enumerate(given)
    ]
    along = {"labels": -100, "mask": False, "document": -1}
    produced = run_engine(
        PecanPipeline(Items(elements)).pack(20, along=along, padding=-1).map(noisy).batch(4), threads=2
    )
    for one in produced:
        if one.rows:
            tokens, there = one.columns["tokens"], one.columns["segment"] > 0
            assert np.array_equal(one.columns["labels"], np.where(there, -tokens, -100))
            assert np.array_equal(one.columns["mask"], there & (tokens % 2 == 0))
            assert np.array_equal(one.columns["document"], np.where(there, tokens // 1000 / 2, -1))
    assert sorted(tokens_of(produced)) == sorted(token for one in given for token in one)
    assert len(set(column(produced, "noise"))) == len(column(produced, "noise")) > 25


LABELS = {"labels": 0}


@pytest.mark.parametrize(
    ("element", "options", "said"),
    [
        ({"tokens": [0.5]}, {}, r"pack\(on='tokens'\) needs a list of whole numbers, but got float64\[1\]"),
        ({"tokens": None}, {}, "needs a list of whole"),
        ({"ids": [1]}, {}, "there is no such column"),
        ({"tokens": np.ones(3, np.uint8)}, {"padding": -1}, "padding -1 is no value of column 'tokens'"),
        ({"tokens": [1, 2], "labels": [1]}, {"along": LABELS}, r"is int64\[1\], .* each of the 2 tokens in 'tokens'"),
        ({"tokens": [1], "labels": ["a"]}, {"along": LABELS}, r"'labels' is <U1\[1\]"),
        ({"tokens": [1]}, {"along": LABELS}, r"there is no column 'labels'; there are \['tokens'\]"),
        ({"tokens": [1], "x": np.array([1], np.uint8)}, {"along": {"x": -100}}, "padding -100 is no value of column"),
        ({"tokens": [1, 2], "labels": [3, 4]}, {}, r"'labels' has a number for each token of 'tokens' in all 2"),
        ({"tokens": [1]}, {"along": {"segment": 0}}, r"'segment' is one that pack makes itself"),
        ({"tokens": [1]}, {"along": ["labels"]}, r"pack\(along=\.\.\.\) must be"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(element: Any, options: Any, said: str) -> None:
    with pytest.raises((PlanError, KeyError, ValueError, TypeError, OutputTypeError), match=said):
        list(PecanPipeline(Items([element] * 2)).pack(4, **options).batch(1).iter_batches(debug=True))


def test_rows_of_a_group_come_mixed_and_tell_where_their_segments_begin() -> None:
    given = [np.full(length, 1) for length in np.random.default_rng(0).integers(1, 60, 400)]
    elements = [{"tokens": one, "mask": one, "bounds": np.arange(4)} for one in given]
    pipe = PecanPipeline(Items(elements), name="p").pack(64, among=400, along={}).batch(1000)
    (batch,) = pipe.iter_batches(debug=True)
    many = batch["segment"].max(axis=1) > 2
    third = len(many) // 3
    assert many[:third].mean() > many[-third:].mean() / 2, "rows do not run from long sequences to short ones"
    assert batch["position"].max() < 64
    bounds = pecan.cu_seqlens(batch["segment"])
    lengths, padding = np.diff(bounds), (batch["segment"] == 0).any(axis=1).sum()
    assert bounds.dtype == np.int32 and bounds[0] == 0 and bounds[-1] == batch["segment"].size
    assert len(lengths) == len(given) + padding
    assert pecan.cu_seqlens(np.array([1, 1, 2, 0])).tolist() == [0, 2, 3, 4]
    for wrong in (np.ones(3), np.ones((2, 2, 2), int)):
        with pytest.raises(PlanError, match='cu_seqlens needs the column "segment"'):
            pecan.cu_seqlens(wrong)


ROWS, SIZE = 53, 8


def sample(element: Any) -> Any:
    """An image and boxes, whose sizes differ from element to element."""
    i = int(element["i"])
    return {"i": i, "image": np.full((4 + i % 5, 40, 3), i), "boxes": np.full((i % 4, 4), i, np.float32)}


def detection(elements: list[Any]) -> Any:
    """What torchvision's references make of a batch: lists by image, beside arrays of any length."""
    targets = [{"boxes": torch.from_numpy(one["boxes"]), "i": one["i"]} for one in elements]
    images = [one["image"] for one in elements]
    return MappingProxyType({"images": images, "targets": targets, "rows": np.concatenate(images)})


def detected(**options: Any) -> pecan.PecanPipeline:
    source = Arrays(i=np.arange(ROWS), split_rows=5)
    return pecan.PecanPipeline(source, name="d").map(sample).batch(SIZE, collate=detection, **options)


def numbers_in(batch: Mapping[str, Any]) -> list[int]:
    for image, target in zip(batch["images"], batch["targets"], strict=True):
        assert type(image) is type(target["boxes"]) is np.ndarray
        assert (image == target["i"]).all() and len(target["boxes"]) == target["i"] % 4
    assert len(batch["rows"]) == sum(map(len, batch["images"]))
    return [target["i"] for target in batch["targets"]]


def test_a_debug_run_has_the_same_batches_as_the_engine_and_every_element_is_in_one() -> None:
    pipe = detected()
    debugged = [numbers_in(batch) for batch in pipe.iter_batches(debug=True)]
    assert debugged == [list(range(at, min(at + SIZE, ROWS))) for at in range(0, ROWS, SIZE)]
    assert [numbers_in(restore_arrays(one.columns)) for one in run_engine(pipe, order="strict")] == debugged
    assert len(pipe) == len(debugged) and len(detected(drop_remainder=True)) == ROWS // SIZE
    assert repr(pipe).endswith(".batch(8).collate(detection)")
    leases = ListedLeases(whole_leases(list(pipe.plan.sources())))
    produced = run_engine(pipe, leases=leases, threads=3)
    assert Counter(i for one in produced for i in numbers_in(restore_arrays(one.columns))) == Counter(range(ROWS))
    assert [one.rows for one in produced if one.rows].count(SIZE) == ROWS // SIZE
    assert delivered(produced) == leases.target()
    behind = pipe.map(lambda batch: {"sizes": [len(image) for image in batch["images"]]}, name="sizes").prefetch(2)
    found = [one.columns["sizes"] for one in run_engine(behind, order="strict") if one.rows]
    assert found[1] == [4 + i % 5 for i in range(SIZE, 2 * SIZE)], "functions behind it take the batch"


def test_a_batch_that_fails_is_left_out_as_one_and_what_is_none_refused() -> None:
    def pad(elements: list[Any]) -> Any:
        return {"i": np.array([100 // (20 - one["i"]) and one["i"] for one in elements])}

    pipe = pecan.PecanPipeline(Arrays(i=np.arange(ROWS), split_rows=ROWS)).map(sample).batch(SIZE, collate=pad)
    with pytest.raises(ZeroDivisionError):
        list(pipe.iter_batches(debug=True))
    produced = run_engine(pipe, order="strict", on_error="skip")
    assert {int(i) for one in produced if one.rows for i in one.columns["i"]} == {*range(ROWS)} - {*range(16, 24)}
    (bad,) = [bad for one in produced for bad in one.bad]
    assert bad.op == "pad" and bad.elements_left_out == SIZE and "ZeroDivisionError" in bad.error
    one = Items([{"i": 1}])

    def f(elements: list[Any]) -> Any:
        return (elements,)

    with pytest.raises(OutputTypeError, match=r"f returned tuple .* a dict from column name to value"):
        list(pecan.PecanPipeline(one).batch(2, collate=f).iter_batches(debug=True))
    wrong: list[tuple[Any, Any, str]] = [("python", 3, " needs a function, but got int"), ("tensorflow", f, ": the")]
    for engine, collate, said in wrong:
        with pytest.raises(PlanError, match=rf"batch\(collate=\.\.\.\){said}"):
            pecan.PecanPipeline(one, engine=engine).batch(2, collate=collate)


def test_arrays_in_containers_are_columns_of_their_own_on_the_way() -> None:
    large, small = np.arange(2000.0), np.arange(3)
    batch = {"a": [large, (small, {"b": large + 1})], "c": large, "d": [], "e": "text"}
    flat = extract_arrays(batch)
    assert sum(type(column) is np.ndarray for column in flat.values()) == 3
    back = restore_arrays(flat)
    assert list(back) == list(batch) and back["a"][0] is large and back["a"][1][0] is small
    assert np.array_equal(back["a"][1][1]["b"], large + 1) and restore_arrays(back) is back
