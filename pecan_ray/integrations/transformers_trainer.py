"""Pipelines for a `Trainer` of Hugging Face, with where they stand beside its checkpoints."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pecan_ray.errors import MissingExtraError, PlanError, StateError
from pecan_ray.integrations.evaluation import EvaluationBatches, known, length_of
from pecan_ray.integrations.framework_methods import FrameworkMethods, check_iter_options, predict_options
from pecan_ray.integrations.train_context import train_place

try:
    from torch.utils.data import DataLoader, IterableDataset
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_pt_utils import find_batch_size
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as missing:
    raise MissingExtraError(
        "PecanTrainer needs transformers: pip install transformers accelerate", extra="transformers"
    ) from missing

logger = logging.getLogger("pecan_ray")

STATE_FILE = "pecan_input.json"
"""In the folder of a checkpoint: where the training pipeline stood."""
OWN_OPTIONS = ("format", "device", "state")
"""Arguments of `iter_batches` that the trainer sets."""


class PipelinesInTrainer:
    """What lets a `Trainer`, or a class derived from it, take pipelines: ``class Mine(PipelinesInTrainer, Trainer)``.

    `train_dataset` and `eval_dataset` may be pipelines, whose batches go to the model as they are: neither
    `per_device_train_batch_size` nor `data_collator` has a say.  Columns that the model's `forward` does not take are
    left out, unless ``remove_unused_columns=False``.  Each epoch of the trainer is one of the pipeline, of one job.
    """

    args: Any
    model: Any
    label_names: list[str]

    def __init__(
        self,
        *positional: Any,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        options: Mapping[str, Any] | None = None,
        eval_options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """`options`: arguments of `iter_batches` for training, such as `workers`; `eval_options`: for evaluation."""
        self._eval_options = _checked("eval_options", eval_options, eval_dataset)
        training = _checked("options", options, train_dataset)
        self._training: TrainerEpochs | None = None
        self._resumed_from: str | None = None
        if isinstance(train_dataset, FrameworkMethods):
            train_dataset = self._training = TrainerEpochs(train_dataset, training)
        parent: Any = super()
        parent.__init__(*positional, train_dataset=train_dataset, eval_dataset=eval_dataset, **others)
        if self._training is not None:
            trainer: Any = self
            trainer.add_callback(_CheckpointStates(self._training))

    def train(self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **others: Any) -> Any:
        """Train as the `Trainer` does; from a checkpoint on with what it had not used, and nothing is made again."""
        newest = resume_from_checkpoint is True
        folder = get_last_checkpoint(self.args.output_dir) if newest else resume_from_checkpoint
        self._resumed_from = folder if isinstance(folder, str) else None
        parent: Any = super()
        try:
            return parent.train(resume_from_checkpoint, *rest, **others)
        finally:
            if self._training is not None:
                self._training.close()

    def get_train_dataloader(self) -> Any:
        """Return what the trainer iterates over, once for each epoch."""
        parent: Any = super()
        if self._training is None:
            return parent.get_train_dataloader()
        place = _place(self._training.options, self.args)
        epochs = None if self.args.max_steps > 0 else math.ceil(self.args.num_train_epochs)
        state = None if self._resumed_from is None else saved_state(Path(self._resumed_from))
        self._training.begin({"epochs": epochs, "device": _device(self.args), **place}, state)
        return DataLoader(self._training, batch_size=None, collate_fn=self._for_model())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return what an evaluation goes over."""
        trainer: Any = self
        given = trainer.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(given, str):
            given = trainer.eval_dataset[given]
        if isinstance(given, FrameworkMethods):
            return self._eval_loader(given)
        parent: Any = super()
        return parent.get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return what `predict` goes over: rows in the order of the source, unless `eval_options` have an `order`."""
        if isinstance(test_dataset, FrameworkMethods):
            pipe: Any = test_dataset
            return self._eval_loader(pipe, predict_options(pipe, self._eval_options, "PecanTrainer.predict()"))
        parent: Any = super()
        return parent.get_test_dataloader(test_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """Return how many elements an epoch has, as far as that is known: batches of the size that was told."""
        if isinstance(dataloader.dataset, TrainerEpochs | EvalDataset):
            return len(dataloader) * int(self.args.per_device_train_batch_size)
        parent: Any = super()
        return int(parent.num_examples(dataloader))

    def log(self, logs: dict[str, Any], *rest: Any, **others: Any) -> None:
        """Log as the `Trainer` does, with the samples a second that were trained on: it multiplies by a batch size."""
        if self._training is not None and "train_samples_per_second" in logs:
            logs["train_samples_per_second"] = round(self._training.rows / logs["train_runtime"], 3)
        parent: Any = super()
        parent.log(logs, *rest, **others)

    def _eval_loader(self, pipe: Any, given: Mapping[str, Any] | None = None) -> Any:
        """Return what a loop goes over; `given`: options in place of `eval_options`."""
        options = {**(self._eval_options if given is None else given), **_place(self._eval_options, self.args)}
        begin = functools.partial(pipe.iter_batches, format="torch", device=_device(self.args), **options)
        batches = EvalDataset(EvaluationBatches(begin, length_of(pipe, options)))
        return DataLoader(batches, batch_size=None, collate_fn=self._for_model())

    def _for_model(self) -> Any:
        """Return what leaves out the columns that the model does not take."""
        if not self.args.remove_unused_columns:
            return _identity_collate
        base = getattr(self.model, "get_base_model", lambda: self.model)()
        taken = inspect.signature(base.forward).parameters.keys()
        return functools.partial(_columns, frozenset({*taken, *self.label_names, "label", "label_ids"}))


class PecanTrainer(PipelinesInTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped here
    """A `transformers.Trainer` that takes pipelines: ``PecanTrainer(model, args, train_dataset=pipe).train()``."""


class TrainerEpochs(IterableDataset[Any]):
    """What the trainer trains on; each pass gives what is left of an epoch.

    A trainer that goes on from a checkpoint skips the batches of its epoch that it has had.  They are not made again:
    as many empty ones come in their places.
    """

    def __init__(self, pipe: Any, options: Mapping[str, Any]) -> None:
        self.options = options
        self._pipe, self._data_set = pipe, None
        self._resumed, self._skipped = False, 0
        self.rows = 0
        """Of all batches that the trainer was given since `begin`."""

    def begin(self, more: Mapping[str, Any], state: Mapping[str, Any] | None) -> None:
        """Let the next pass begin a job, from its start or where a state was taken."""
        self.close()
        data_set: Any = self._pipe.to_torch(**{**more, **self.options})
        if state is not None:
            data_set.load_state_dict(state)
        self._data_set, self._resumed, self.rows = data_set, state is not None, 0

    def skip(self, global_step: int, accumulated: int) -> None:
        """Prepare for a trainer that skips what it has had of its epoch."""
        if self._resumed:
            try:
                updates = max(1, math.ceil(len(self) / accumulated))
            except TypeError:
                # Without a length the trainer takes all of its steps for those of one epoch.
                self._skipped = global_step * accumulated
            else:
                self._skipped = global_step % updates * accumulated

    def __iter__(self) -> Iterator[Any]:
        if self._data_set is None:
            raise PlanError("a pipeline that was given to PecanTrainer is iterated over by the trainer alone.")
        for _ in range(self._skipped):
            yield {}
        passes, self._resumed, self._skipped = 2 if self._resumed else 1, False, 0
        for _ in range(passes):  # of an epoch behind whose last batch a state was taken nothing is left: the next one
            yielded = False
            for batch in self._data_set:
                yielded = True
                self.rows += find_batch_size(batch) or 0
                yield batch
            if yielded:
                return

    def __len__(self) -> int:
        return known(length_of(self._pipe, dict(self.options)))

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands, between two batches."""
        if self._data_set is None:
            raise PlanError("training has not begun, so it has no state.")
        state: dict[str, Any] = self._data_set.state_dict()
        return state

    def close(self) -> None:
        """End the job."""
        if self._data_set is not None:
            self._data_set.close()
        self._data_set = None


class EvalDataset(IterableDataset[Any]):
    """What an evaluation goes over, as a data set of torch, which tells no length: it would be taken for elements."""

    def __init__(self, batches: EvaluationBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class _CheckpointStates(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Saves where the input stands with every checkpoint."""

    def __init__(self, training: TrainerEpochs) -> None:
        self._training, self._reported = training, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not args.ignore_data_skip:
            self._training.skip(state.global_step, args.gradient_accumulation_steps)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        try:
            where = self._training.state_dict()
        except PlanError as error:  # a job that has no state; the model's checkpoint is none the worse for it
            if not self._reported:
                logger.warning("checkpoints hold nothing of the input: %s", error)
            self._reported = True
            return
        unfinished = folder / f".{STATE_FILE}"
        unfinished.write_text(json.dumps(where))
        # Whole or not at all, also where the program is killed meanwhile.
        os.replace(unfinished, folder / STATE_FILE)


def saved_state(folder: Path) -> Any:
    """Return where the input stood at a checkpoint; None, told, where the checkpoint does not hold it."""
    try:
        return json.loads((folder / STATE_FILE).read_text())
    except FileNotFoundError:
        logger.warning(
            "%s holds nothing of the input: it begins from its start, and the trainer skips what it has had", folder
        )
        return None
    except ValueError as error:
        raise StateError(
            f"{folder / STATE_FILE} is damaged: {error}. Remove it to begin with the input from its start."
        ) from error


def _checked(name: str, options: Mapping[str, Any] | None, pipe: Any) -> dict[str, Any]:
    """Return the options of a pipeline; raises PlanError for what is none, or is set by the trainer."""
    found = dict(options or {})
    if taken := sorted(found.keys() & set(OWN_OPTIONS)):
        raise PlanError(f"PecanTrainer({name}={{{taken[0]!r}: ...}}): the trainer says that.")
    if found.get("share"):
        raise PlanError(f"PecanTrainer({name}={{'share': ...}}): readers that share have no epochs of their own.")
    if isinstance(pipe, FrameworkMethods):
        runnable: Any = pipe
        check_iter_options(f"PecanTrainer({name}={{...}})", found, runnable.iter_batches)
    return found


def _place(given: Mapping[str, Any], args: Any) -> dict[str, int]:
    """Return the trainer's rank and world size, unless they are given, or are found in a run of Ray Train."""
    if given.keys() & {"rank", "world_size"} or train_place() is not None:
        return {}
    return {"rank": args.process_index, "world_size": args.world_size}


def _device(args: Any) -> Any:
    """Return the GPU to which batches go while the step before runs; None where the trainer moves them."""
    return args.device if args.device.type == "cuda" else None


def _columns(taken: frozenset[str], batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name in taken}


def _identity_collate(batch: Any) -> Any:
    return batch
