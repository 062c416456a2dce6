"""A pipeline as a data set of torch: passes, DataLoader, devices, and what is refused."""

from __future__ import annotations

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


def test_each_pass_of_a_data_loader_is_an_epoch() -> None:
    loader = data.DataLoader(rows().to_torch(debug=True), batch_size=None, num_workers=0)
    for _ in range(3):
        batches = list(loader)
        assert [tuple(batch["x"].shape) for batch in batches] == [(2, 2), (2, 2), (1, 2)]
        assert all(isinstance(batch["i"], torch.Tensor) for batch in batches) and ids(batches) == list(range(5))
    assert len(loader) == 3


def test_a_random_pipeline_gives_other_numbers_in_each_pass() -> None:
    def noise(x: Any, rng: np.random.Generator) -> Any:
        return x + rng.normal(size=2).astype(np.float32)

    data_set = PecanPipeline(Arrays(x=np.zeros((4, 2), np.float32))).map(noise, on="x").batch(4).to_torch(debug=True)
    first, second = (next(iter(list(data_set)))["x"] for _ in range(2))
    assert not torch.equal(first, second)


def test_a_pass_that_was_left_is_gone_on_with() -> None:
    data_set = rows().to_torch(debug=True)
    left = next(iter(data_set))
    assert ids([left]) + ids(data_set) == list(range(5)) == ids(data_set)


def test_more_passes_than_epochs_are_refused_until_it_is_closed() -> None:
    data_set = rows().to_torch(epochs=1, debug=True)
    assert ids(data_set) == list(range(5))
    with pytest.raises(PlanError, match=r"rows.to_torch\(\): all of its epochs=1 were given"):
        next(iter(data_set))
    data_set.close()
    assert ids(data_set) == list(range(5))


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_of_a_data_loader_are_refused(workers: int) -> None:
    loader = data.DataLoader(rows().to_torch(debug=True), batch_size=None, num_workers=workers)
    with pytest.raises(PlanError, match=f"rows.to_torch.. was given to a DataLoader with num_workers={workers}"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 4}, r"to_torch\(batch_size=...\): make batches by the pipeline's .batch"),
        ({"num_workers": 4}, r"to_torch\(num_workers=...\): pecan_ray has workers of its own"),
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


def test_the_length_for_one_of_several_ranks_is_not_known() -> None:
    with pytest.raises(TypeError, match="several ranks"):
        len(rows().to_torch(rank=0, world_size=2, epochs=1))


def test_several_ranks_say_how_many_epochs_there_are() -> None:
    with pytest.raises(PlanError, match="to_torch: 2 ranks share the job, which they can only leave together"):
        rows().to_torch(rank=0, world_size=2)


# --- devices -------------------------------------------------------------------------------------------------


def test_the_cpu_costs_no_copy() -> None:
    assert devices.on_device("cpu") is None
    (batch,) = PecanPipeline(Arrays(i=np.arange(2))).batch(2).iter_batches(format="torch", device="cpu", debug=True)
    assert batch["i"].device.type == "cpu"


def test_batches_go_to_a_device_and_what_is_no_tensor_stays() -> None:
    pipe = PecanPipeline(Arrays(x=np.ones((4, 3)), name=np.array(["a", "b", "c", "d"], object))).batch(2)
    for batch in pipe.to_torch(device=torch.device("meta"), debug=True):
        assert batch["x"].device.type == "meta" and batch["x"].shape == (2, 3) and isinstance(batch["name"][0], str)


def test_a_staged_copy_is_taken_for_its_own_batch_only() -> None:
    copies = devices.on_device("meta")
    mine, other = {"x": torch.ones(2)}, {"x": torch.ones(3)}
    copies.stage(mine, mine)
    assert copies.take(mine)["x"].shape == (2,) and copies.take(mine) is None, "once"
    copies.stage(mine, mine)
    assert copies.take(other) is None and copies.take(mine) is None, "another one came: it was given back"


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
