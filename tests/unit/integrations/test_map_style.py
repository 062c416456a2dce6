"""Map-style data sets of torch and of Hugging Face as sources."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PecanError, PlanError
from pecan_ray.integrations.map_style import LOT, HeldDataset
from pecan_ray.pipeline import PecanPipeline
from tests.source_contract import check_contract

torch: Any = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")

Pair = namedtuple("Pair", ["left", "right"])


class Squares:
    def __init__(self, count: int = 50, failing: int = -1) -> None:
        self.count, self.failing = count, failing

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index == self.failing:
            raise OSError(f"photograph {index} is gone")
        return torch.tensor(float(index)), index * index


class Lots(Squares):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert 0 < len(indices) <= LOT
        return [{"root": float(index), "square": index * index} for index in indices]


class Short(Lots):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[:-1]


class Named(Squares):
    def __getitem__(self, index: int) -> Any:
        return {"root": index}


class Nothing(Squares):
    def __getitem__(self, index: int) -> Any:
        return None


class Stream(data.IterableDataset):  # type: ignore[misc]  # torch is imported by the test
    def __iter__(self) -> Any:
        return iter(range(3))


def column(pipe: PecanPipeline, name: str) -> list[int]:
    return [int(value) for batch in pipe.batch(7).iter_batches(debug=True) for value in batch[name]]


def test_several_are_asked_for_at_once_where_the_data_set_can_and_samples_have_named_columns() -> None:
    pipe = PecanPipeline.from_torch_dataset(Squares(), columns=["root", "square"], name="squares")
    assert column(pipe, "square") == [i * i for i in range(50)] and pipe.name == "squares" and len(pipe.batch(7)) == 8
    element = pipe.peek()
    assert isinstance(element, dict) and isinstance(element["root"], np.ndarray)
    pipe = PecanPipeline.from_torch_dataset(Lots(100))
    samples = [{"root": float(i), "square": i * i} for i in range(100)]
    check_contract(next(iter(pipe.plan.sources())), samples, splits=17)


@pytest.mark.parametrize(
    ("dataset", "columns"),
    [
        ([(1, 2)] * 3, {"0": 1, "1": 2}),
        ([Pair(1, 2)] * 3, {"left": 1, "right": 2}),
        ([3], {"0": 3}),
        ([{"a": 1, "b": 2}], {"a": 1, "b": 2}),
        (data.Subset(data.TensorDataset(torch.arange(20), torch.ones(20)), [3, 5]), {"0": 3, "1": 1}),
    ],
)
def test_columns_without_names(dataset: Any, columns: dict[str, int]) -> None:
    assert PecanPipeline.from_torch_dataset(dataset).peek() == columns


@pytest.mark.parametrize("kind", [Squares, Lots])
def test_other_data_has_another_fingerprint_and_the_same_data_the_same(kind: type[Squares]) -> None:
    prints = [PecanPipeline.from_torch_dataset(kind(count)).fingerprint() for count in (5, 5, 6)]
    assert prints[0] == prints[1] != prints[2]


def test_an_error_names_the_data_set_and_the_element() -> None:
    pipe = PecanPipeline.from_torch_dataset(Squares(failing=17), columns=["root", "square"])
    with pytest.raises(OSError, match="photograph 17 is gone") as caught:
        column(pipe, "square")
    notes = getattr(caught.value, "__notes__", None)
    assert notes is None or any("Squares failed on element 2 of split 5" in note for note in notes)  # None: Python 3.10
    batches = pipe.batch(7).iter_batches(debug=True, on_error="skip")
    assert sum(len(batch["square"]) for batch in batches) == 49


def test_a_process_of_a_worker_has_random_numbers_of_its_own_and_that_of_the_user_keeps_its(monkeypatch: Any) -> None:
    monkeypatch.setattr("pecan_ray.integrations.map_style._reseeded", [])
    held = HeldDataset(Squares(), None)
    there = pickle.loads(pickle.dumps(held))
    torch.manual_seed(1)
    held.fetch({"index": 0})
    assert torch.initial_seed() == 1
    there.fetch({"index": 0})
    assert torch.initial_seed() != 1


@pytest.mark.parametrize(
    ("dataset", "columns", "said"),
    [
        (Stream(), None, "needs a map-style data set, with __getitem__ and __len__, but Stream has no"),
        ((i for i in range(3)), None, "generator has no __getitem__ and no __len__"),
        ("folder", None, "str is a text"),
        (Squares(), ["root"], "a sample of Squares has 2 values; name as many columns"),
        (Short(20), None, r"Short.__getitems__ was asked for \d+ samples, from index 0 on, and gave \d+: it must"),
        (Named(), ["root", "square"], r"samples of Named are dicts, whose keys are the columns: \['root'\]"),
        (Nothing(), None, "a sample of Nothing is None"),
        (Squares(), ["root", "root"], "two columns have the same name"),
    ],
)
def test_what_is_no_data_set_or_would_lose_something_is_refused(dataset: Any, columns: Any, said: str) -> None:
    with pytest.raises(PecanError, match=said):
        list(PecanPipeline.from_torch_dataset(dataset, columns=columns).batch(7).iter_batches(debug=True))


def test_data_sets_of_ray_and_of_hugging_face() -> None:
    with pytest.raises(PlanError, match=r"from_ray_dataset needs a ray.data.Dataset, but got list"):
        PecanPipeline.from_ray_dataset([1, 2])
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"i": list(range(100)), "text": [str(i) for i in range(100)]})
    pipe = PecanPipeline.from_hf_dataset(made)
    assert column(pipe, "i") == list(range(100))
    assert pipe.fingerprint() == PecanPipeline.from_hf_dataset(made).fingerprint()
    assert pipe.fingerprint() != PecanPipeline.from_hf_dataset(made.select(range(50))).fingerprint()
    with pytest.raises(PlanError, match=r"one of its splits: \['train'\], but got DatasetDict"):
        PecanPipeline.from_hf_dataset(datasets.DatasetDict(train=made))
    streamed = made.to_iterable_dataset(num_shards=4)
    assert column(PecanPipeline.from_hf_dataset(streamed), "i") == list(range(100))
