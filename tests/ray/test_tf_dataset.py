"""`to_tf_dataset` and `to_keras` on a cluster: their ends, and their states."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, StateError
from pecan_ray.integrations import InputBackup
from tests.ray.conftest import living_actors
from tests.ray.waiting import until

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")
WORKER: dict[str, Any] = {"workers": pecan.Workers(local=1)}
PASS = list(range(0, 100, 10))


def pipeline() -> pecan.PecanPipeline:
    x = np.arange(100, dtype=np.float32)
    config = pecan.Config(progress=False, report_folder="")
    return pecan.PecanPipeline(pecan.sources.Arrays(x=x[:, None], y=x), name="tf_dataset", config=config).batch(10)


def ended() -> bool:
    gc.collect()
    return not living_actors()


def firsts(batches: Any) -> list[int]:
    return [int(batch["y"][0]) for batch in batches]


def test_a_dataset_goes_on_from_a_checkpoint_and_its_job_ends_with_it(tmp_path: Path) -> None:
    data = pipeline().to_tf_dataset(**WORKER)
    iterator = iter(data)
    assert firsts(next(iterator) for _ in range(4)) == PASS[:4]
    saved = tf.train.Checkpoint(data=data).save(str(tmp_path / "checkpoint"))
    assert firsts(iterator) == PASS[4:]
    again = pipeline().to_tf_dataset(**WORKER)
    tf.train.Checkpoint(data=again).restore(saved)
    assert firsts(again) == PASS[4:] and firsts(again.take(3)) == PASS[:3] and living_actors()
    again.close()
    del data, iterator
    until(ended, "the job of a dropped data set goes on")
    with pytest.raises(StateError, match="this is no state of it"):
        again.load_state_dict({})
    with pytest.raises(PlanError, match="the rest of an epoch has fewer batches than Keras expects"):
        InputBackup(again, tmp_path / "input.json", save_freq=3)


def recorded(most: int | None, seen: list[int]) -> Any:
    """Return a model that notes the batches that it is trained on, and fails behind some."""

    class Model(keras.Sequential):  # type: ignore[misc]  # Keras has no types
        def train_step(self, data: Any) -> dict[str, float]:
            if len(seen) == most:
                raise RuntimeError("the end")
            seen.append(int(np.array(data[1])[0]))
            return {"loss": 0.0}

    model: Any = Model
    made = model([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", run_eagerly=True)
    return made


def test_a_fit_that_failed_goes_on_with_what_was_not_trained_on(tmp_path: Path) -> None:
    def fit(most: int | None) -> list[int]:
        seen: list[int] = []
        model = recorded(most, seen)
        data = pipeline().to_keras("x", "y", order="strict", **WORKER)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "model", save_freq=3)
        callbacks = [backup, InputBackup(data, tmp_path / "input.json", save_freq=3)]
        try:
            model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
        except RuntimeError:
            assert most
        finally:
            data.close()
        return seen

    assert fit(17) == (2 * PASS)[:17]
    assert fit(None) == (PASS[5:] + 3 * PASS)[:20]
    assert not (tmp_path / "input.json").exists(), "a fit that ends leaves nothing"
