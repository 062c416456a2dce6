"""Pipelines under trainers: data sets of Ray Train, and in which order rows come to be predicted."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.integrations import train_context
from pecan_ray.integrations.framework_methods import predict_options
from pecan_ray.integrations.train_context import placed
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import keeps_source_order
from pecan_ray.sources import Arrays

pytest.importorskip("ray.train")
ray_train: Any = pytest.importorskip("pecan_ray.integrations.ray_train")


def pipe() -> PecanPipeline:
    return rows().map(lambda i: i + 1, on="i").batch(4)


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


ON_CPU = SimpleNamespace(type="cpu")


def rows() -> PecanPipeline:
    return PecanPipeline(Arrays(x=np.arange(10.0), i=np.arange(10)), name="rows")


PIPE = rows().batch(4)


def order_of(data: Any) -> Any:
    return data._begin.keywords.get("order")


def test_keras_without_targets_gets_rows_in_order_and_with_targets_as_they_come() -> None:
    pytest.importorskip("keras")
    assert order_of(PIPE.to_keras("x")) == "strict"
    assert order_of(PIPE.to_keras("x", "i")) is None
    assert order_of(PIPE.to_keras("x", order="relaxed")) == "relaxed"


def test_trainers_of_lightning_and_transformers_predict_in_order_and_validate_as_rows_come() -> None:
    pytest.importorskip("pytorch_lightning")
    from pecan_ray.integrations.lightning_data import PecanDataModule

    data = PecanDataModule(val=PIPE, predict=[PIPE, PIPE])
    data.trainer = SimpleNamespace(world_size=1, global_rank=0, strategy=SimpleNamespace(root_device=ON_CPU))
    assert [order_of(one) for one in data.predict_dataloader()] == ["strict", "strict"]
    assert order_of(data.val_dataloader()) is None

    pytest.importorskip("transformers")
    from pecan_ray.integrations.transformers_trainer import PipelinesInTrainer

    trainer = object.__new__(PipelinesInTrainer)
    trainer.args = SimpleNamespace(world_size=1, process_index=0, remove_unused_columns=False, device=ON_CPU)
    trainer._eval_options = {}
    assert order_of(trainer.get_test_dataloader(PIPE).dataset._batches) == "strict"
    assert order_of(trainer.get_eval_dataloader(PIPE).dataset._batches) is None


def test_a_pipeline_that_changes_the_order_itself_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    mixed = rows().mix(rows(), weights=[1, 1]).batch(4)
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        for pipe in (rows().shuffle(5).batch(4), mixed, mixed.concat(PIPE)):
            assert predict_options(pipe, {}, "predict") == {}
    assert len(caplog.messages) == 3 and "predictions do not come in the order of the source" in caplog.messages[0]
    assert keeps_source_order(rows().concat(rows()).zip(rows()).take(3).batch(2).plan)
    assert predict_options(rows(), {"coordinated": True}, "predict") == {"coordinated": True}
