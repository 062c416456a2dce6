"""Batches that a function of the user's makes of a list of elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pecan_ray as pecan
from pecan_ray.engines.nested_columns import extract_arrays, restore_arrays
from pecan_ray.errors import BatchShapeError, OutputTypeError, PlanError
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import ListedLeases, delivered, run_engine, whole_leases

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


def numbers(batch: Mapping[str, Any]) -> list[int]:
    for image, target in zip(batch["images"], batch["targets"], strict=True):
        assert type(image) is type(target["boxes"]) is np.ndarray
        assert (image == target["i"]).all() and len(target["boxes"]) == target["i"] % 4
    assert len(batch["rows"]) == sum(map(len, batch["images"]))
    return [target["i"] for target in batch["targets"]]


def test_a_debug_run_has_the_same_batches_as_the_engine() -> None:
    pipe = detected()
    debugged = [numbers(batch) for batch in pipe.iter_batches(debug=True)]
    assert debugged == [list(range(at, min(at + SIZE, ROWS))) for at in range(0, ROWS, SIZE)]
    assert [numbers(restore_arrays(one.columns)) for one in run_engine(pipe, order="strict")] == debugged
    assert len(pipe) == len(debugged) and len(detected(drop_remainder=True)) == ROWS // SIZE
    assert repr(pipe).endswith(".batch(8).collate(detection)")


def test_every_element_is_in_one_batch_and_positions_say_in_which() -> None:
    pipe = detected()
    leases = ListedLeases(whole_leases(list(pipe.plan.sources())))
    produced = run_engine(pipe, leases=leases, threads=3)
    assert Counter(i for one in produced for i in numbers(restore_arrays(one.columns))) == Counter(range(ROWS))
    assert [one.rows for one in produced if one.rows].count(SIZE) == ROWS // SIZE
    assert delivered(produced) == leases.wanted()


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_a_batch_that_fails_is_left_out_as_one(on_error: Any) -> None:
    def pad(elements: list[Any]) -> Any:
        return {"i": np.array([100 // (20 - one["i"]) and one["i"] for one in elements])}

    pipe = pecan.PecanPipeline(Arrays(i=np.arange(ROWS), split_rows=ROWS)).map(sample).batch(SIZE, collate=pad)
    with pytest.raises(ZeroDivisionError):
        list(pipe.iter_batches(debug=True))
    produced = run_engine(pipe, order="strict", on_error=on_error)
    assert {int(i) for one in produced if one.rows for i in one.columns["i"]} == {*range(ROWS)} - {*range(16, 24)}
    (bad,) = [bad for one in produced for bad in one.bad]
    assert bad.op == "pad" and bad.elements_left_out == SIZE and "ZeroDivisionError" in bad.error


def test_a_function_with_a_generator_draws_the_same_for_the_same_batch() -> None:
    def mask(elements: list[Any], rng: np.random.Generator) -> Any:
        return {"x": rng.random(len(elements))}

    pipe = pecan.PecanPipeline(Arrays(i=np.arange(ROWS))).batch(SIZE, collate=mask)
    first, second = ([batch["x"] for batch in pipe.iter_batches(debug=True, epochs=2)] for _ in range(2))
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[0], second[0])
    again = [batch["x"] for batch in pipe.iter_batches(debug=True, first_epoch=0)]
    assert all(map(np.array_equal, again, first))


def test_functions_behind_it_take_the_batch() -> None:
    pipe = detected().map(lambda batch: {"sizes": [len(image) for image in batch["images"]]}, name="sizes").prefetch(2)
    found = [one.columns["sizes"] for one in run_engine(pipe, order="strict") if one.rows]
    assert found[1] == [4 + i % 5 for i in range(SIZE, 2 * SIZE)]


def test_ragged_lists_of_parquet_and_tensors_for_torch(tmp_path: Any) -> None:
    lists = [[*range(i % 3)] for i in range(10)]
    pq.write_table(pa.table({"x": lists}), tmp_path / "lists.parquet")
    source = pecan.sources.Parquet(str(tmp_path))
    with pytest.raises(BatchShapeError, match=r"collate=fn"):
        list(pecan.PecanPipeline(source).batch(10).iter_batches(debug=True))
    pipe = pecan.PecanPipeline(source).batch(10, collate=lambda elements: {"x": [one["x"] for one in elements]})
    (batch,) = pipe.iter_batches(debug=True, format="torch")
    assert [one.tolist() if isinstance(one, torch.Tensor) else list(one) for one in batch["x"]] == lists
    image = next(iter(detected().iter_batches(debug=True, format="torch")))["images"][0]
    assert isinstance(image, torch.Tensor) and image.shape == (4, 40, 3)


def test_what_is_no_batch_is_refused() -> None:
    pipe = pecan.PecanPipeline(Items([{"i": 1}]))

    def f(elements: list[Any]) -> Any:
        return (elements,)

    with pytest.raises(OutputTypeError, match=r"f returned tuple .* a dict from column name to value"):
        list(pipe.batch(2, collate=f).iter_batches(debug=True))
    wrong: Any = 3
    with pytest.raises(PlanError, match=r"batch\(collate=\.\.\.\) needs a function, but got int"):
        pipe.batch(2, collate=wrong)
    with pytest.raises(PlanError, match=r"batch\(collate=\.\.\.\): the tensorflow engine"):
        pecan.PecanPipeline(Items([{"i": 1}]), engine="tensorflow").batch(2, collate=f)


def test_arrays_in_containers_are_columns_of_their_own_on_the_way() -> None:
    large, small = np.arange(2000.0), np.arange(3)
    batch = {"a": [large, (small, {"b": large + 1})], "c": large, "d": [], "e": "text"}
    flat = extract_arrays(batch)
    assert sum(type(column) is np.ndarray for column in flat.values()) == 3
    back = restore_arrays(flat)
    assert list(back) == list(batch) and back["a"][0] is large and back["a"][1][0] is small
    assert np.array_equal(back["a"][1][1]["b"], large + 1) and restore_arrays(back) is back
