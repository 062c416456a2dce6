"""A pipeline as a data set of torch: passes, DataLoader, devices, and what is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError, StateError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

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
    with pytest.raises(PlanError, match="on_break='anew' is neither"):
        rows().to_torch(on_break="anew")  # type: ignore[arg-type]  # what is refused
    data_set = rows().to_torch(epochs=2, debug=True)
    next(iter(data_set))  # one that is left counts
    assert ids(data_set) == list(range(5))
    with pytest.raises(PlanError, match=r"rows.to_torch\(\): all of its epochs=2 were given"):
        next(iter(data_set))
    data_set.close()
    assert ids(data_set) == list(range(5))


def test_a_length_is_that_of_an_epoch_and_several_ranks_have_none() -> None:
    with pytest.raises(TypeError, match="several ranks"):
        len(rows().to_torch(rank=0, world_size=2, epochs=1))
    with pytest.raises(PlanError, match="to_torch: 2 ranks share the job, which they can only leave together"):
        rows().to_torch(rank=0, world_size=2)
    for most in (2, 9):
        data_set = rows().to_torch(debug=True, epoch_batches=most)
        assert len(data_set) == len(list(data_set))
        assert rows().to_tf_dataset(debug=True, epoch_batches=most).cardinality() == len(data_set)
    with pytest.raises(TypeError, match="steps="):
        len(rows().to_torch(debug=True, steps=2))


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_of_a_data_loader_are_refused(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", 0.05)  # torch waits so long for one that has failed
    batches = iter(data.DataLoader(rows().to_torch(debug=True), batch_size=None, num_workers=workers))
    with pytest.raises(PlanError, match=f"rows.to_torch.. was given to a DataLoader with num_workers={workers}"):
        next(batches)
    batches._shutdown_workers()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 4}, r"to_torch\(batch_size=...\) is not of pecan_ray: make batches"),
        ({"num_workers": 4}, r"to_torch\(num_workers=...\) is not of pecan_ray: workers=4 fixes"),
        ({"state": {}}, r"load_state_dict"),
        ({"format": "tf"}, "to_torch has no argument 'format'"),
        ({"epoch": 1}, "to_torch has no argument 'epoch'"),
    ],
)
def test_what_loaders_of_others_take_is_refused_with_what_does_it_here(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        rows().to_torch(**options)


def test_a_state_of_something_else_is_refused() -> None:
    for state in ({}, {"pecan_ray_state": 1, "epochs": None}, None):
        with pytest.raises(StateError, match=r"rows.to_torch\(\): this is no state of it"):
            rows().to_torch(debug=True).load_state_dict(state)


# --- devices -------------------------------------------------------------------------------------------------


def test_batches_go_to_a_device_and_what_is_no_tensor_stays() -> None:
    assert devices.on_device("cpu") is None, "which costs no copy"
    pipe = PecanPipeline(Arrays(x=np.ones((4, 3)), name=np.array(["a", "b", "c", "d"], object))).batch(2)
    for device in ("cpu", torch.device("meta")):
        for batch in pipe.to_torch(device=device, debug=True):
            assert batch["x"].device == torch.device(device) and batch["x"].shape == (2, 3)
            assert isinstance(batch["name"][0], str)


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
    copies, (first, second, third) = Copies(), numbered(1, 2, 3)
    assert copies.take(first)["i"].tolist() == [1, 1]
    copies.client.meets(second).join()
    assert copies.take(second)["i"].tolist() == [2, 2]
    copies.may_copy.clear()
    copies.begun.clear()
    copies.client.meets(third)
    assert copies.begun.wait(60)
    with ThreadPoolExecutor(1) as loop:
        taken = loop.submit(copies.take, third)
        assert not taken.done()
        copies.may_copy.set()
        assert taken.result(60)["i"].tolist() == [3, 3]
    assert copies.by == ["MainThread", "ahead", "ahead"]
    copies, (first, second, third) = Copies(), numbered(1, 2, 3)
    copies.take(first)
    copies.client.meets(first).join()  # the loop has it
    copies.client.meets(second).join()
    copies.client.meets(third).join()  # before the loop has taken the copy of one
    assert [int(copies.take(one)["i"][0]) for one in (second, third)] == [2, 3]
    assert copies.by == ["MainThread", "ahead", "ahead"]


def test_the_copy_of_a_lost_batch_goes_to_no_other_and_its_error_comes_where_its_batch_would() -> None:
    copies, (first, lost, other) = Copies(), numbered(1, 2, 3)
    copies.take(first)
    copies.client.meets(lost).join()
    assert copies.take(other)["i"].tolist() == [3, 3]
    copies.client.meets(lost).join()
    copies.client.meets(other).join()
    assert copies.take(other)["i"].tolist() == [3, 3]
    copies, (first, third), broken = Copies(), numbered(1, 3), {"broken": np.ones(1)}
    copies.take(first)
    copies.client.meets(broken).join()
    with pytest.raises(ValueError, match="it cannot be copied"):
        copies.take(broken)
    copies.client.meets(third).join()
    assert copies.take(third)["i"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("device", "format", "words"),
    [
        ("nonsense", "torch", "device='nonsense' is no device of torch"),
        ("cuda:99", "torch", r"sees \d+ CUDA devices in this process"),
        ("cpu", "numpy", "device='cpu' needs format=\"torch\""),
    ],
)
def test_a_device_that_is_not_there_is_refused(device: str, format: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        rows().iter_batches(device=device, format=format, debug=True)
