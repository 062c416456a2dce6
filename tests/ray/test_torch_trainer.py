"""Ray Train on a cluster of two CPUs, both of them held by its workers: their shared job gets a place beside them."""

from __future__ import annotations

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

pytestmark = pytest.mark.usefixtures("one_node")

ROWS, EPOCHS = 403, 2


def loop(config: dict[str, Any]) -> None:
    """Train: each step is a collective operation, which waits for ever for a rank that has one batch less."""
    import torch

    here = train.get_context()
    rank, world_size = here.get_world_rank(), here.get_world_size()
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="torch").batch(8)
    options = {"rank": rank, "world_size": world_size, "format": "torch", "epochs": EPOCHS}
    steps, seen = torch.zeros(1), []
    with pipe.iter_batches(workers=config["workers"], **options) as batches:
        for batch in batches:
            one = torch.ones(1)
            torch.distributed.all_reduce(one)
            steps += one / world_size
            seen += batch["i"].tolist()
    (Path(config["folder"]) / str(rank)).write_text(f"{int(steps)} {' '.join(map(str, seen))}")


@pytest.mark.slow  # Ray Train starts processes that import torch, and a process group between them
@pytest.mark.parametrize("workers", [pecan.Workers(local=1), pecan.AutoWorkers()], ids=str)
def test_two_torch_trainers_on_two_cpus_share_a_job(tmp_path: Path, workers: Any) -> None:
    trainer = torch_train.TorchTrainer(
        loop,
        train_loop_config={"folder": str(tmp_path), "workers": workers},
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=train.RunConfig(name="two", storage_path=str(tmp_path / "train")),
    )
    result = trainer.fit()
    assert result.error is None
    (first, *mine), (second, *others) = ((tmp_path / str(rank)).read_text().split() for rank in range(2))
    assert first == second, "each rank has as many batches as the other"
    came = Counter(map(int, mine)) + Counter(map(int, others))
    assert came.keys() == set(range(ROWS)) and set(came.values()) <= {EPOCHS, EPOCHS - 1}
    until(lambda: not cluster.named_actors(), "an actor of ours is left")
    assert came.total() >= EPOCHS * (ROWS - 1), "of an odd number of elements one may be left out"
