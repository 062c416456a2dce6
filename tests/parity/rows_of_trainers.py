"""Rows of the table: trainers of Keras, Lightning and Hugging Face, whose models note what they are given."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.parity.chains import LONG, LONG_SHUFFLED, PLAIN, RANDOM, SHUFFLED, Chain, N, rows
from tests.parity.habit import Habit, Seen
from tests.parity.looks import ours
from tests.parity.peers import TfData, torch_loader
from tests.parity.seen import Facts, Pass, batch_of

ON_TF_DATA, ON_LOADER, ON_DATA_SET = "Keras on tf.data", "Lightning on DataLoader", "Trainer on a data set"


@dataclass
class RecordedInfo:
    trained: list[Pass] = field(default_factory=list)
    validated: list[Pass] = field(default_factory=list)


def keras_model(noted: RecordedInfo) -> Any:
    """Return a model of Keras, and the callback that tells it where passes begin."""
    import keras

    class Noting(keras.Model):  # type: ignore[misc]  # Keras has no types
        def train_step(self, batch: Any) -> dict[str, float]:
            noted.trained[-1].append(batch_of(batch[0]))
            return {"loss": 0.0}

        def test_step(self, batch: Any) -> dict[str, float]:
            noted.validated[-1].append(batch_of(batch[0]))
            return {"loss": 0.0}

        def predict_step(self, batch: Any) -> Any:
            return batch[0]["i"]

    class Begins(keras.callbacks.Callback):  # type: ignore[misc]  # as above
        def on_epoch_begin(self, *_: Any) -> None:
            noted.trained.append([])

        def on_test_begin(self, *_: Any) -> None:
            noted.validated.append([])

    model = Noting()
    model.built = True
    model.compile(run_eagerly=True)
    return model, [Begins()]


def keras_fit(data: Any, epochs: int, **options: Any) -> RecordedInfo:
    noted = RecordedInfo()
    model, callbacks = keras_model(noted)
    model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks, **options)
    return noted


def lightning_fit(epochs: int, *, limits: dict[str, Any] | None = None, **data: Any) -> RecordedInfo:
    """Return what a model of Lightning is trained with; `limits`: arguments of its `Trainer`."""
    import pytorch_lightning as pl
    import torch

    noted = RecordedInfo()

    class Noting(pl.LightningModule):  # type: ignore[misc]  # Lightning is imported where it is installed
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def on_train_epoch_start(self) -> None:
            noted.trained.append([])

        def on_validation_epoch_start(self) -> None:
            noted.validated.append([])

        def training_step(self, batch: Any, _: int) -> Any:
            noted.trained[-1].append(batch_of(batch))
            return self.weight**2

        def validation_step(self, batch: Any, _: int) -> None:
            noted.validated[-1].append(batch_of(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, **quiet, **(limits or {}))
    trainer.fit(Noting(), **data)
    return noted


def hugging_face_train(
    trainer: Any, data: Any, epochs: int, *, steps: int | None = None, times: int = 1, batch: int = 8, **options: Any
) -> RecordedInfo:
    """Return what a `Trainer` trains with, in so many calls; `options`: more of its arguments."""
    import torch
    import transformers

    noted = RecordedInfo()

    class Noting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, **batch: Any) -> Any:
            (noted.trained if self.training else noted.validated)[-1].append(batch_of(batch))
            return {"loss": self.weight**2}

    class Begins(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            noted.trained.append([])
            noted.validated.append([])

    validated = options.get("eval_dataset") is not None
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            max_steps=steps or -1,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=batch,
            eval_strategy="epoch" if validated else "no",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        training = trainer(Noting(), arguments, train_dataset=data, callbacks=[Begins()], **options)
        for _ in range(times):
            training.train()
    return noted


def tf_pairs(chain: Chain) -> Any:
    """Return a data set of tf.data with inputs and targets, as Keras takes it."""
    return TfData().produced(chain)().again().map(lambda element: (element, element["i"]))


# --- Keras ---------------------------------------------------------------------------------------------------


def fits(data: Any) -> Seen:
    return Seen([one for _ in range(2) for one in keras_fit(data, 2).trained])


def steps(data: Any) -> Seen:
    return Seen(keras_fit(data, 3, steps_per_epoch=2).trained)


def validations(train: Any, val: Any) -> Seen:
    return Seen(keras_fit(train, 3, validation_data=val, validation_steps=2).validated)


def predictions_of_a_job(train: Any, val: Any) -> Facts:
    rows_to_predict = val.pipe.to_keras(["i"], **val.options)
    found = predictions(train.data, rows_to_predict)
    rows_to_predict.close()  # TensorFlow holds what a model has read
    return found


def predictions(train: Any, rows_to_predict: Any) -> Facts:
    noted = RecordedInfo()
    model, callbacks = keras_model(noted)
    model.fit(train, epochs=1, verbose=0, callbacks=callbacks)
    return {"rows": model.predict(rows_to_predict, verbose=0).tolist()}


def on_keras(see: Callable[..., Seen | Facts], *chains: Chain) -> dict[str, Any]:
    look = ours(lambda *loaders: see(*(loader.data for loader in loaders)), *chains)
    return {"look": look, "peers": {ON_TF_DATA: lambda: see(*map(tf_pairs, chains))}, "only": ("to_keras",)}


KERAS = (
    Habit(
        "`fit(steps_per_epoch=2, epochs=3)`",
        says="Keras keeps one iterator: its epochs go on in the pass, one behind the other",
        stats={"batches": [[8, 8]] * 3, "equal elements": "abc", "in source order": [True] * 3},
        **on_keras(steps, LONG),
    ),
    Habit(
        "`fit(epochs=2)` twice",
        says="the second call goes on with the next passes",
        stats={"distinct": [N] * 4, "equal orders": "abcd", "draws of an element": "other each time"},
        passes=(0, 1, 2, 3),
        **on_keras(fits, RANDOM),
    ),
    Habit(
        "`fit(validation_steps=2)`",
        says="the same batches behind each epoch",
        stats={"batches": [[8, 8]] * 3, "equal orders": "aaa"},
        on_workers=("to_keras",),
        **on_keras(validations, SHUFFLED, LONG),
    ),
    Habit(
        "`predict` behind `fit`",
        ours(predictions_of_a_job, SHUFFLED, PLAIN),
        "every row, in the order of the source",
        {"rows": list(range(N))},
        peers={ON_TF_DATA: lambda: predictions(tf_pairs(SHUFFLED), tf_pairs(PLAIN))},
        only=("to_keras",),
    ),
)

# --- Lightning -----------------------------------------------------------------------------------------------


def limited(**data: Any) -> Seen:
    return Seen(lightning_fit(3, limits={"limit_train_batches": 2}, **data).trained)


def checked(**data: Any) -> Seen:
    """Fit for two epochs, with a sanity check of one batch and validations of two."""
    return Seen(lightning_fit(2, limits={"num_sanity_val_steps": 1, "limit_val_batches": 2}, **data).validated)


def module(loader: Any, **pipes: Any) -> Any:
    from pecan_ray.integrations import PecanDataModule

    return PecanDataModule(loader.pipe, options=loader.options, eval_options=loader.options, **pipes)


LIGHTNING = (
    Habit(
        "`limit_train_batches=2`",
        ours(lambda loader: limited(datamodule=module(loader)), LONG_SHUFFLED),
        "each epoch of the trainer is a new pass, of which it uses two batches",
        {"batches": [[8, 8]] * 3, "equal orders": "abc"},
        peers={ON_LOADER: lambda: limited(train_dataloaders=torch_loader(LONG_SHUFFLED))},
        only=("Lightning",),
        on_workers=("Lightning",),
        passes=(0, 1, 2),
    ),
    Habit(
        "the sanity check before training",
        ours(lambda train, val: checked(datamodule=module(train, val=val.pipe)), SHUFFLED, PLAIN),
        "each validation begins with the first batch",
        {"batches": [[8], [8, 8], [8, 8]], "in source order": [True] * 3},
        peers={
            ON_LOADER: lambda: checked(train_dataloaders=torch_loader(SHUFFLED), val_dataloaders=torch_loader(PLAIN))
        },
        only=("Lightning",),
    ),
)

# --- the Trainer of Hugging Face -----------------------------------------------------------------------------


def hugging_face(loader: Any, **options: Any) -> RecordedInfo:
    from pecan_ray.integrations import PecanTrainer

    return hugging_face_train(PecanTrainer, loader.pipe, options=loader.options, **options)


def their_trainer(**options: Any) -> RecordedInfo:
    from transformers import Trainer

    def collate(elements: list[dict[str, Any]]) -> dict[str, Any]:
        from torch.utils.data import default_collate

        return {"i": default_collate(elements)["i"]}

    return hugging_face_train(Trainer, torch_loader(rows(N)).dataset, data_collator=collate, **options)


def evaluated(noted: RecordedInfo) -> Seen:
    return Seen(noted.validated)


def trained(noted: RecordedInfo) -> Seen:
    return Seen(noted.trained)


TRAINER = (
    Habit(
        "an evaluation behind each epoch",
        ours(
            lambda train, val: evaluated(
                hugging_face(train, epochs=2, eval_dataset=val.pipe, eval_options=val.options)
            ),
            SHUFFLED,
            PLAIN,
        ),
        "each goes over everything, from the first batch on",
        {"batches": [[8, 8, 4]] * 2, "in source order": [True, True]},
        peers={ON_DATA_SET: lambda: evaluated(their_trainer(epochs=2, eval_dataset=torch_loader(rows(N)).dataset))},
        only=("Trainer",),
    ),
    Habit(
        "`max_steps` in the middle of an epoch",
        ours(lambda loader: trained(hugging_face(loader, epochs=2, steps=4)), SHUFFLED),
        "ends there",
        {"batches": [[8, 8, 4], [8]], "distinct": [N, 8]},
        peers={ON_DATA_SET: lambda: trained(their_trainer(epochs=2, steps=4))},
        only=("Trainer",),
    ),
    Habit(
        "`train()` twice",
        ours(lambda loader: trained(hugging_face(loader, epochs=1, times=2)), SHUFFLED),
        "the second call goes on with the next pass",
        {"distinct": [N, N], "equal orders": "ab"},
        peers={ON_DATA_SET: lambda: trained(their_trainer(epochs=1, times=2))},
        differs={ON_DATA_SET: "its sampler is seeded anew, so both calls have one order: more training shall see more"},
        only=("Trainer",),
        passes=(0, 1),
    ),
)
