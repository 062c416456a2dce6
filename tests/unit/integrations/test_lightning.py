"""Pipelines under a trainer of Lightning, in debug mode: epochs, validation, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

pl: Any = pytest.importorskip("pytorch_lightning")
torch: Any = pytest.importorskip("torch")
PecanDataModule: Any = pytest.importorskip("pecan_ray.integrations.lightning_data").PecanDataModule

DEBUG = {"debug": True}


def rows(count: int = 10) -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(count)), name="rows").batch(3)


class Noting(pl.LightningModule):  # type: ignore[misc]  # Lightning is imported where it is installed
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[list[int]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, _: int) -> Any:
        self.trained.append(batch["i"].tolist())
        return self.weight**2

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated.append(batch["i"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return pl.Trainer(**{**quiet, "max_epochs": 2, "enable_checkpointing": False, **options}, default_root_dir=folder)


def fitted(data: Any, folder: Path, **options: Any) -> Noting:
    model = Noting()
    trainer(folder, **options).fit(model, datamodule=data)
    return model


def test_several_pipelines_are_validated_each_to_its_end(tmp_path: Path) -> None:
    class Both(Noting):
        def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
            self.validated.append([dataloader_idx, *batch["i"].tolist()])

    model = Both()
    data = PecanDataModule(val=[rows(4), rows(2)], eval_options=DEBUG)
    trainer(tmp_path).validate(model, datamodule=data, verbose=False)
    assert model.validated == [[0, 0, 1, 2], [0, 3], [1, 0, 1]]


def test_what_is_left_out_lets_the_length_be_unknown(tmp_path: Path) -> None:
    def odd(i: int) -> int:
        if i < 3:
            raise ValueError("bad")
        return i

    pipe = PecanPipeline(Arrays(i=np.arange(9)), name="bad").map(odd, on="i").batch(3)
    kept = PecanPipeline(Arrays(i=np.arange(12)), name="kept").filter(lambda i: i < 10, on="i").batch(3)
    data = PecanDataModule(pipe, val=kept, options={**DEBUG, "on_error": "skip"}, eval_options=DEBUG)
    model = fitted(data, tmp_path, num_sanity_val_steps=0)
    assert Counter(i for ids in model.trained for i in ids) == dict.fromkeys(range(3, 9), 2)
    assert len(model.validated) == 2 * 4, "the last batch was known to be the last one"


def test_a_checkpoint_of_a_job_without_a_state_holds_the_model_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted(PecanDataModule(rows(), options=DEBUG), tmp_path, enable_checkpointing=True)
    (saved,) = tmp_path.rglob("*.ckpt")
    assert "PecanDataModule" not in torch.load(saved, weights_only=False)
    told = [record.message for record in caplog.records if "hold nothing of the input" in record.message]
    assert len(told) == 1 and "no state, since debug=True" in told[0]


def test_a_subclass_may_have_loaders_of_its_own(tmp_path: Path) -> None:
    class Mine(PecanDataModule):  # type: ignore[misc]  # as above
        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader([{"i": torch.arange(2)}], batch_size=None)

    model = fitted(Mine(rows(), val=rows(2), options=DEBUG, eval_options=DEBUG), tmp_path, max_epochs=1)
    assert model.trained == [[0, 1]] and model.validated[-1] == [0, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": 3}, r"PecanDataModule\(train=...\) needs a pipeline, but got int"),
        ({"val": [3]}, r"PecanDataModule\(val=...\) needs a pipeline, but got int"),
        ({"options": {"batch_size": 3}}, "make batches by the pipeline's .batch"),
        ({"options": {"epochs": 3}}, r"'epochs': ...}\): the trainer says that. Say PecanDataModule\(epochs=...\)"),
        ({"val": rows(), "eval_options": {"device": "cpu"}}, r"eval_options={'device': ...}\): the trainer says that"),
    ],
)
def test_what_a_data_module_cannot_take_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        PecanDataModule(**{"train": rows(), **options})
