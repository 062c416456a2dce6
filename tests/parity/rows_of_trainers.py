"""Rows of the table: trainers of Keras, Lightning and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.parity.chains import LONG, LONG_SHUFFLED, PLAIN, RANDOM, SHUFFLED, Chain, N, rows
from tests.parity.looks import Look, ours
from tests.parity.peers import TfData, torch_loader
from tests.parity.seen import Facts, Seen
from tests.parity.trainers import RecordedInfo, hugging_face_train, keras_fit, keras_model, lightning_fit

ON_TF_DATA, ON_LOADER, ON_DATA_SET = "Keras on tf.data", "Lightning on DataLoader", "Trainer on a data set"


def tf_pairs(chain: Chain) -> Any:
    """Return a data set of tf.data with inputs and targets, as Keras takes it."""
    return TfData().produced(chain)().again().map(lambda element: (element, element["i"]))


def evaluations(data: Any) -> Seen:
    noted = RecordedInfo()
    model, callbacks = keras_model(noted)
    for _ in range(3):
        model.evaluate(data, steps=2, verbose=0, callbacks=callbacks)
    return Seen(noted.validated)


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


def on_keras(see: Callable[..., Seen | Facts], *chains: Chain) -> Look:
    peers = {ON_TF_DATA: lambda: see(*map(tf_pairs, chains))}
    return ours(lambda *loaders: see(*(one.data for one in loaders)), *chains, peers=peers, only=("to_keras",))


KERAS = {
    "`fit(steps_per_epoch=2, epochs=3)`": on_keras(
        lambda data: Seen(keras_fit(data, 3, steps_per_epoch=2).trained), LONG
    ),
    "`fit(epochs=2)` twice": on_keras(
        lambda data: Seen([one for _ in range(2) for one in keras_fit(data, 2).trained]), RANDOM
    ).but(passes=(0, 1, 2, 3)),
    "`evaluate(steps=2)` three times": on_keras(evaluations, LONG),
    "`fit(validation_steps=2)`": on_keras(
        lambda train, val: Seen(keras_fit(train, 3, validation_data=val, validation_steps=2).validated), SHUFFLED, LONG
    ),
    "`predict` behind `fit`": ours(
        predictions_of_a_job,
        SHUFFLED,
        PLAIN,
        peers={ON_TF_DATA: lambda: predictions(tf_pairs(SHUFFLED), tf_pairs(PLAIN))},
        only=("to_keras",),
    ),
}


def limited(**data: Any) -> Seen:
    return Seen(lightning_fit(3, limits={"limit_train_batches": 2}, **data).trained)


def checked(**data: Any) -> Seen:
    """Fit for two epochs, with a sanity check of one batch and validations of two."""
    return Seen(lightning_fit(2, limits={"num_sanity_val_steps": 1, "limit_val_batches": 2}, **data).validated)


def module(loader: Any, **pipes: Any) -> Any:
    from pecan_ray.integrations import PecanDataModule

    return PecanDataModule(loader.pipe, options=loader.options, eval_options=loader.options, **pipes)


LIGHTNING = {
    "`limit_train_batches=2`": ours(
        lambda loader: limited(datamodule=module(loader)),
        LONG_SHUFFLED,
        peers={ON_LOADER: lambda: limited(train_dataloaders=torch_loader(LONG_SHUFFLED))},
        only=("Lightning",),
        passes=(0, 1, 2),
    ),
    "the sanity check before training": ours(
        lambda train, val: checked(datamodule=module(train, val=val.pipe)),
        SHUFFLED,
        PLAIN,
        peers={
            ON_LOADER: lambda: checked(train_dataloaders=torch_loader(SHUFFLED), val_dataloaders=torch_loader(PLAIN))
        },
        only=("Lightning",),
    ),
}


def trained(loader: Any, **options: Any) -> Seen:
    from pecan_ray.integrations import PecanTrainer

    return Seen(hugging_face_train(PecanTrainer, loader.pipe, options=loader.options, **options).trained)


def evaluated(loader: Any, val: Any, **options: Any) -> Seen:
    from pecan_ray.integrations import PecanTrainer

    more = {"options": loader.options, "eval_dataset": val.pipe, "eval_options": val.options}
    return Seen(hugging_face_train(PecanTrainer, loader.pipe, **more, **options).validated)


def their_trainer(**options: Any) -> RecordedInfo:
    from transformers import Trainer

    def collate(elements: list[dict[str, Any]]) -> dict[str, Any]:
        from torch.utils.data import default_collate

        return {"i": default_collate(elements)["i"]}

    return hugging_face_train(Trainer, torch_loader(rows(N)).dataset, data_collator=collate, **options)


def on_trainer(**options: Any) -> Look:
    peers = {ON_DATA_SET: lambda: Seen(their_trainer(**options).trained)}
    return ours(lambda loader: trained(loader, **options), SHUFFLED, peers=peers, only=("Trainer",))


TRAINER = {
    "an evaluation behind each epoch": ours(
        lambda train, val: evaluated(train, val, epochs=2),
        SHUFFLED,
        PLAIN,
        peers={
            ON_DATA_SET: lambda: Seen(their_trainer(epochs=2, eval_dataset=torch_loader(rows(N)).dataset).validated)
        },
        only=("Trainer",),
    ),
    "`max_steps` in the middle of an epoch": on_trainer(epochs=2, steps=4),
    "`train()` twice": on_trainer(epochs=1, times=2).but(passes=(0, 1)),
}
