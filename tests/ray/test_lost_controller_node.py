"""The node of a controller that belongs to no trainer is lost with all trainers: nothing stays of the job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from tests.ray.conftest import Clusters, living_actors
from tests.ray.waiting import until


def endless(rank: int, **config: Any) -> Any:
    """One of two trainers of a job that does not end by itself."""
    lasting = pecan.Config(trainer_timeout_s=5, cpus_per_worker=0.5, reorder="off", **config)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4_000)), name="endless", config=lasting).batch(8)
    options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "endless", "epochs": None}
    return pipe.iter_batches(workers=pecan.Workers(local=2), **options)


class Trainer:
    """A trainer that is lost with its node."""

    def __init__(self) -> None:
        self._used = 0

    def train(self, rank: int, config: dict[str, Any]) -> None:
        for _ in endless(rank, **config):
            self._used += 1

    def used(self) -> int:
        return self._used


@pytest.fixture
def other_node(clusters: Clusters) -> Any:
    """A node beside the one of this process, to be lost."""
    clusters.end()
    cluster = clusters.of(2, 2)
    [node] = cluster.worker_nodes
    yield node
    clusters.end()


def trainers_on(node: Any, *ranks: int, **config: Any) -> list[Any]:
    """Start trainers on a node; the first one starts the controller there."""
    remote: Any = ray.remote
    actor = remote(Trainer)
    found = []
    for rank in ranks:
        trainer = actor.options(num_cpus=0, max_concurrency=2, label_selector={"ray.io/node-id": node.node_id}).remote()
        trainer.train.remote(rank, config)
        until(lambda: "pecan:endless:controller" in living_actors(), "no controller")
        found.append(trainer)
    return found


def lose(clusters: Clusters, node: Any) -> None:
    clusters._cluster.remove_node(node, allow_graceful=False)


def until_nothing_is_left() -> None:
    until(lambda: not living_actors(), lambda: f"there are still {living_actors()}")


@pytest.mark.slow  # a cluster of its own, a node of which is lost
def test_nothing_stays_of_a_job_that_is_lost_with_all_its_trainers(clusters: Clusters, other_node: Any) -> None:
    both = trainers_on(other_node, 0, 1)
    until(lambda: min(ray.get([trainer.used.remote() for trainer in both])) > 10, "the job does not run")
    lose(clusters, other_node)
    until_nothing_is_left()
