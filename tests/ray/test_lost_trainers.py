"""Several trainers in processes of their own: whoever dies, hangs back or comes again, the others are told."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from benchmarks.faults.processes import left_behind
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
