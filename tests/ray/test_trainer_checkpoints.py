"""Checkpoints of Lightning, Hugging Face and accelerate hold where the input stands: runs go on with what is unused."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, StateError
from tests.ray.pipelines import ONE, ids, numbers

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
accelerate: Any = pytest.importorskip("accelerate")

if find_spec("pytorch_lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS, EPOCHS = 43, 3
STEPS = 6
"""Of an epoch, in batches of 8."""


class CutError(Exception):
    """What ends a run in the middle."""


def rows(*, known: bool = True) -> pecan.PecanPipeline:
    """Return batches with a column that no model takes; `known`: how many there are."""
    pipe = numbers(ROWS, "trained").map(lambda row: {"i": row["i"], "labels": row["i"], "other": row["i"]})
    return (pipe if known else pipe.filter(lambda i: i >= 0, on="i")).shuffle(20).batch(8)


def test_accelerate_goes_on_with_what_was_not_used(tmp_path: Path) -> None:
    def registered() -> tuple[Any, Any]:
        accelerator = accelerate.Accelerator(cpu=True)
        data = rows().to_torch(epochs=2, device=accelerator.device, workers=ONE)
        accelerator.register_for_checkpointing(data)
        return accelerator, data

    accelerator, data = registered()
    running = iter(data)
    used = ids(next(running) for _ in range(3))
    accelerator.save_state(str(tmp_path / "saved"))
    data.close()
    other, rest = registered()
    other.load_state(str(tmp_path / "saved"))
    assert sorted(used + ids(rest)) == sorted(ids(rest)) == list(range(ROWS))


# --- Lightning ------------------------------------------------------------------------------------------------


def noting(cut_in: int | None = None) -> Any:
    """Return a module that notes what it has made steps with, and fails in one of them.

    Lightning takes seconds to import: processes that only collect tests are spared it.
    """
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


def fit(model: Any, folder: Path, *saving: Any, **options: Any) -> None:
    """Fit on batches of which Lightning fetches one ahead, since nobody knows how many there are."""
    from pytorch_lightning import Trainer

    from pecan_ray.integrations import PecanDataModule

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", default_root_dir=folder, callbacks=[*saving], **quiet)
    trainer.fit(model, datamodule=PecanDataModule(rows(known=False), options={"workers": ONE}), **options)


def must_be_whole(*parts: list[tuple[int, list[int]]]) -> None:
    """Check that each epoch has every element once."""
    for epoch in range(EPOCHS):
        assert sorted(i for part in parts for of, ids in part if of == epoch for i in ids) == list(range(ROWS)), epoch


def test_lightning_goes_on_with_what_was_not_used(tmp_path: Path) -> None:
    from pytorch_lightning.callbacks import ModelCheckpoint

    saved_at = 2 * STEPS - 1
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1)
    first, second = noting(cut_in=saved_at + 2), noting()
    with pytest.raises(CutError):
        fit(first, tmp_path, saving)
    fit(second, tmp_path, ckpt_path=tmp_path / f"step={saved_at}.ckpt")
    must_be_whole(first.seen[:saved_at], second.seen)


@pytest.mark.slow  # Lightning's own checkpoint on an exception: the batch fetched ahead shows most of it
def test_what_fails_in_a_step_of_lightning_is_saved_without_its_batch(tmp_path: Path) -> None:
    from pytorch_lightning.callbacks import OnExceptionCheckpoint

    first, second = noting(cut_in=STEPS + 3), noting()
    with pytest.raises(CutError):
        fit(first, tmp_path, OnExceptionCheckpoint(tmp_path))
    (saved,) = tmp_path.glob("*.ckpt")
    fit(second, tmp_path, ckpt_path=saved)
    must_be_whole(first.seen, second.seen)


# --- the Trainer of Hugging Face ------------------------------------------------------------------------------


class Noting(torch.nn.Module):  # type: ignore[misc]  # torch is imported where it is installed
    """Notes what it is called with; fails in one call."""

    def __init__(self, cut_in: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.cut_in, self.seen = cut_in, list[list[int]]()

    def forward(self, i: Any, labels: Any) -> dict[str, Any]:
        if len(self.seen) == self.cut_in:
            raise CutError
        self.seen.append(i.tolist())
        return {"loss": self.weight**2, "logits": i}


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for batch in batches for i in batch)


def trainer(model: Any, folder: Path, *, known: bool = True, options: Any = None, **more: Any) -> Any:
    from pecan_ray.integrations import PecanTrainer

    steps = {} if known else {"max_steps": EPOCHS * STEPS}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{**steps, **more},
    )
    return PecanTrainer(model, arguments, train_dataset=rows(known=known), options=options or {"workers": ONE})


def test_a_trainer_goes_on_with_what_was_not_used_and_refuses_a_damaged_state_and_its_own_options(
    tmp_path: Path,
) -> None:
    cut_in = 2
    first, second = Noting(cut_in), Noting()
    with pytest.raises(CutError):
        trainer(first, tmp_path, known=False).train()
    damaged = tmp_path / "elsewhere" / f"checkpoint-{cut_in}"
    shutil.copytree(tmp_path / damaged.name, damaged)
    (damaged / "pecan_input.json").write_text("{")
    with pytest.raises(StateError, match=rf"{damaged.name}.*damaged"):
        trainer(Noting(), tmp_path, known=False).train(resume_from_checkpoint=str(damaged))
    going_on = trainer(second, tmp_path, known=False)
    going_on.train(resume_from_checkpoint=True)
    seen = first.seen + second.seen
    assert len(seen) == EPOCHS * STEPS == going_on.state.global_step, "nothing is made again to be skipped"
    for epoch in range(EPOCHS):
        assert flat(seen[epoch * STEPS : (epoch + 1) * STEPS]) == list(range(ROWS))
    with pytest.raises(PlanError, match="format"):
        trainer(Noting(), tmp_path, options={"format": "torch"})
    with pytest.raises(PlanError, match="no argument 'wrokers'"):
        trainer(Noting(), tmp_path, options={"wrokers": 3})


@pytest.mark.slow
def test_gradients_of_several_batches_are_one_step(tmp_path: Path) -> None:
    first, second = Noting(7), Noting()
    several: dict[str, Any] = {"gradient_accumulation_steps": 4, "ignore_data_skip": True}
    with pytest.raises(CutError):  # in the second batch of the second epoch, of whose batches none was in a step
        trainer(first, tmp_path, **several).train()
    going_on = trainer(second, tmp_path, **several)
    told = going_on.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2")).metrics
    assert going_on.state.global_step == EPOCHS * 2 and going_on.state.epoch == EPOCHS
    assert round(told["train_samples_per_second"] * told["train_runtime"]) == 2 * ROWS, "not of 8 for each batch"
    assert flat(second.seen) == sorted([*range(ROWS)] * 2), "the second epoch and the third"


@pytest.mark.slow
def test_a_checkpoint_without_the_input_is_gone_on_from_by_skipping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CutError):
        trainer(Noting(8), tmp_path).train()
    (tmp_path / "checkpoint-8" / "pecan_input.json").unlink()
    model = Noting()
    trainer(model, tmp_path).train(resume_from_checkpoint=True)
    assert len(model.seen) == EPOCHS * STEPS - 8 and "holds nothing of the input" in caplog.text
