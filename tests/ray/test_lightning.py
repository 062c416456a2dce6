"""Lightning's checkpoints hold where the input stands: training that was cut off goes on with what it has not used."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.long_form import some_later

if find_spec("pytorch_lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS, EPOCHS = 43, 3
STEPS = 6
"""Of an epoch."""


class CutError(Exception):
    """What ends a run in the middle."""


def noting(cut_in: int | None = None) -> Any:
    """Return a module that notes what it has made steps with, and fails in one of them.

    Lightning takes seconds to import: processes that only collect tests are spared it.
    """
    import torch
    from pytorch_lightning import LightningModule

    class Noting(LightningModule):  # type: ignore[misc]  # it may not be installed
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[tuple[int, list[int]]] = []

        def training_step(self, batch: Any, _: int) -> Any:
            if self.global_step == cut_in:
                raise CutError
            self.seen.append((self.trainer.current_epoch, batch["i"].tolist()))
            return self.weight**2

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Noting()


def module(*, known: bool) -> Any:
    from pecan_ray.integrations import PecanDataModule

    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="lightning")
    pipe = pipe if known else pipe.filter(lambda i: i >= 0, on="i")
    return PecanDataModule(pipe.shuffle(20).batch(8), options={"workers": pecan.Workers(local=1)})


def trainer(folder: Path, *saving: Any) -> Any:
    from pytorch_lightning import Trainer

    return Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(saving),
    )


def must_be_whole(*parts: list[tuple[int, list[int]]]) -> None:
    """Check that each epoch has every element once."""
    for epoch in range(EPOCHS):
        assert sorted(i for part in parts for of, ids in part if of == epoch for i in ids) == list(range(ROWS)), epoch


@pytest.mark.parametrize("known", some_later([True, False], True), ids=["length known", "a batch ahead"])
def test_a_run_that_was_cut_off_goes_on_with_what_it_has_not_used(tmp_path: Path, known: bool) -> None:
    from pytorch_lightning.callbacks import ModelCheckpoint

    saved_at = 2 * STEPS - 1
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1)
    first = noting(cut_in=saved_at + 2)
    with pytest.raises(CutError):
        trainer(tmp_path, saving).fit(first, datamodule=module(known=known))
    second = noting()
    trainer(tmp_path).fit(second, datamodule=module(known=known), ckpt_path=tmp_path / f"step={saved_at}.ckpt")
    must_be_whole(first.seen[:saved_at], second.seen)


@pytest.mark.slow  # Lightning's own checkpoint on an exception: the batch fetched ahead shows most of it
def test_what_fails_in_a_step_is_saved_without_its_batch(tmp_path: Path) -> None:
    from pytorch_lightning.callbacks import OnExceptionCheckpoint

    first, second = noting(cut_in=STEPS + 3), noting()
    with pytest.raises(CutError):
        trainer(tmp_path, OnExceptionCheckpoint(tmp_path)).fit(first, datamodule=module(known=False))
    (saved,) = tmp_path.glob("*.ckpt")
    trainer(tmp_path).fit(second, datamodule=module(known=False), ckpt_path=saved)
    must_be_whole(first.seen, second.seen)
