"""Data sets of Hugging Face, whole, from a disk and streamed, and tables of Lance, which hold the same rows here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pecan_ray as pecan
from pecan_ray.errors import ColumnError, PlanError, SourceNotFoundError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import HuggingFace, Lance
from pecan_ray.sources.hugging_face_numbers import exact_columns
from tests.source_contract import check_contract, elements_of, same

ROWS = 40
EXPECTED: list[dict[str, Any]] = [
    {"n": np.int64(n), "text": f"text {n}", "vector": np.array([n, n + 0.5], np.float32)} for n in range(ROWS)
]
BIG = 2**53 + 1
THIRDS = np.array([1 / 3, 2 / 3])


def table() -> Any:
    datasets = pytest.importorskip("datasets")
    kinds = {"n": datasets.Value("int64"), "text": datasets.Value("string")}
    kinds["vector"] = datasets.Sequence(datasets.Value("float32"), length=2)
    rows = {name: [one[name] for one in EXPECTED] for name in ("n", "text", "vector")}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


def test_a_folder_is_opened_where_it_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    check_contract(HuggingFace(table(), split_rows=15), EXPECTED, splits=3)
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
    streamed = HuggingFace(table().to_iterable_dataset(num_shards=4))
    check_contract(streamed, plain, splits=4)
    with pytest.raises(PlanError, match="streamed"):
        PecanPipeline(streamed, shuffle=True)


def test_a_format_that_it_has_stays_and_columns_that_were_chosen_stay_chosen() -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("torch")
    pipe = pecan.PecanPipeline(HuggingFace(table().with_format("torch"), split_rows=8)).batch(8)
    batches = list(pipe.iter_batches(debug=True))
    assert len(batches) == 5 and batches[0]["vector"].shape == (8, 2) and batches[0]["vector"].dtype == np.float32
    assert [n for batch in batches for n in batch["n"].tolist()] == list(range(ROWS))
    held = datasets.Dataset.from_dict({"x": [1 / 3], "y": [1]})
    held.set_format(type=None, columns=["x"])
    assert elements_of(HuggingFace(held)) == [{"x": np.float64(1 / 3)}]


def test_what_is_no_data_set_and_formats_that_give_tables_are_refused() -> None:
    pytest.importorskip("datasets")
    for wrong in (5, [{"x": 1}], None):
        with pytest.raises(PlanError, match=r"HuggingFace needs a datasets.Dataset, .* but got"):
            HuggingFace(wrong)
    for held in (table(), table().to_iterable_dataset()):
        for kind in ("arrow", "pandas"):
            with pytest.raises(PlanError, match=f"the data set's format is '{kind}', which gives tables and not rows"):
                HuggingFace(held.with_format(kind))


def test_pipelines_of_the_same_data_set_have_one_fingerprint() -> None:
    datasets, held, made = pytest.importorskip("datasets"), table(), PecanPipeline.from_hf_dataset
    assert made(held).fingerprint() == made(held).fingerprint() != made(held.select(range(9))).fingerprint()
    with pytest.raises(PlanError, match=r"one of its splits: \['train'\], but got DatasetDict"):
        made(datasets.DatasetDict(train=held))


# --- numbers that the format of NumPy would change ---------------------------------------------------------------


@pytest.mark.parametrize("make", [HuggingFace, lambda held: next(PecanPipeline.from_hf_dataset(held).plan.sources())])
def test_numbers_that_the_numpy_format_would_change_are_exact(make: Any) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"x": pa.array([[1 / 3]]), "id": pa.array([2**64 - 1], pa.uint64()), "n": pa.array([1], pa.int8())}
    (row,) = elements_of(make(datasets.Dataset(pa.table(columns))))
    assert same(row, {"x": np.array([1 / 3]), "id": np.uint64(2**64 - 1), "n": np.int64(1)})


FLOATS = pa.list_(pa.float64())
TEXT = {"text": pa.string(), "starts": pa.list_(pa.int32())}


@pytest.mark.parametrize(
    ("kind", "stored", "read"),
    [
        (pa.float64(), [1 / 3, None], [np.float64(1 / 3), np.float64("nan")]),
        (pa.uint64(), [2**64 - 1, 1], [np.uint64(2**64 - 1), np.uint64(1)]),
        (pa.int64(), [BIG, None], [np.int64(BIG), None]),
        (FLOATS, [[1 / 3, 2 / 3], [0.1]], [THIRDS, np.array([0.1])]),
        (pa.list_(pa.uint64(), 2), [[2**64 - 1, 1]], [np.array([2**64 - 1, 1], np.uint64)]),
        (pa.list_(pa.int64()), [[BIG, None], [1, 2]], [[np.int64(BIG), None], np.array([1, 2])]),
        (pa.list_(FLOATS), [[[1 / 3, 2 / 3]], None], [THIRDS[None], None]),
        (pa.struct({"x": FLOATS, "n": pa.int64()}), [{"x": THIRDS, "n": BIG}], [{"x": THIRDS, "n": np.int64(BIG)}]),
        (pa.list_(pa.struct({"x": pa.float64()})), [[{"x": 1 / 3}]], [[{"x": np.float64(1 / 3)}]]),
        (pa.float32(), [0.5, None], None),
        (pa.int64(), [BIG, 2], None),
        (pa.list_(pa.list_(pa.float32())), [[[0.5, 2.0]]], None),
        (pa.struct(TEXT), [{"text": "a", "starts": [1]}], None),
        (pa.string(), ["a", None], None),
    ],
)
def test_what_the_numpy_format_gives_exactly_is_left_to_it(kind: Any, stored: Any, read: Any) -> None:
    found = exact_columns(pa.table({"x": pa.array(stored, kind)}))
    assert same(found, {} if read is None else {"x": read})


# --- tables of Lance --------------------------------------------------------------------------------------------


def test_a_version_stays_what_it_was_while_rows_are_deleted_and_added(tmp_path: Path) -> None:
    lance, uri, rows = pytest.importorskip("lance"), str(tmp_path / "rows.lance"), EXPECTED[:25]
    held = table().select(range(25)).with_format("arrow")[:]
    lance.write_dataset(held, uri, max_rows_per_file=10, max_rows_per_group=10)  # of three fragments
    check_contract(Lance(uri, batch_rows=4), rows, splits=3)
    source = Lance(uri, ["n"])
    before, identity = list(source.splits()), source.identity()
    lance.dataset(uri).delete("n = 3 or n >= 20")
    assert source.identity() != identity
    assert [row["n"] for row in source.read(before[0])] == list(range(10))
    check_contract(source, [{"n": np.int64(n)} for n in range(20) if n != 3], splits=2)
    check_contract(Lance(uri, ["n"], version=1), [{"n": row["n"]} for row in rows], splits=3)
    with pytest.raises(ColumnError, match=r"rows.lance has no column 'label'; there are \['n', 'text', 'vector'\]"):
        list(Lance(uri, "label").splits())
    with pytest.raises(SourceNotFoundError, match="cannot be opened as a table of Lance"):
        list(Lance(str(tmp_path / "none.lance")).splits())
