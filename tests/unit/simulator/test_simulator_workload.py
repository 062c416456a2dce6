"""Parameter files: they say where every number comes from, and refuse nonsense."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices, PriceTier
from pecan_ray.simulator.contention import epoch_costs, step_times
from pecan_ray.simulator.random_workloads import FAMILIES, draw
from pecan_ray.simulator.workload import build, changed, from_json, load, names, units

WORKLOADS = resources.files("pecan_ray.simulator") / "workloads"
ORIGINS = re.compile(r"(given|fitted|fitted to [\w-]+|assumed)\b")


@pytest.mark.parametrize("name", names())
def test_a_workloads_parameters_have_their_units_and_say_where_they_come_from(name: str) -> None:
    workload = load(name)
    assert workload.source_refs.keys() - {"prices"} <= units().keys()
    told = {path: origin for path, origin in workload.source_refs.items() if not origin.startswith("default")}
    assert {path: origin for path, origin in told.items() if not ORIGINS.match(origin)} == {}
    assert {"trainer.step_s", "remote.cpu_s"} <= told.keys()
    assert ORIGINS.match(workload.source_refs["prices"])
    table = json.loads(WORKLOADS.joinpath(f"{name}.json").read_text())["parameters"]
    assert {path: entry["unit"] for path, entry in table.items()} == {path: units()[path] for path in table}
    assert all({"value", "origin"} <= entry.keys() for entry in table.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_draws_the_same_workload(family: str) -> None:
    assert draw(7, family) == draw(7, family) != draw(8, family)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("trainer.step_s", 0.0),
        ("remote.cpu_s", -1.0),
        ("noise.batch_cv", float("inf")),
        ("clients", 0),
        ("host.load_cpu_s", 1e6),
        ("batches_per_epoch", True),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(path: str, value: float) -> None:
    with pytest.raises(PlanError, match="workload 'odd'"):
        build("odd", "", Prices(1.0, 0.1), {"trainer.step_s": 0.1, path: value})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "is no parameter file"),
        ('{"name": "x"}', "is no parameter file"),
        ('{"name": "x", "prices": {"accelerator_host": 1, "remote_worker": -1}, "parameters": {}}', "price"),
        (
            '{"name": "x", "prices": {"accelerator_host": 1, "remote_worker": 1}, "parameters": {"a": {"value": 1}}}',
            "no parameter 'a'",
        ),
    ],
)
def test_a_file_that_is_no_parameter_file_is_refused(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        from_json(text, "odd.json")


def test_a_workload_is_found_by_name_and_by_path_and_only_known_parameters_are_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    written = json.loads(WORKLOADS.joinpath("simclr.json").read_text())
    written["prices"]["tiers"] = [["spot", 0.1, 4]]
    file.write_text(json.dumps(written))
    assert load(str(file)).title == load("simclr").title
    assert load(str(file)).prices.tiers == (PriceTier("spot", 0.1, 4),)
    with pytest.raises(PlanError, match=r"no workload 'simclear'.*simclr"):
        load("simclear")
    with pytest.raises(PlanError, match=r"no parameter file .*other\.json"):
        load(str(tmp_path / "other.json"))
    with pytest.raises(PlanError, match=r"no parameter 'trainer\.speed'"):
        changed(load("asr"), trainer__speed=1.0)


def test_an_epoch_costs_its_time_at_the_prices_of_host_and_workers() -> None:
    workload = load("retinanet")
    (cost,), (batch_s,) = epoch_costs(workload, 0, 2), step_times(workload, 0, 2).batch_s
    hours = workload.batches_per_epoch * batch_s / 3600
    assert cost == pytest.approx(hours * (workload.prices.accelerator_host + 2 * workload.prices.remote_worker))
