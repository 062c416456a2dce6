"""Data sets of Hugging Face: whole, from a disk, and streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, SourceNotFoundError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import HuggingFace
from tests.source_contract import check_contract, elements_of
from tests.unit.sources.test_hugging_face_numbers import assert_alike

datasets = pytest.importorskip("datasets")

ROWS = 40


def row_of(n: int) -> dict[str, Any]:
    """A row as it is read."""
    return {"n": np.int64(n), "text": f"text {n}", "vector": np.array([n, n + 0.5], np.float32)}


EXPECTED = [row_of(n) for n in range(ROWS)]


def table() -> Any:
    """A data set of three columns."""
    features = {"n": "int64", "text": "string"}
    kinds = {name: datasets.Value(kind) for name, kind in features.items()}
    kinds["vector"] = datasets.Sequence(datasets.Value("float32"), length=2)
    rows = {name: [one[name] for one in EXPECTED] for name in ("n", "text", "vector")}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


def test_a_table_is_cut_into_row_ranges() -> None:
    check_contract(HuggingFace(table(), split_rows=15), EXPECTED, splits=3)


def test_a_folder_is_opened_where_it_is_read(tmp_path: Path) -> None:
    table().save_to_disk(str(tmp_path / "table"))
    source = HuggingFace(tmp_path / "table")
    check_contract(source, EXPECTED, splits=20)
    assert "_held" not in source.__getstate__()
    datasets.DatasetDict(train=table(), test=table().select(range(4))).save_to_disk(str(tmp_path / "several"))
    assert HuggingFace(str(tmp_path / "several"), split="test").num_elements() == 4
    with pytest.raises(PlanError, match=r"give split=..., one of \['test', 'train'\]"):
        list(HuggingFace(str(tmp_path / "several")).splits())
    with pytest.raises(SourceNotFoundError, match="holds no data set that save_to_disk has written"):
        list(HuggingFace(str(tmp_path / "none")).splits())


def test_a_streamed_data_set_is_cut_into_its_shards() -> None:
    plain = [{**one, "n": int(one["n"]), "vector": one["vector"].tolist()} for one in EXPECTED]
    check_contract(HuggingFace(table().to_iterable_dataset(num_shards=4)), plain, splits=4)


def test_a_format_that_it_has_stays() -> None:
    pytest.importorskip("torch")
    pipe = pecan.PecanPipeline(HuggingFace(table().with_format("torch"), split_rows=8)).batch(8)
    batches = list(pipe.iter_batches(debug=True))
    assert len(batches) == 5 and batches[0]["vector"].shape == (8, 2) and batches[0]["vector"].dtype == np.float32
    assert [n for batch in batches for n in batch["n"].tolist()] == list(range(ROWS))


@pytest.mark.parametrize("wrong", [5, [{"x": 1}], None])
def test_what_is_no_data_set_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"HuggingFace needs a datasets.Dataset, .* but got"):
        HuggingFace(wrong)


@pytest.mark.parametrize("make", [HuggingFace, lambda held: next(PecanPipeline.from_hf_dataset(held).plan.sources())])
def test_numbers_that_the_numpy_format_would_change_are_exact(make: Any) -> None:
    columns = {"x": pa.array([[1 / 3]]), "id": pa.array([2**64 - 1], pa.uint64()), "n": pa.array([1], pa.int8())}
    source = make(datasets.Dataset(pa.table(columns)))
    (row,) = elements_of(source)
    assert_alike(row, {"x": np.array([1 / 3]), "id": np.uint64(2**64 - 1), "n": np.int64(1)})


def test_columns_that_were_chosen_stay_chosen() -> None:
    held = datasets.Dataset.from_dict({"x": [1 / 3], "y": [1]})
    held.set_format(type=None, columns=["x"])
    assert elements_of(HuggingFace(held)) == [{"x": np.float64(1 / 3)}]


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
@pytest.mark.parametrize("streamed", [False, True])
def test_formats_that_give_tables_are_refused(kind: str, streamed: bool) -> None:
    held = table().to_iterable_dataset() if streamed else table()
    with pytest.raises(PlanError, match=f"the data set's format is '{kind}', which gives tables and not rows"):
        HuggingFace(held.with_format(kind))
