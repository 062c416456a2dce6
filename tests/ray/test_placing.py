"""AutoPlacement on a running job: real actors on three nodes, transforms that wait instead of compute.

How long something takes decides no test: deployments are compared within one worker, and reasons are read.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import ray
from ray.core.generated import autoscaler_pb2
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.observe.report import Report
from pecan_ray.placement import Deployment
from pecan_ray.plan.prices import GCP_TPU_V2, Prices, PriceTier
from pecan_ray.runtime.cluster import local_selector, why_no_placement
from pecan_ray.runtime.service import service_actor
from pecan_ray.runtime.sigterm import sigterm_flag
from tests.node_start import tried_twice
from tests.ray.conftest import ROOT, living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers
from tests.ray.waiting import until
from tests.ray.waiting_transforms import SMALL, train, waiting
from tests.ray.workers import ONE_BY_ONE, Together, living_worker, process_of

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def auto(**options: Any) -> pecan.AutoWorkers:
    settings: dict[str, Any] = {"max_local": 2, "window_batches": 10, "window_s": 0.5, "prices": GCP_TPU_V2}
    return pecan.AutoWorkers(**settings | options)


def at_one_moment(batches: pecan.Batches) -> tuple[str, Report]:
    """Return what a job explains and reports between the ends of two windows."""
    looks: list[tuple[Report, str, Report]] = []

    def same() -> bool:
        looks.append((batches.report(), batches.explain(), batches.report()))
        return looks[-1][0].timeline == looks[-1][2].timeline

    until(same, "windows end though nothing is read")
    return looks[-1][1], looks[-1][2]


def test_a_trainer_that_waits_gets_remote_workers_and_is_told_why() -> None:
    """How many are cheapest is decided by speed: the simulation of AutoPlacement looks at that."""
    workers = auto(max_remote=1)
    with waiting(0.02).iter_batches(workers=workers, **SMALL) as batches:
        train(batches, 0.0, lambda timeline: any(one.deployment.remote for one in timeline), look_every=5)
        order_text, report = at_one_moment(batches)
    assert all(str(step.decision.target) in step.decision.reason for step in report.timeline)
    why, _, _, *rest = order_text.splitlines()
    (then,) = [place for place, line in enumerate(rest) if line.strip().startswith("next: AutoPlacement ")]
    assert "AutoPlacement looks for the cheapest deployment." in why and "per 1000 batches" in order_text
    ran = {str(step.deployment) for step in report.timeline if step.window.batches}
    assert {row.strip().split("  ")[0] for row in rest[:then]} == ran
    targets = [Deployment(1, 0), *(step.decision.target for step in report.timeline)]
    told = [event.text for event in report.events if event.kind == "placement" and " -> " in event.text]
    assert len(told) == sum(new != old for old, new in itertools.pairwise(targets))
    assert all(any(step.decision.reason in text for step in report.timeline) for text in told)
    assert f"AutoPlacement: {targets[-1]} after {len(report.timeline)} windows" in str(report)
    assert report.cost is not None and report.cost.total > report.cost.wasted > 0


def test_remote_workers_go_to_the_cheapest_nodes_with_room_and_the_dearest_are_drained_first() -> None:
    """Each of the two remote nodes holds two workers; the tier says that four fit on the cheap one."""
    prices = Prices(1.0, 3.0, (PriceTier("cheap", 0.1, 4, {"market": "ondemand"}),))
    workers = auto(prices=prices, max_local=0, min_remote=3, max_remote=3)
    resources: Any = ray.available_resources
    until(lambda: resources().get("CPU") == 12, "workers of another job hold CPUs")
    with waiting(0.001, cpus_per_worker=2.0).iter_batches(workers=workers, **SMALL) as batches:

        def per_hour() -> float | None:
            next(batches)
            return next((rate for rate in reversed(batches.report().remote_rates)), None)

        until(lambda: per_hour() == pytest.approx(3.2), "no two workers on the cheap node and one on the other")
        batches.scale(local=0, remote=2)
        until(lambda: per_hour() == pytest.approx(0.2), "the dear worker does not go")
        rates = [rate for rate in batches.report().remote_rates if rate]
    assert max(rates) == pytest.approx(3.2), "no worker has moved"


# --- ends that are announced: of a node that is drained, and of a process that gets SIGTERM ------------------------

ROWS, FREE, TOLD_S = 120, 40, 3600
SPOT = {"spot": "yes"}


@pytest.fixture
def spot_nodes(three_nodes: Any) -> Iterator[list[Any]]:
    """Two nodes more, for remote workers alone."""
    more = partial(three_nodes.add_node, num_cpus=1, object_store_memory=100 << 20, labels=SPOT)
    nodes = [tried_twice(more) for _ in range(2)]
    three_nodes.wait_for_nodes()
    yield nodes
    for node in nodes:
        three_nodes.remove_node(node)


@dataclass(frozen=True)
class Gate:
    """A function that gives back the first numbers once two workers have some, and the others once there is a file."""

    file: Path
    together: Together

    def __call__(self, number: Any) -> Any:
        sigterm_flag()._grace_s = TOLD_S  # behind a signal the kernel ends a process in time, however busy it is
        self.together(number)
        if number >= FREE:
            until(self.file.exists, "the gate stays shut")
        return number


def take_away(cluster: Any, node: str) -> None:
    """Let Ray know that a node will be taken away, as `ray drain-node` and clouds' notices do."""
    raylet, words = cast(Any, ray._raylet), cast(Any, autoscaler_pb2)
    client = raylet.GcsClient(address=cluster.address)
    reason = words.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    accepted, why = client.drain_node(node, reason, "preempted", int(time.time() + TOLD_S) * 1000)
    assert accepted, why


@pytest.mark.usefixtures("spot_nodes")
def test_the_workers_of_a_node_that_is_taken_away_and_one_that_gets_sigterm_are_replaced_before_they_go(
    three_nodes: Any, tmp_path: Path
) -> None:
    pipe = numbers(ROWS, "leaving", config=pecan.Config(progress=False, reorder="off", remote_labels=SPOT))
    (tmp_path / "workers").mkdir()
    pipe = pipe.map(Gate(tmp_path / "gate", Together(tmp_path / "workers", 2)), on="i").batch(1)
    with pipe.iter_batches(workers=TWO, **ONE_BY_ONE) as batches:
        seen = ids([next(batches)])
        leavers = [living_worker(placement, []) for placement in ("local", "remote")]
        actor: Any = ray.get_actor(leavers[1], namespace="pecan")
        placed: tuple[str, int] = ray.get(actor.placed.remote())

        def drains(leaver: str) -> bool:
            return any(event.text == f"{leaver} drains" for event in batches.report().events)

        take_away(three_nodes, node := placed[0])
        until(lambda: drains(leavers[1]), lambda: f"{leavers[1]} does not drain: {batches.report()}")
        os.kill(process_of(leavers[0]), signal.SIGTERM)
        until(lambda: drains(leavers[0]), lambda: f"{leavers[0]} does not drain: {batches.report()}")
        (tmp_path / "gate").touch()
        seen += ids(batches)
        report = batches.report()
    assert sorted(seen) == list(range(ROWS))
    assert report.workers_lost == 0 and len(report.workers) >= 4, str(report)
    kinds = [event.kind for event in report.events]
    assert "lost" not in kinds and kinds.index("leaving") < len(kinds) - kinds[::-1].index("worker") - 1, str(report)

    def gone() -> bool:
        nodes: Any = ray.nodes
        return not any(one["Alive"] for one in nodes() if one["NodeID"] == node)

    until(gone, "Ray does not end a node on which nothing of ours runs any more")


# --- placement groups, which capture what is made in them, as each trial of Ray Tune is one: actors are outside -----

IN_GROUPS = 400


@pytest.fixture
def end_of_the_service(no_actor_left: None) -> Iterator[None]:
    """The service stays until it is told to go."""
    yield
    assert main(["stop", "--force"]) == 0


def read(name: str, workers: pecan.Workers, **options: Any) -> tuple[list[int], set[str]]:
    """Return the elements of an epoch, and the nodes of the workers, all of which are there before its end."""
    with numbers(IN_GROUPS, name).batch(10).iter_batches(epochs=1, workers=workers, **options) as batches:
        seen = ids([next(batches)])
        until(lambda: len(batches.report().workers) == workers.local + workers.remote, "a worker does not come")
        seen += ids(batches)
        return sorted(seen), {worker.placement for worker in batches.report().workers.values()}


@pytest.fixture
def group() -> Iterator[Any]:
    """A placement group of one bundle that is smaller than a worker."""
    made = placement_group([{"CPU": 0.5}], strategy="PACK", name="a-trial")
    ray.get(made.ready())
    yield made
    remove_placement_group(made)


def captured(function: Any, group: Any) -> Any:
    """Return a remote function that runs in a placement group, and whatever it makes."""
    there = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )
    remote: Any = ray.remote
    return remote(num_cpus=0.5, max_retries=0, scheduling_strategy=there)(function)


@pytest.mark.usefixtures("end_of_the_service")
def test_a_trainer_in_a_group_has_workers_on_all_nodes_and_what_is_shared_outlives_the_group(group: Any) -> None:
    def train() -> tuple[list[int], set[str]]:
        read("shared-in-a-group", ONE, share=True, max_lag=50)
        ray.get(service_actor().place.remote())
        return read("in-a-group", TWO, job="in-a-group")

    seen, placements = ray.get(captured(train, group).remote())
    assert seen == list(range(IN_GROUPS))
    assert placements == {"local", "remote"}
    table: Any = ray._private.state.actors
    nodes = local_selector(ray.util.placement_group_table(group)["bundles_to_node_id"][0])
    assert (
        "0.5 of their 4 CPUs are reserved by 1 placement group(s), in which no worker runs: a-trial"
        in why_no_placement(nodes, 1, "in-a-group")
    )
    remove_placement_group(group)
    until(lambda: ray.util.placement_group_table(group)["state"] == "REMOVED", "the group is not removed")
    assert read("shared-in-a-group", ONE, share=True, max_lag=50)[0] == list(range(IN_GROUPS))
    services = [one["State"] for one in table().values() if one["ActorClassName"] == "PecanService"]
    assert services.count("ALIVE") == 1 and "RESTARTING" not in services


def page(tmp_path: Path) -> str:
    """Return the program of the how-to page, with its results in a folder."""
    text = (ROOT / "docs" / "howto" / "tune.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    there = f"run_config=tune.RunConfig(storage_path={str(tmp_path)!r}, verbose=0), tune_config="
    return str(code).replace("tune_config=", there, 1)


@pytest.mark.slow
def test_trials_share_a_pipeline_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("ray.tune")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(page(tmp_path), names)
    rows = sorted(one.metrics["rows"] for one in names["results"])
    assert not names["results"].errors
    assert len(rows) == 4 and rows[-1] == IN_GROUPS and set(rows) <= {200, 300, IN_GROUPS}
    until(lambda: not living_actors(), "an actor is left")
