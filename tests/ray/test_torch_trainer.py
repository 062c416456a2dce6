"""Ray Train on a cluster of two CPUs, both of them held by its workers: their shared job gets a place beside them."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.runtime import cluster
from tests.ray.waiting import until

pytest.importorskip("torch")
train: Any = pytest.importorskip("ray.train")
torch_train: Any = pytest.importorskip("ray.train.torch")

pytestmark = [
    pytest.mark.usefixtures("one_node"),
    pytest.mark.slow,  # Ray Train starts processes that import torch, and a process group between them
    pytest.mark.timeout(900),  # twice in a test, on a machine that may be busy
]

ROWS, EPOCHS = 403, 2


def pipeline() -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="torch").shuffle(50).batch(8)


def trained(loop: Any, folder: Path) -> None:
    """Let Ray Train run a loop on two ranks, and once more from its checkpoint where it fails."""
    from pecan_ray.integrations import PecanDataConfig

    trainer = torch_train.TorchTrainer(
        loop,
        train_loop_config={"folder": str(folder)},
        datasets={"train": pipeline()},
        dataset_config=PecanDataConfig(epochs=EPOCHS, options={"train": {"workers": pecan.Workers(local=1)}}),
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(
            name="run", storage_path=str(folder / "train"), failure_config=train.FailureConfig(max_failures=1)
        ),
    )
    assert trainer.fit().error is None


def must_be_whole(came: Counter[int]) -> None:
    """Check that each element came once an epoch; of an odd number one may be left out."""
    assert came.keys() == set(range(ROWS)) and set(came.values()) <= {EPOCHS, EPOCHS - 1}
    assert came.total() >= EPOCHS * (ROWS - 1)


STEPS_SAVED = 5
KILLED_AT = 37
"""In the second epoch."""


def going_on(config: dict[str, Any]) -> None:
    """Train on a shard, save its state every few steps, and be killed once at one of the ranks.

    Each step is a collective operation, which waits for ever for a rank that has one batch less.
    """
    import torch

    folder, rank = Path(config["folder"]), train.get_context().get_world_rank()
    shard, step, epochs = train.get_dataset_shard("train"), 0, 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as saved:
            state = json.loads((Path(saved) / "input.json").read_text())
        shard.load_state_dict(state["input"])
        step, epochs = state["step"], state["input"]["epochs"]
    lines = folder / f"{'first' if checkpoint is None else 'second'}-{rank}"
    for _ in range(epochs, EPOCHS):
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
    if rank > 0:
        train.report({"step": state["step"]})
        return
    folder.mkdir()
    (folder / "input.json").write_text(json.dumps(state))
    train.report({"step": state["step"]}, checkpoint=train.Checkpoint.from_directory(str(folder)))


def test_a_killed_training_worker_loses_and_repeats_nothing(tmp_path: Path) -> None:
    trained(going_on, tmp_path)
    until(lambda: not cluster.named_actors(), "an actor of ours is left")
    kept = int((tmp_path / "second-0").read_text().split()[0]) - 1  # the step of the last checkpoint that was whole
    assert 0 < kept < KILLED_AT and kept % STEPS_SAVED == 0
    came: Counter[int] = Counter()
    for path in tmp_path.glob("*-[01]"):
        for line in path.read_text().splitlines():
            step, *ids = map(int, line.split())
            if path.name.startswith("second") or step <= kept:
                came.update(ids)
    must_be_whole(came)
