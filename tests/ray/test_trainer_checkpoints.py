"""Checkpoints of Lightning, Hugging Face, accelerate and Ray Train hold where the input stands."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, StateError
from pecan_ray.runtime import cluster
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.waiting import until

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


def rows() -> pecan.PecanPipeline:
    """Return batches with a column that no model takes; nobody knows how many there are."""
    pipe = numbers(ROWS, "trained").map(lambda row: {"i": row["i"], "labels": row["i"], "other": row["i"]})
    return pipe.filter(lambda i: i >= 0, on="i").shuffle(20).batch(8)


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
    trainer.fit(model, datamodule=PecanDataModule(rows(), options={"workers": ONE}), **options)


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


def trainer(model: Any, folder: Path, options: Any = None) -> Any:
    from pecan_ray.integrations import PecanTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        max_steps=EPOCHS * STEPS,
        save_strategy="steps",
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return PecanTrainer(model, arguments, train_dataset=rows(), options=options or {"workers": ONE})


def test_a_trainer_goes_on_with_what_was_not_used_and_refuses_a_damaged_state_and_its_own_options(
    tmp_path: Path,
) -> None:
    cut_in = 2
    first, second = Noting(cut_in), Noting()
    with pytest.raises(CutError):
        trainer(first, tmp_path).train()
    damaged = tmp_path / "elsewhere" / f"checkpoint-{cut_in}"
    shutil.copytree(tmp_path / damaged.name, damaged)
    (damaged / "pecan_input.json").write_text("{")
    with pytest.raises(StateError, match=rf"{damaged.name}.*damaged"):
        trainer(Noting(), tmp_path).train(resume_from_checkpoint=str(damaged))
    going_on = trainer(second, tmp_path)
    going_on.train(resume_from_checkpoint=True)
    seen = first.seen + second.seen
    assert len(seen) == EPOCHS * STEPS == going_on.state.global_step, "nothing is made again to be skipped"
    for epoch in range(EPOCHS):
        assert flat(seen[epoch * STEPS : (epoch + 1) * STEPS]) == list(range(ROWS))
    with pytest.raises(PlanError, match="format"):
        trainer(Noting(), tmp_path, options={"format": "torch"})
    with pytest.raises(PlanError, match="no argument 'wrokers'"):
        trainer(Noting(), tmp_path, options={"wrokers": 3})


# --- Ray Train, whose workers hold both CPUs: their job gets a place beside them ----------------------------------

TRAIN_ROWS, TRAIN_EPOCHS, STEPS_SAVED = 403, 2, 5
KILLED_AT = 37
"""In the second epoch."""


def going_on(config: dict[str, Any]) -> None:
    """Train on a shard, save its state every few steps, and be killed once at one of the ranks.

    Each step is a collective operation, which waits for ever for a rank that has one batch less.
    """
    from ray import train

    folder, rank = Path(config["folder"]), train.get_context().get_world_rank()
    shard, step, epochs = train.get_dataset_shard("train"), 0, 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as saved:
            state = json.loads((Path(saved) / "input.json").read_text())
        shard.load_state_dict(state["input"])
        step, epochs = state["step"], state["input"]["epochs"]
    lines = folder / f"{'first' if checkpoint is None else 'second'}-{rank}"
    for _ in range(epochs, TRAIN_EPOCHS):
        for batch in shard.iter_torch_batches(device="cpu"):
            torch.distributed.all_reduce(torch.ones(1))
            step += 1
            with lines.open("a") as file:
                print(step, *batch["i"].tolist(), file=file)
            if checkpoint is None and step == KILLED_AT and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % STEPS_SAVED == 0:
                report(folder / f"{lines.name}-at-{step}", rank, {"step": step, "input": shard.state_dict()})


def report(folder: Path, rank: int, state: dict[str, Any]) -> None:
    """Report a step, with a checkpoint of rank 0 for all."""
    from ray import train

    if rank > 0:
        train.report({"step": state["step"]})
        return
    folder.mkdir()
    (folder / "input.json").write_text(json.dumps(state))
    train.report({"step": state["step"]}, checkpoint=train.Checkpoint.from_directory(str(folder)))


@pytest.mark.slow  # Ray Train starts processes that import torch, and a process group between them
def test_a_killed_training_worker_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Ray Train runs the loop on two ranks, and once more from its checkpoint."""
    from ray import train
    from ray.train.torch import TorchTrainer

    from pecan_ray.integrations import PecanDataConfig

    pipe: Any = numbers(TRAIN_ROWS, "torch").shuffle(50).batch(8)
    trainer = TorchTrainer(
        going_on,
        train_loop_config={"folder": str(tmp_path)},
        datasets={"train": pipe},
        dataset_config=PecanDataConfig(epochs=TRAIN_EPOCHS, options={"train": {"workers": pecan.Workers(local=1)}}),
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(
            name="run", storage_path=str(tmp_path / "train"), failure_config=train.FailureConfig(max_failures=1)
        ),
    )
    assert trainer.fit().error is None
    until(lambda: not cluster.named_actors(), "an actor of ours is left")
    kept = int((tmp_path / "second-0").read_text().split()[0]) - 1  # the step of the last checkpoint that was whole
    assert 0 < kept < KILLED_AT and kept % STEPS_SAVED == 0
    came: Counter[int] = Counter()
    for path in tmp_path.glob("*-[01]"):
        for line in path.read_text().splitlines():
            step, *ids = map(int, line.split())
            if path.name.startswith("second") or step <= kept:
                came.update(ids)
    assert came.keys() == set(range(TRAIN_ROWS)) and set(came.values()) <= {TRAIN_EPOCHS, TRAIN_EPOCHS - 1}
    assert came.total() >= TRAIN_EPOCHS * (TRAIN_ROWS - 1), "of an odd number one may be left out"
