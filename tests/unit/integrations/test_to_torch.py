"""A pipeline as a data set of torch, and data sets of torch as sources."""

from __future__ import annotations

import pickle
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.integrations.map_style import LOT, HeldDataset
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays
from tests.source_contract import check_contract

torch: Any = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")
devices: Any = pytest.importorskip("pecan_ray.integrations.devices")


def rows(count: int = 5) -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(count), x=np.ones((count, 2), np.float32)), name="rows").batch(2)


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def test_a_pass_that_was_left_counts_unless_it_is_gone_on_with() -> None:
    data_set = rows().to_torch(debug=True, on_break="continue")
    left = next(iter(data_set))
    assert ids([left]) + ids(data_set) == list(range(5)) == ids(data_set)
    data_set = rows().to_torch(epochs=2, debug=True)
    next(iter(data_set))  # one that is left counts
    assert ids(data_set) == list(range(5))
    with pytest.raises(PlanError, match="all of its epochs=2 were given"):
        next(iter(data_set))
    data_set.close()
    assert ids(data_set) == list(range(5))
    for most in (2, 9):
        data_set = rows().to_torch(debug=True, epoch_batches=most)
        assert len(data_set) == len(list(data_set)), "a length is that of an epoch"
        assert rows().to_tf_dataset(debug=True, epoch_batches=most).cardinality() == len(data_set)


def test_batches_go_to_a_device_and_what_is_no_tensor_stays() -> None:
    assert devices.on_device("cpu") is None, "which costs no copy"
    pipe = PecanPipeline(Arrays(x=np.ones((4, 3)), name=np.array(["a", "b", "c", "d"], object))).batch(2)
    for device in ("cpu", torch.device("meta")):
        for batch in pipe.to_torch(device=device, debug=True):
            assert batch["x"].device == torch.device(device) and batch["x"].shape == (2, 3)
            assert isinstance(batch["name"][0], str)
    for device, words in (("nonsense", "is no device of torch"), ("cuda:99", r"sees \d+ CUDA devices in this process")):
        with pytest.raises(PlanError, match=f"device='{device}' .*{words}|{words}"):
            rows().iter_batches(device=device, format="torch", debug=True)


class Ahead:
    """A client of which a test says which batch the thread that looks ahead has met."""

    def on_next_batch(self, prepare: Any) -> None:
        self.prepare = prepare

    def meets(self, columns: Any) -> threading.Thread:
        thread = threading.Thread(target=self.prepare, args=(columns,), name="ahead")
        thread.start()
        return thread


class Copies:
    """A device that notes which thread copies to it, and waits where a test wants it to."""

    def __init__(self) -> None:
        self.device, self.client = devices.OnDevice(torch.device("cpu")), Ahead()
        self.by: list[str] = []
        self.may_copy, self.begun = threading.Event(), threading.Event()
        self.may_copy.set()

    def take(self, columns: Any) -> Any:
        return self.device.deliver(columns, self.convert, self.client)

    def convert(self, columns: Any) -> Any:
        self.by.append(threading.current_thread().name)
        self.begun.set()
        assert self.may_copy.wait(60)
        if "broken" in columns:
            raise ValueError("it cannot be copied")
        return {name: torch.from_numpy(value) for name, value in columns.items()}


def numbered(*numbers: int) -> list[dict[str, Any]]:
    return [{"i": np.full(2, number)} for number in numbers]


def test_each_batch_is_copied_once_on_a_thread_of_its_own_and_waited_for() -> None:
    copies, (first, second, third, fourth) = Copies(), numbered(1, 2, 3, 4)
    copies.take(first)
    copies.client.meets(first).join()  # the loop has it
    copies.client.meets(second).join()
    copies.client.meets(third).join()  # before the loop has taken the copy of one
    assert [int(copies.take(one)["i"][0]) for one in (second, third)] == [2, 3]
    copies.may_copy.clear()
    copies.begun.clear()
    copies.client.meets(fourth)
    assert copies.begun.wait(60)
    with ThreadPoolExecutor(1) as loop:
        taken = loop.submit(copies.take, fourth)
        assert not taken.done()
        copies.may_copy.set()
        assert taken.result(60)["i"].tolist() == [4, 4]
    assert copies.by == ["MainThread", "ahead", "ahead", "ahead"]


def test_the_copy_of_a_lost_batch_goes_to_no_other_and_its_error_comes_where_its_batch_would() -> None:
    copies, (first, lost, other) = Copies(), numbered(1, 2, 3)
    copies.take(first)
    copies.client.meets(lost).join()
    assert copies.take(other)["i"].tolist() == [3, 3]
    copies.client.meets(lost).join()
    copies.client.meets(other).join()
    assert copies.take(other)["i"].tolist() == [3, 3]
    broken = {"broken": np.ones(1)}
    copies.client.meets(broken).join()
    with pytest.raises(ValueError, match="it cannot be copied"):
        copies.take(broken)
    copies.client.meets(lost).join()
    assert copies.take(lost)["i"].tolist() == [2, 2]


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
    tensors = data.Subset(data.TensorDataset(torch.arange(20), torch.ones(20)), [3, 5])
    for dataset, columns in (([Pair(1, 2)], {"left": 1, "right": 2}), ([3], {"0": 3}), (tensors, {"0": 3, "1": 1})):
        assert PecanPipeline.from_torch_dataset(dataset).peek() == columns
    for kind in (Squares, Lots):
        prints = [PecanPipeline.from_torch_dataset(kind(count)).fingerprint() for count in (5, 5, 6)]
        assert prints[0] == prints[1] != prints[2], "other data has another fingerprint"


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
