"""Rows of the table: trainers of Keras, Lightning and Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.parity.chains import LONG, LONG_SHUFFLED, PLAIN, RANDOM, SHUFFLED, Chain, N, rows
from tests.parity.habit import Habit, Seen
from tests.parity.looks import ours
from tests.parity.peers import TfData, torch_loader
from tests.parity.seen import Facts
from tests.parity.trainers import RecordedInfo, hugging_face_train, keras_fit, keras_model, lightning_fit

ON_TF_DATA, ON_LOADER, ON_DATA_SET = "Keras on tf.data", "Lightning on DataLoader", "Trainer on a data set"


def tf_pairs(chain: Chain) -> Any:
    """Return a data set of tf.data with inputs and targets, as Keras takes it."""
    return TfData().produced(chain)().again().map(lambda element: (element, element["i"]))


# --- Keras ---------------------------------------------------------------------------------------------------


def fits(data: Any) -> Seen:
    return Seen([one for _ in range(2) for one in keras_fit(data, 2).trained])


def steps(data: Any) -> Seen:
    return Seen(keras_fit(data, 3, steps_per_epoch=2).trained)


def evaluations(data: Any) -> Seen:
    noted = RecordedInfo()
    model, callbacks = keras_model(noted)
    for _ in range(3):
        model.evaluate(data, steps=2, verbose=0, callbacks=callbacks)
    return Seen(noted.validated)


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
        "`evaluate(steps=2)` three times",
        says="the same batches each time",
        stats={"batches": [[8, 8]] * 3, "equal orders": "aaa"},
        **on_keras(evaluations, LONG),
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
