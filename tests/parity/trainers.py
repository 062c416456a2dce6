"""Models of Keras, Lightning and Hugging Face that note what they are trained, validated and asked with."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any

from tests.parity.seen import Pass, batch_of


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
