"""Pipelines under a trainer of Lightning, in debug mode: epochs, validation, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
        self.validated.append(batch["i"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fitted(data: Any, folder: Path, **options: Any) -> Noting:
    model = Noting()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    options = {"max_epochs": 2, "enable_checkpointing": False, **options}
    pl.Trainer(**quiet, **options, default_root_dir=folder).fit(model, datamodule=data)
    return model


def test_what_is_left_out_lets_the_length_be_unknown_and_several_pipelines_are_validated(tmp_path: Path) -> None:
    def odd(i: int) -> int:
        if i < 3:
            raise ValueError("bad")
        return i

    pipe = PecanPipeline(Arrays(i=np.arange(9)), name="bad").map(odd, on="i").batch(3)
    kept = PecanPipeline(Arrays(i=np.arange(12)), name="kept").filter(lambda i: i < 10, on="i").batch(3)
    options = {**DEBUG, "on_error": "skip"}
    data = PecanDataModule(pipe, val=[kept, rows(2)], options=options, eval_options=DEBUG)
    model = fitted(data, tmp_path, num_sanity_val_steps=0)
    assert Counter(i for ids in model.trained for i in ids) == dict.fromkeys(range(3, 9), 2)
    assert model.validated == 2 * [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9], [0, 1]], "the last batch was known as such"


def test_a_checkpoint_of_a_job_without_a_state_holds_the_model_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted(PecanDataModule(rows(), options=DEBUG), tmp_path, enable_checkpointing=True)
    (saved,) = tmp_path.rglob("*.ckpt")
    assert "PecanDataModule" not in torch.load(saved, weights_only=False)
    told = [record.message for record in caplog.records if "hold nothing of the input" in record.message]
    assert len(told) == 1 and "no state, since debug=True" in told[0]
