"""Pipelines for a trainer of Lightning, with where they stand in its checkpoints."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pecan_ray.errors import MissingExtraError, PlanError
from pecan_ray.integrations.evaluation import EvaluationBatches, known, length_of
from pecan_ray.integrations.framework_methods import FrameworkMethods, check_iter_options, predict_options
from pecan_ray.integrations.train_context import train_place

logger = logging.getLogger("pecan_ray")

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same library under two names, whose classes do not know each other."""
OWN_OPTIONS = ("epochs", "format", "device", "state")
"""Arguments of `iter_batches` that the module sets."""


def _lightning() -> Any:
    """Return the package of Lightning that this program uses."""
    for name in (*(name for name in PACKAGES if name in sys.modules), *PACKAGES):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise
    raise MissingExtraError("PecanDataModule needs Lightning: pip install lightning", extra="lightning")


_LightningDataModule: Any = _lightning().LightningDataModule


class PecanDataModule(_LightningDataModule):  # type: ignore[misc]  # which package it comes from is known when it runs
    """Pipelines as a `LightningDataModule`: ``trainer.fit(model, datamodule=PecanDataModule(pipe))``.

    Each epoch of the trainer is a new pass over the training pipeline, of one job, whose state is saved with every
    checkpoint and comes back with ``trainer.fit(..., ckpt_path=...)``.  The ranks of a trainer share the job.  Each
    validation is a job of its own, over all of the data.  Predictions come in the order of the source, unless
    `eval_options` say otherwise by `order`.
    """

    def __init__(
        self,
        train: Any = None,
        *,
        val: Any = None,
        test: Any = None,
        predict: Any = None,
        epochs: int | None = None,
        options: Mapping[str, Any] | None = None,
        eval_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`val`, `test`, `predict`: a pipeline, or a list of them.  `epochs`: None for the trainer's `max_epochs`.

        `options`: arguments of `iter_batches` for training, such as `workers`; `eval_options`: for all else.
        """
        super().__init__()
        self._epochs = epochs
        self._options = {"train": dict(options or {}), "eval": dict(eval_options or {})}
        self._training: TrainingBatches | None = None
        self._loaded: Mapping[str, Any] | None = None
        """The state from which training is to go on."""
        self._last: Mapping[str, Any] | None = None
        """The state in which training ended."""
        self._reported = False
        given = {"train": train, "val": val, "test": test, "predict": predict}
        for stage, pipes in given.items():
            if pipes is None:
                continue  # Lightning looks for methods to know which loops there are
            several = isinstance(pipes, Sequence) and stage != "train"
            for pipe in pipes if several else [pipes]:
                self._check(stage, pipe)
            hook = f"{stage}_dataloader"
            # A class that is derived from this one may have a loader of its own.
            if getattr(type(self), hook) is getattr(_LightningDataModule, hook):
                make: dict[str, Callable[[Any], Any]] = {
                    "train": self._training_batches,
                    "predict": self._predict_loader,
                }
                setattr(self, hook, functools.partial(make.get(stage, self._eval_loader), pipes))

    def _check(self, stage: str, pipe: Any) -> None:
        if not isinstance(pipe, FrameworkMethods):
            raise PlanError(f"PecanDataModule({stage}=...) needs a pipeline, but got {type(pipe).__name__}.")
        runnable: Any = pipe
        options, name = (
            (self._options["train"], "options") if stage == "train" else (self._options["eval"], "eval_options")
        )
        check_iter_options(f"PecanDataModule({name}={{...}})", options, runnable.iter_batches)
        if taken := sorted(options.keys() & set(OWN_OPTIONS)):
            more = " Say PecanDataModule(epochs=...)." if taken == ["epochs"] and stage == "train" else ""
            raise PlanError(f"PecanDataModule({name}={{{taken[0]!r}: ...}}): the trainer says that.{more}")

    # --- what Lightning calls ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the input: where training stands, after the batches that it has used."""
        if self._training is None:
            state = self._loaded if self._last is None else self._last
            return {} if state is None else {"train": state}
        try:
            return {"train": self._training.where()}
        except PlanError as error:  # a job that has no state; the model's checkpoint is none the worse for it
            if not self._reported:
                logger.warning("checkpoints hold nothing of the input, which begins again from its start: %s", error)
            self._reported = True
            return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let training go on where a checkpoint was taken."""
        self._loaded = state_dict.get("train")
        if self._training is not None and self._loaded is not None:
            self._training.go_on(self._loaded)

    def teardown(self, stage: str) -> None:
        """End the job of a `fit` that is over."""
        if stage != "fit" or self._training is None:
            return
        if self._training.alone:  # of several ranks some have left by now
            self._last = self.state_dict().get("train")
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """End the job of a `fit` that has failed."""
        self.close()

    # --- loaders -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the job of training; the trainer does so by itself."""
        training, self._training, self._loaded = self._training, None, None
        if training is not None:
            training.data_set.close()

    def _training_batches(self, pipe: Any) -> TrainingBatches:
        if self._training is None:
            options = {**self._options["train"], **self._place("train")}
            most = self.trainer.max_epochs if self._epochs is None else self._epochs
            epochs = None if most is None or most < 1 else most
            data_set = pipe.to_torch(epochs=epochs, device=self._device(), **options)
            self._last = None
            self._training = TrainingBatches(
                data_set, self.trainer, length_of(pipe, options), options.get("world_size", 1) == 1
            )
            if self._loaded is not None:
                self._training.go_on(self._loaded)
        return self._training

    def _predict_loader(self, pipes: Any) -> Any:
        if isinstance(pipes, Sequence):
            return [self._predict_loader(pipe) for pipe in pipes]
        return self._eval_loader(pipes, predict_options(pipes, self._options["eval"], "PecanDataModule(predict=...)"))

    def _eval_loader(self, pipes: Any, given: Mapping[str, Any] | None = None) -> Any:
        """Return what a loop of the trainer goes over; `given`: options in place of `eval_options`."""
        if isinstance(pipes, Sequence):
            return [self._eval_loader(pipe) for pipe in pipes]
        options = {**(self._options["eval"] if given is None else given), **self._place("eval")}
        begin = functools.partial(pipes.iter_batches, format="torch", device=self._device(), **options)
        return EvaluationBatches(begin, length_of(pipes, options))

    def _place(self, stage: str) -> dict[str, int]:
        """Return the trainer's rank and world size, unless they are given, or are found in a run of Ray Train."""
        given = self._options[stage].keys() & {"rank", "world_size"}
        if given or train_place() is not None:
            return {}
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def _device(self) -> Any:
        """Return the GPU to which batches go while the step before runs; None where Lightning moves them."""
        device = self.trainer.strategy.root_device
        return device if device.type == "cuda" else None


class TrainingBatches:
    """What Lightning trains on.

    Where it knows no length, it fetches a batch ahead to know which one is the last: that one is not used yet.
    """

    def __init__(self, data_set: Any, trainer: Any, length: int | None, alone: bool) -> None:
        self.data_set, self.alone = data_set, alone
        self._loop, self._length = trainer.fit_loop.epoch_loop, length
        self._fetched = self._has_started = 0
        """Batches of this pass, and those of all passes that the trainer had begun with before it."""
        self._resumed = False

    def __iter__(self) -> Iterator[Any]:
        self._fetched, self._has_started = 0, self._loop.batch_progress.total.ready
        passes, self._resumed = 2 if self._resumed else 1, False
        for _ in range(passes):  # of an epoch behind whose last batch a state was taken nothing is left: the next one
            for batch in self.data_set:
                self._fetched += 1
                yield batch
            if self._fetched:
                return

    def __len__(self) -> int:
        return known(self._length)

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin where a state was taken."""
        self.data_set.load_state_dict(state)
        self._resumed = True

    def where(self) -> dict[str, Any]:
        """Return the state after the batches on which a step was made."""
        progress = self._loop.batch_progress
        started = progress.total.ready - self._has_started if self._fetched else 0
        unused = progress.current.ready - progress.current.processed if started else 0
        state: dict[str, Any] = self.data_set.state_dict(ahead=max(0, self._fetched - started + unused))
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the module has the state.  Lightning warns of loaders without this method."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing."""
