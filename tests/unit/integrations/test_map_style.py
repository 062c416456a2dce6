"""Map-style data sets of torch and of Hugging Face as sources."""

from __future__ import annotations

import importlib.util
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import MissingExtraError, PecanError, PlanError
from pecan_ray.integrations.map_style import LOT, HeldDataset
from pecan_ray.pipeline import PecanPipeline
from tests.source_contract import check_contract

torch: Any = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")

Pair = namedtuple("Pair", ["left", "right"])


class Squares:
    """The squares of numbers, one at a time."""

    def __init__(self, count: int = 50, failing: int = -1) -> None:
        self.count, self.failing = count, failing

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index == self.failing:
            raise OSError(f"photograph {index} is gone")
        return torch.tensor(float(index)), index * index


class Lots(Squares):
    """The same, several at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert 0 < len(indices) <= LOT
        return [{"root": float(index), "square": index * index} for index in indices]


def column(pipe: PecanPipeline, name: str) -> list[int]:
    return [int(value) for batch in pipe.batch(7).iter_batches(debug=True) for value in batch[name]]


def test_samples_become_elements_with_the_columns_that_are_named() -> None:
    pipe = PecanPipeline.from_torch_dataset(Squares(), columns=["root", "square"], name="squares")
    assert column(pipe, "square") == [i * i for i in range(50)] and pipe.name == "squares" and len(pipe.batch(7)) == 8
    element = pipe.peek()
    assert isinstance(element, dict) and isinstance(element["root"], np.ndarray)


@pytest.mark.parametrize(
    ("sample", "columns"),
    [((1, 2), {"0", "1"}), (Pair(1, 2), {"left", "right"}), (3, {"0"}), ({"a": 1, "b": 2}, {"a", "b"})],
)
def test_columns_without_names(sample: Any, columns: set[str]) -> None:
    element = PecanPipeline.from_torch_dataset([sample] * 3).peek()
    assert isinstance(element, dict) and element.keys() == columns


def test_several_are_asked_for_at_once_where_the_data_set_can() -> None:
    pipe = PecanPipeline.from_torch_dataset(Lots(100))
    assert column(pipe, "square") == [i * i for i in range(100)]
    samples = [{"root": float(i), "square": i * i} for i in range(100)]
    check_contract(next(iter(pipe.plan.sources())), samples, splits=17)


def test_data_sets_of_torch() -> None:
    tensors = data.TensorDataset(torch.arange(20), torch.ones(20, 2))
    assert column(PecanPipeline.from_torch_dataset(tensors), "0") == list(range(20))
    part = data.Subset(tensors, [3, 5, 7])
    assert column(PecanPipeline.from_torch_dataset(part), "0") == [3, 5, 7]


def test_other_data_has_another_fingerprint_and_the_same_data_the_same() -> None:
    prints = [PecanPipeline.from_torch_dataset(made).fingerprint() for made in (Squares(5), Squares(5), Squares(6))]
    assert prints[0] == prints[1] != prints[2]
    lots = [PecanPipeline.from_torch_dataset(Lots(count)).fingerprint() for count in (5, 5, 6)]
    assert lots[0] == lots[1] != lots[2]


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


class Stream(data.IterableDataset):  # type: ignore[misc]  # torch is imported by the test
    """What can only be iterated over."""

    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Stream(), "needs a map-style data set, with __getitem__ and __len__, but Stream has no"),
        ((i for i in range(3)), "generator has no __getitem__ and no __len__"),
        ("folder", "str is a text"),
    ],
)
def test_what_is_no_map_style_data_set_is_refused(dataset: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        PecanPipeline.from_torch_dataset(dataset)


def test_too_few_names_are_refused() -> None:
    with pytest.raises(PlanError, match="a sample of Squares has 2 values; name as many columns"):
        PecanPipeline.from_torch_dataset(Squares(), columns=["root"]).peek()


def test_what_is_no_dataset_of_ray_is_refused() -> None:
    with pytest.raises(PlanError, match=r"from_ray_dataset needs a ray.data.Dataset, but got list"):
        PecanPipeline.from_ray_dataset([1, 2])


# --- Hugging Face --------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed")
def test_what_to_install_for_data_sets_of_hugging_face() -> None:
    with pytest.raises(MissingExtraError, match="from_hf_dataset needs datasets: pip install datasets"):
        PecanPipeline.from_hf_dataset(Squares())


def test_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"i": list(range(100)), "text": [str(i) for i in range(100)]})
    pipe = pecan.PecanPipeline.from_hf_dataset(made)
    assert column(pipe, "i") == list(range(100))
    assert pipe.fingerprint() == pecan.PecanPipeline.from_hf_dataset(made).fingerprint()
    assert pipe.fingerprint() != pecan.PecanPipeline.from_hf_dataset(made.select(range(50))).fingerprint()
    with pytest.raises(PlanError, match=r"one of its splits: \['train'\], but got DatasetDict"):
        pecan.PecanPipeline.from_hf_dataset(datasets.DatasetDict(train=made))
    with pytest.raises(PlanError, match=r"got IterableDataset\. One that is streamed"):
        pecan.PecanPipeline.from_hf_dataset(made.to_iterable_dataset())


class Short(Lots):
    """Gives fewer samples than it is asked for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[:-1]


class Named(Squares):
    """Gives dicts."""

    def __getitem__(self, index: int) -> Any:
        return {"root": index}


class Nothing(Squares):
    """Has forgotten its `return`."""

    def __getitem__(self, index: int) -> Any:
        return None


@pytest.mark.parametrize(
    ("dataset", "columns", "said"),
    [
        (Short(20), None, r"Short.__getitems__ was asked for \d+ samples, from index 0 on, and gave \d+: it must"),
        (Named(), ["root", "square"], r"samples of Named are dicts, whose keys are the columns: \['root'\]"),
        (Nothing(), None, "a sample of Nothing is None"),
        (Squares(), ["root", "root"], "two columns have the same name"),
    ],
)
def test_no_sample_or_column_is_lost_in_silence(dataset: Any, columns: Any, said: str) -> None:
    with pytest.raises(PecanError, match=said):
        list(PecanPipeline.from_torch_dataset(dataset, columns=columns).batch(7).iter_batches(debug=True))
