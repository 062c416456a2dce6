"""Where predictions are matched with rows by their places, rows come in the order of the source."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from pecan_ray.integrations.framework_methods import predict_options
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import keeps_source_order
from pecan_ray.sources import Arrays


def rows() -> PecanPipeline:
    return PecanPipeline(Arrays(x=np.arange(10.0), y=np.arange(10)), name="rows")


def order_of(data: Any) -> Any:
    return data._begin.keywords.get("order")


def test_keras_without_targets_gets_rows_in_order_and_with_targets_as_they_come() -> None:
    pytest.importorskip("keras")
    pipe = rows().batch(4)
    assert order_of(pipe.to_keras("x")) == "strict"
    assert order_of(pipe.to_keras("x", "y")) is None
    assert order_of(pipe.to_keras("x", order="relaxed")) == "relaxed"


def test_lightning_predicts_in_order_and_validates_as_rows_come() -> None:
    pytest.importorskip("pytorch_lightning")
    from pecan_ray.integrations.lightning_data import PecanDataModule

    class Trainer:
        world_size, global_rank = 1, 0
        strategy = type("Strategy", (), {"root_device": type("Device", (), {"type": "cpu"})})

    pipe = rows().batch(4)
    data = PecanDataModule(val=pipe, test=pipe, predict=[pipe, pipe])
    data.trainer = Trainer()
    assert [order_of(one) for one in data.predict_dataloader()] == ["strict", "strict"]
    assert order_of(data.val_dataloader()) is order_of(data.test_dataloader()) is None
    data = PecanDataModule(predict=pipe, eval_options={"order": "relaxed"})
    data.trainer = Trainer()
    assert order_of(data.predict_dataloader()) == "relaxed"


def test_a_transformers_trainer_predicts_in_order_and_evaluates_as_rows_come() -> None:
    pytest.importorskip("transformers")
    from pecan_ray.integrations.transformers_trainer import PipelinesInTrainer

    trainer = object.__new__(PipelinesInTrainer)
    arguments = {
        "world_size": 1,
        "process_index": 0,
        "remove_unused_columns": False,
        "device": type("Device", (), {"type": "cpu"}),
    }
    trainer.args, trainer._eval_options = type("Arguments", (), arguments), {}
    pipe = rows().batch(4)
    assert order_of(trainer.get_test_dataloader(pipe).dataset._batches) == "strict"
    assert order_of(trainer.get_eval_dataloader(pipe).dataset._batches) is None


def test_a_pipeline_that_changes_the_order_itself_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    mixed = rows().mix(rows(), weights=[1, 1]).batch(4)
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        for pipe in (rows().shuffle(5).batch(4), mixed, mixed.concat(rows().batch(4))):
            assert predict_options(pipe, {}, "predict") == {}
    assert len(caplog.messages) == 3 and "predictions do not come in the order of the source" in caplog.messages[0]
    assert keeps_source_order(rows().concat(rows()).zip(rows()).take(3).batch(2).plan)
    assert predict_options(rows(), {"coordinated": True}, "predict") == {"coordinated": True}
