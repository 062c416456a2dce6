"""Several trainers in processes of their own: whoever dies, hangs back or comes again, the others are told."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ray

import pecan_ray as pecan
from benchmarks.faults.processes import left_behind
from tests.ray.conftest import Clusters, living_actors
from tests.ray.pipelines import ONE, numbers
from tests.ray.user_programs import environment_at, started
from tests.ray.waiting import ENDS_S, until

pytestmark = pytest.mark.usefixtures("no_actor_left")

TIMEOUT_S = 6
"""Of trainers that are not heard; what is waited for is said after five."""


def trained(rank: int, job: str) -> pecan.Batches:
    """Begin as one of two trainers, without an end."""
    config = pecan.Config(trainer_timeout_s=TIMEOUT_S, reorder="off", cpus_per_worker=0.5)
    pipe = numbers(4000, "several", config=config).batch(16)
    return pipe.iter_batches(rank=rank, world_size=2, job=job, workers=ONE, epochs=None)


TRAINER = """
import sys, time
from tests.ray.test_lost_trainers import trained

for number, _ in enumerate(trained(int(sys.argv[1]), "several"), 1):
    print(number, flush=True)
    time.sleep(0.05)
"""


class Trainers:
    """Two processes that share a job."""

    def __init__(self, stack: ExitStack, address: str, folder: Path) -> None:
        self._logs = [folder / f"{rank}.log" for rank in range(2)]
        self.processes = []
        for rank, log in enumerate(self._logs):
            own: Any = {"stdout": log.open("w"), "stderr": subprocess.STDOUT, "start_new_session": True}
            self.processes.append(stack.enter_context(started(TRAINER, environment_at(address), str(rank), **own)))
        self.until_they_go_on()

    def message(self, rank: int) -> str:
        """What a rank has said so far."""
        return self._logs[rank].read_text()

    def until_they_go_on(self) -> None:
        """Wait until both have used more than they have now."""
        used = [len(re.findall(r"^\d+$", self.message(rank), re.MULTILINE)) for rank in range(2)]
        for rank, count in enumerate(used):
            until(lambda: f"\n{count + 2}\n" in self.message(rank), lambda: self.message(rank))  # noqa: B023 - called at once


def test_a_trainer_that_stands_still_is_waited_for_and_one_that_is_killed_is_named(
    one_node: Any, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        trainers = Trainers(stack, one_node.address, tmp_path)
        first, second = trainers.processes
        first.send_signal(signal.SIGSTOP)
        try:
            until(lambda: "its process exists, and is waited for" in trainers.message(1), lambda: trainers.message(1))
        finally:
            first.send_signal(signal.SIGCONT)
        trainers.until_they_go_on()
        first.kill()
        assert second.wait(ENDS_S) == 1, trainers.message(1)
    told = re.search(r"ClusterError: .*rank 0 on node .+? has not been heard for (\d+) s", trainers.message(1))
    assert told is not None and int(told[1]) >= TIMEOUT_S, trainers.message(1)
    until(lambda: not left_behind(), lambda: f"there is {left_behind()}")


class Trainer:
    """A trainer that is lost with its node."""

    def __init__(self) -> None:
        self._used = 0

    def train(self, rank: int) -> None:
        for _ in trained(rank, "endless"):
            self._used += 1

    def used(self) -> int:
        return self._used


@pytest.mark.slow  # a cluster of its own, a node of which is lost
def test_nothing_stays_of_a_job_that_is_lost_with_its_controllers_node_and_all_its_trainers(clusters: Clusters) -> None:
    clusters.end()
    cluster = clusters.of(2, 2)
    [node] = cluster.worker_nodes
    remote: Any = ray.remote
    there = {"num_cpus": 0, "max_concurrency": 2, "label_selector": {"ray.io/node-id": node.node_id}}
    both = [remote(Trainer).options(**there).remote() for _ in range(2)]
    both[0].train.remote(0)
    until(lambda: "pecan:endless:controller" in living_actors(), "no controller")  # it is on the first one's node
    both[1].train.remote(1)
    until(lambda: min(ray.get([trainer.used.remote() for trainer in both])) > 10, "the job does not run")
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: not living_actors(), lambda: f"there are still {living_actors()}")
