"""Where the input of a `fit` stands, in a file beside the model's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import keras

from pecan_ray.errors import PlanError
from pecan_ray.integrations.keras_dataset import KerasBatches
from pecan_ray.job.delivery_log import MOST_AHEAD
from pecan_ray.plan.arguments import positive


class InputBackup(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Saves where the input of ``fit`` stands, and goes on there when the program is run again.

    It does for `to_keras` and `to_tf_dataset` what `keras.callbacks.BackupAndRestore` does for the model: give both the
    same `save_freq`, this one behind the other one.  Make it before `fit`, and before other data sets are made of
    `data`: it is then that `data` goes on where the file says.  Behind a `fit` that ends the file is deleted.
    """

    def __init__(self, data: Any, path: str | os.PathLike[str], *, save_freq: Literal["epoch"] | int = "epoch") -> None:
        """`data`: what `fit` is given; `path`: of the file; `save_freq`: "epoch", or every so many batches."""
        super().__init__()
        if not callable(getattr(data, "load_state_dict", None)):
            raise PlanError(
                f"InputBackup(data, path) needs what to_keras() or to_tf_dataset() has returned, but got "
                f"{type(data).__name__}."
            )
        self._data, self._path = data, Path(path)
        self._every = None if save_freq == "epoch" else positive("InputBackup(save_freq=...)", save_freq)
        if self._every is not None and not isinstance(data, KerasBatches):
            raise PlanError(
                f"InputBackup(save_freq={save_freq}): the rest of an epoch has fewer batches than Keras expects of a "
                'tf.data.Dataset, and it would end its training. Give fit what to_keras() returns, or say "epoch".'
            )
        self._since = 0
        """Batches since the last save."""
        self._last = -1
        """The last batch of this epoch."""
        if self._path.exists():
            data.load_state_dict(json.loads(self._path.read_text()))

    def on_train_begin(self, logs: Any = None) -> None:
        """Have no more batches fetched ahead than a state can leave out; raises PlanError for steps of more."""
        if self._every is None:
            return
        steps = getattr(self.model, "steps_per_execution", 1)
        if steps > MOST_AHEAD:
            raise PlanError(
                f"InputBackup(save_freq={self._every}): at most {MOST_AHEAD} batches that were fetched ahead "
                f'are left out of a state, and steps_per_execution={steps} fetches more. Pass save_freq="epoch".'
            )
        self._data.prefetch_limit.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count the batches of an epoch."""
        self._last = -1
        if self._every is not None:
            self._data.prefetch_limit.used(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save every so many batches."""
        if self._every is None:
            return
        self._data.prefetch_limit.used(batch + 1)
        self._since += batch - self._last  # several where steps_per_execution is more than 1
        self._last = batch
        if self._since >= self._every:
            self._since = 0
            self._save(self._data.state_dict(used=batch + 1))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save behind each epoch."""
        if self._every is None:
            self._save(self._data.state_dict())

    def on_train_end(self, logs: Any = None) -> None:
        """Forget the state: the next `fit` begins anew."""
        self._path.unlink(missing_ok=True)
        if self._every is not None:
            self._data.prefetch_limit.end()

    def _save(self, state: Any) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(json.dumps(state))
        # A program that is killed meanwhile leaves the file whole, of this state or of the one before.
        new.replace(self._path)
