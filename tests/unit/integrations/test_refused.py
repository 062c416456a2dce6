"""What data sets, loaders and trainers of frameworks refuse, in words that are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.integrations.formats import converter
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

for package in ("torch", "keras", "tensorflow", "pytorch_lightning"):
    pytest.importorskip(package)
ray_train: Any = pytest.importorskip("pecan_ray.integrations.ray_train")
lightning: Any = pytest.importorskip("pecan_ray.integrations.lightning_data")

WRITTEN = Path(__file__).with_name("refused.txt")
"""Two lines for each call; `python -m tests.unit.integrations.test_refused` writes all anew."""


class Pairs:
    """A data set of torch whose answers lack so many of the samples that were asked for."""

    def __init__(self, lacking: int = 0) -> None:
        self._lacking = lacking

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return index, index * index

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices[self._lacking :]]


pipe: Any = PecanPipeline(Arrays(i=np.arange(10), x=np.ones((10, 3))), name="rows").batch(4)
unknown: Any = PecanPipeline(Arrays(i=np.arange(10)), name="unknown").filter(lambda i: True, on="i").batch(4)
once: dict[str, Any] = {"debug": True, "epochs": 1}


def torch_data(dataset: Any, *columns: str) -> None:
    made = PecanPipeline.from_torch_dataset(dataset, columns=columns or None)
    list(made.batch(7).iter_batches(debug=True))


def shard(call: dict[str, Any], epochs: int = 2, **options: Any) -> object:
    config = ray_train.PecanDataConfig(epochs=epochs, options={"train": options})
    return config.configure({"train": pipe}, 1, None, [])[0]["train"].iter_batches(**call)


def twice(data: Any) -> None:
    for _ in range(2):
        list(data)


CALLS: dict[str, Callable[[], object]] = {
    "another format": lambda: converter("cupy"),  # type: ignore[arg-type]  # as all that follows
    "a device without tensors": lambda: pipe.iter_batches(device="cpu", format="numpy", debug=True),
    "ranks without a rank": lambda: pipe.iter_batches(world_size=2),
    "an argument that is none": lambda: pipe.iter_batches_async(epoch=1),
    "workers of a DataLoader": lambda: pipe.to_torch(num_workers=4),
    "a state as an argument": lambda: pipe.to_torch(state={}),
    "a format of to_torch": lambda: pipe.to_torch(format="tf"),
    "neither new nor continue": lambda: pipe.to_torch(on_break="anew"),
    "ranks without epochs": lambda: pipe.to_torch(rank=0, world_size=2),
    "a length of ranks": lambda: len(pipe.to_torch(rank=0, world_size=2, epochs=1)),
    "a length with steps": lambda: len(pipe.to_torch(debug=True, steps=2)),
    "a length without sharding": lambda: len(pipe.to_torch(debug=True, sharding="off")),
    "an empty state": lambda: pipe.to_torch(debug=True).load_state_dict({}),
    "a state of iter_batches": lambda: pipe.to_torch(debug=True).load_state_dict({"pecan_ray_state": 1}),
    "more passes than epochs": lambda: twice(pipe.to_torch(**once)),
    "more epochs of Keras": lambda: twice(pipe.to_keras("x", **once)),
    "an empty spec": lambda: pipe.to_tf_dataset(spec={}, debug=True),
    "a list as spec": lambda: pipe.to_tf_dataset(spec=[1], debug=True),
    "a dtype as spec": lambda: pipe.to_tf_dataset(spec={"x": "float32"}, debug=True),
    "columns of columns": lambda: pipe.map(lambda x: {"x": {"y": x["x"]}}).to_tf_dataset(debug=True),
    "a column that Keras lacks": lambda: pipe.to_keras("z", debug=True)[0],
    "no column for Keras": lambda: pipe.to_keras([]),
    "no target for Keras": lambda: pipe.to_keras("x", []),
    "weights without targets": lambda: pipe.to_keras("x", sample_weight="x"),
    "an unknown length for Keras": lambda: unknown.to_keras("i"),
    "a stream of torch": lambda: torch_data(iter(range(3))),
    "a text as data": lambda: torch_data("folder"),
    "too few columns": lambda: torch_data(Pairs(), "root"),
    "one column twice": lambda: torch_data(Pairs(), "root", "root"),
    "columns of dicts": lambda: torch_data([{"root": 1}], "root", "square"),
    "a sample of None": lambda: torch_data([None]),
    "too few samples": lambda: torch_data(Pairs(lacking=1)),
    "a list as Ray's data": lambda: PecanPipeline.from_ray_dataset([1, 2]),
    "Lightning without a pipeline": lambda: lightning.PecanDataModule(3),
    "Lightning to validate on a number": lambda: lightning.PecanDataModule(val=[3]),
    "a batch size for Lightning": lambda: lightning.PecanDataModule(pipe, options={"batch_size": 3}),
    "epochs for Lightning": lambda: lightning.PecanDataModule(pipe, options={"epochs": 3}),
    "a device for Lightning": lambda: lightning.PecanDataModule(val=pipe, eval_options={"device": "cpu"}),
    "a rank of Ray Train": lambda: shard({}, rank=1),
    "a batch size of Ray Train": lambda: shard({}, batch_size=1),
    "no epochs of Ray Train": lambda: shard({}, epochs=0),
    "a batch size of a shard": lambda: shard({"batch_size": 3}),
    "an order of a shard": lambda: shard({"order": "strict"}),
}


def refusals() -> Iterator[str]:
    for what, call in CALLS.items():
        said = "nothing is raised"
        try:
            call()
        except Exception as error:  # the table says of which class
            said = f"{type(error).__name__}: {error}"
        yield f"{what}\n    {said}"


def test_what_cannot_be_done_is_refused_in_the_words_that_are_written_down() -> None:
    assert list(refusals()) == WRITTEN.read_text().rstrip("\n").split("\n\n")


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(refusals()) + "\n")
