"""Ends that are announced, on real Ray: of a node that is drained, and of a process that gets SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import ray
from ray.core.generated import autoscaler_pb2

import pecan_ray as pecan
from pecan_ray.job.heartbeat import NOTICE_S
from tests.ray.pipelines import ids, numbers
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, living_worker, process_of

pytestmark = pytest.mark.usefixtures("no_actor_left")

ROWS, FREE, TOLD_S = 120, 40, 100
SPOT = {"spot": "yes"}


@pytest.fixture(scope="module")
def two_spot_nodes(three_nodes: Any) -> Iterator[list[Any]]:
    """Two nodes more, for remote workers alone; each of two tests is left by one of them."""
    nodes = [three_nodes.add_node(num_cpus=1, object_store_memory=100 << 20, labels=SPOT) for _ in range(2)]
    three_nodes.wait_for_nodes()
    yield nodes
    for node in nodes:
        three_nodes.remove_node(node)


@dataclass(frozen=True)
class Gate:
    """A function that gives back the first numbers at once, and the others once there is a file."""

    file: Path

    def __call__(self, number: Any) -> Any:
        if number >= FREE:
            until(self.file.exists, "the gate stays shut")
        return number


def begin(gate: Path, workers: pecan.Workers) -> pecan.Batches:
    """A job that makes single numbers; remote workers are on spot nodes."""
    config = pecan.Config(progress=False, reorder="off", remote_labels=SPOT)
    return (
        numbers(ROWS, "leaving", config=config)
        .map(Gate(gate), on="i")
        .batch(1)
        .iter_batches(workers=workers, **ONE_BY_ONE)
    )


def take_away(cluster: Any, node: str) -> None:
    """Let Ray know that a node will be taken away, as `ray drain-node` and clouds' notices do."""
    raylet, words = cast(Any, ray._raylet), cast(Any, autoscaler_pb2)
    client = raylet.GcsClient(address=cluster.address)
    reason = words.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = client.drain_node(node, reason, "preempted", int(time.time() + TOLD_S) * 1000)
    assert accepted, why


def rest_of_it(batches: pecan.Batches, leaver: str, seen: list[int], gate: Path) -> None:
    """Wait until a worker is replaced, and use the rest: each number comes once, and nobody is lost."""

    def drains() -> bool:
        return any(event.text == f"{leaver} drains" for event in batches.report().events)

    until(drains, lambda: f"{leaver} does not drain: {batches.report()}")
    gate.touch()
    seen += ids(batches)
    report = batches.report()
    assert sorted(seen) == list(range(ROWS))
    assert report.workers_lost == 0 and sum(one.batches > 0 for one in report.workers.values()) == 2, str(report)
    kinds = [event.kind for event in report.events]
    assert "lost" not in kinds and kinds.index("leaving") < len(kinds) - kinds[::-1].index("worker") - 1, str(report)


def test_the_workers_of_a_node_that_is_taken_away_are_replaced_before_they_go(
    three_nodes: Any, two_spot_nodes: list[Any], tmp_path: Path
) -> None:
    with begin(tmp_path / "gate", pecan.Workers(local=0, remote=1)) as batches:
        seen = ids([next(batches)])
        leaver = living_worker("remote", [])
        actor: Any = ray.get_actor(leaver, namespace="pecan")
        placed: tuple[str, int] = ray.get(actor.placed.remote())
        take_away(three_nodes, node := placed[0])
        rest_of_it(batches, leaver, seen, tmp_path / "gate")

    def gone() -> bool:
        nodes: Any = ray.nodes
        return not any(one["Alive"] for one in nodes() if one["NodeID"] == node)

    until(gone, "Ray does not end a node on which nothing of ours runs any more")


def test_all_of_a_node_asked_to_end_as_ray_stop_does_ends_at_once(
    three_nodes: Any, two_spot_nodes: list[Any], tmp_path: Path
) -> None:
    with begin(tmp_path / "gate", pecan.Workers(local=0, remote=1)) as batches:
        next(batches)
        worker = psutil.Process(process_of(living_worker("remote", [])))
        raylets = [node.all_processes["raylet"][0].process for node in two_spot_nodes]
        (raylet,) = (one for one in raylets if one.pid == worker.ppid())
        for process in (worker, raylet):
            process.send_signal(signal.SIGTERM)
        worker.wait(0.8 * NOTICE_S)


def test_a_worker_that_gets_sigterm_is_replaced_before_it_goes(three_nodes: Any, tmp_path: Path) -> None:
    with begin(tmp_path / "gate", pecan.Workers(local=1)) as batches:
        seen = ids([next(batches)])
        leaver = living_worker("local", [])
        os.kill(process_of(leaver), signal.SIGTERM)
        rest_of_it(batches, leaver, seen, tmp_path / "gate")
