"""Jobs on a cluster of two CPUs: none of them blocks another one for good, and whoever waits says for whom."""

from __future__ import annotations

from typing import Any

import pytest
import ray

import pecan_ray as pecan
from pecan_ray.options import AutoWorkers
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.waiting import until
from tests.ray.waiting_transforms import waiting

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 400
ONCE = [*range(ROWS)]


def pipeline(name: str) -> pecan.PecanPipeline:
    config = pecan.Config(placement_warning_s=1.0, reorder="off")
    return numbers(ROWS, name, config=config).batch(8)


@ray.remote(num_cpus=1)
class TrainWorker:
    """Holds a CPU, as a worker of Ray Train does."""

    def train(self, rank: int) -> list[int]:
        with pipeline("trained").iter_batches(rank=rank, world_size=2, workers=ONE) as batches:
            return ids(batches)


def test_trainers_that_hold_all_cpus_get_a_worker_beside_them() -> None:
    actor: Any = TrainWorker
    trainers = [actor.remote() for _ in range(2)]
    try:
        first, second = ray.get([trainer.train.remote(rank) for rank, trainer in enumerate(trainers)])
    finally:
        for trainer in trainers:
            ray.kill(trainer)
    assert sorted(first + second) == ONCE


def test_a_job_that_may_gives_up_a_worker_for_one_that_waits() -> None:
    placing = AutoWorkers(max_remote=0, window_batches=5, window_s=1.0)
    # Far more than the trainer takes for a batch, also on a loaded machine: it is worth two workers.
    with waiting(0.1).iter_batches(epochs=None, workers=placing, prefetch_bytes=1 << 20) as rich:
        until(lambda: next(rich) is not None and len(rich.report().workers) == 2, "not two workers")
        assert sorted(ids(pipeline("poor").iter_batches(workers=ONE))) == ONCE
        next(rich)
        assert any("job poor" in event.text and "waits for CPUs" in event.text for event in rich.report().events)
