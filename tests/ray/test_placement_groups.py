"""Placement groups that capture what is made in them, as each trial of Ray Tune is one: our actors are outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import pecan_ray as pecan
from pecan_ray.cli import main
from pecan_ray.runtime.cluster import local_selector, why_no_placement
from tests.ray.conftest import ROOT, living_actors
from tests.ray.pipelines import ONE, TWO, ids, numbers
from tests.ray.waiting import until

tune: Any = pytest.importorskip("ray.tune")
pytestmark = pytest.mark.usefixtures("three_nodes")
ROWS = 400


@pytest.fixture(scope="module", autouse=True)
def end_of_the_service(three_nodes: Any) -> Iterator[None]:
    """The service stays until it is told to go."""
    yield
    assert main(["stop", "--force"]) == 0


def read(name: str, workers: pecan.Workers, **options: Any) -> tuple[list[int], set[str]]:
    """Return the elements of an epoch, and the nodes of the workers, all of which are there before its end."""
    with numbers(ROWS, name).batch(10).iter_batches(epochs=1, workers=workers, **options) as batches:
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


def test_a_trainer_in_a_group_has_workers_on_all_nodes_and_what_is_shared_outlives_the_group(group: Any) -> None:
    def train() -> tuple[list[int], set[str]]:
        read("shared-in-a-group", ONE, share=True, max_lag=50)
        return read("in-a-group", TWO)

    seen, placements = ray.get(captured(train, group).remote())
    assert seen == list(range(ROWS))
    assert placements == {"local", "remote"}
    table: Any = ray._private.state.actors
    nodes = local_selector(ray.util.placement_group_table(group)["bundles_to_node_id"][0])
    assert (
        "0.5 of their 4 CPUs are reserved by 1 placement group(s), in which no worker runs: a-trial"
        in why_no_placement(nodes, 1, "in-a-group")
    )
    remove_placement_group(group)
    until(lambda: ray.util.placement_group_table(group)["state"] == "REMOVED", "the group is not removed")
    assert read("shared-in-a-group", ONE, share=True, max_lag=50)[0] == list(range(ROWS))
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
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(page(tmp_path), names)
    rows = sorted(one.metrics["rows"] for one in names["results"])
    assert not names["results"].errors
    assert len(rows) == 4 and rows[-1] == ROWS and set(rows) <= {200, 300, ROWS}
    until(lambda: not [name for name in living_actors() if "service" not in name], "an actor is left")
