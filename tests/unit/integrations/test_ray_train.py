"""Pipelines as data sets of Ray Train, as far as that needs no cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.integrations import train_context
from pecan_ray.integrations.train_context import placed
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

pytest.importorskip("ray.train")
ray_train: Any = pytest.importorskip("pecan_ray.integrations.ray_train")


def pipe() -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(10)), name="rows").map(lambda i: i + 1, on="i").batch(4)


def shards(world_size: int = 1, epochs: int = 2, **options: Any) -> list[Any]:
    config = ray_train.PecanDataConfig(epochs=epochs, options={"train": options})
    made = config.configure({"train": pipe()}, world_size, None, [])
    return [cloudpickle.loads(cloudpickle.dumps(one["train"])) for one in made]


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def test_each_call_of_a_shard_gives_an_epoch_on_the_device_that_is_named() -> None:
    (shard,) = shards(debug=True)
    assert ids(shard.iter_batches()) == ids(shard.iter_batches()) == list(range(1, 11))
    with pytest.raises(PlanError, match="all of its epochs=2 were given"):
        ids(shard.iter_batches())
    torch: Any = pytest.importorskip("torch")
    (shard,) = shards(debug=True)
    batch = next(iter(shard.iter_torch_batches(device="cpu")))
    assert isinstance(batch["i"], torch.Tensor)
    with pytest.raises(PlanError, match="format and device were"):
        shard.iter_batches()


def test_all_training_workers_have_places_in_one_job_of_their_groups_own() -> None:
    group, other = (shards(3) for _ in range(2))
    assert [shard._options["rank"] for shard in group] == [0, 1, 2]
    assert {shard._options["world_size"] for shard in group} == {3}
    jobs = {shard._options["job"] for shard in group}
    assert len(jobs) == 1 and jobs.isdisjoint(shard._options["job"] for shard in other)


@pytest.mark.parametrize(
    ("config", "call", "words"),
    [
        ({"rank": 1}, {}, "'rank'.*that is found by itself"),
        ({"batch_size": 1}, {}, "make batches by the pipeline's .batch"),
        ({"epoch": 1}, {}, "has no argument 'epoch'"),
        ({"epochs": 0}, {}, r"epochs=...\) needs a whole number >= 1, but got 0"),
        ({}, {"batch_size": 3}, r"iter_batches of a shard\(batch_size=...\) is not .*: make batches"),
        ({}, {"order": "strict"}, "has no argument 'order': pass it to PecanDataConfig"),
    ],
)
def test_what_a_config_or_a_shard_cannot_take_is_refused(
    config: dict[str, Any], call: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        shards(debug=True, **config)[0].iter_batches(**call)


def test_loops_of_ray_train_and_trials_of_ray_tune_say_which_rank_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = pytest.importorskip("ray.train._internal.session")
    monkeypatch.setattr(session, "_session", SimpleNamespace(world_rank=None))  # as Ray tells trials from workers
    assert placed("rows", None, None, None) == (0, 1, None)
    place = SimpleNamespace(rank=1, world_size=3, run="run-7")
    monkeypatch.setattr(train_context, "train_place", lambda: place)
    assert placed("rows", None, None, None) == (1, 3, "rows-run-7-1")
    assert placed("rows", None, None, None) == (1, 3, "rows-run-7-2")
    assert placed("rows", None, None, "mine") == (1, 3, "mine")
    assert placed("rows", 0, 1, None) == (0, 1, None), "each worker by itself, to validate"
