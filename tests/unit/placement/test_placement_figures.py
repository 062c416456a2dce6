"""Cheap forms of `benchmarks/placement_simulation.py` and `benchmarks/placement_steady.py`, with few seeds."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.placement_plant import PlantJob
from benchmarks.placement_simulation import HOUR, JOBS, MORE, compare, row_of
from benchmarks.placement_steady import SteadyJob
from pecan_ray.simulator.policy_driver import placement
from pecan_ray.simulator.random_workloads import draw
from pecan_ray.simulator.workload import load

SEED = 1000


def job_named(part: str) -> PlantJob:
    return next(job for job in (*JOBS, *MORE) if part in job.name)


def test_sixteen_jobs_have_the_bill_of_an_oracle_settle_soon_and_begin_with_the_first_batch() -> None:
    sixteen = [compare(job, SEED) for job in JOBS]
    bills = [one.bill for one in sixteen]
    assert fmean(bills) <= 1.02 and max(bills) <= 1.12
    assert "| 100.0% |" in row_of("all", [one for one in sixteen if one.bill <= 1.05])
    late = {one.job.name: one.late_changes for one in sixteen if one.job.steady and one.late_changes}
    assert len(late) <= 1, late
    assert max(one.ours.onset_s for one in sixteen if not one.job.max_remote) <= 2.0


@pytest.mark.parametrize("part", ["4 CPUs by quota", "accumulates", *(job.name for job in MORE)])
def test_what_nobody_tells_costs_a_tenth_at_most(part: str) -> None:
    assert compare(job_named(part), SEED).bill <= 1.10


@pytest.mark.parametrize("part", ["no accelerator", "64 CPUs with 16 GB"])
def test_without_a_sample_local_workers_are_there_four_seconds_after_the_first_batch(part: str) -> None:
    found = compare(job_named(part), SEED, sampled=False).ours
    assert 0.5 < found.onset_s <= 4.0, "it begins with one worker"


def test_hardly_a_cpu_idles_while_the_trainer_waits_where_nodes_are_lost() -> None:
    """3.5 % of the CPU seconds of the trainer's node idled while it waited for a node."""
    found = [compare(job_named("spot"), seed).ours.idle for seed in range(5000, 5003)]
    assert max(found) <= 0.03
    assert fmean(found) <= 0.01


def test_beats_of_accumulation_are_not_taken_for_a_lack_of_workers() -> None:
    """The trainer waits for 1 to 3 % of its time, by chance: that changed the workers in 8 of 10 runs."""
    found = [compare(job_named("accumulates"), seed) for seed in range(200, 205)]
    assert sum(one.late_changes > 0 for one in found) <= 1


@pytest.mark.slow
def test_an_hour_whose_speeds_drift_by_a_tenth_changes_seldom() -> None:
    assert compare(HOUR, SEED).late_changes <= 12


@pytest.mark.parametrize("name", ["resnet50-v2-8", "simclr", "retinanet"])
def test_it_ends_with_the_cheapest_deployment_of_the_papers_workloads(name: str) -> None:
    for ordered in (False, True):
        job = SteadyJob(load(name), ordered)
        end, changes = job.go(placement(job.workload, "auto"), 600.0)
        assert job.cost[end] <= 1.01 * job.cost[job.best]
        assert changes <= 12


@pytest.mark.parametrize(
    ("family", "seed", "excess", "changes"),
    [
        # With room for drift counted as demand, a third remote worker came and went, for 5.4 %.
        ("running ahead", 10_004, 0.01, 30),
        # A trainer that waited for 2.2 % was not tried with fewer neighbours: 13.3 %.
        ("plain", 12_029, 0.01, 30),
        # More local workers than half of them were never tried: 8 %.
        ("several trainers", 14_041, 0.02, 30),
        # Fewer remote workers leave more work to neighbours that slow the trainer down: 9.1 %.
        ("several trainers", 12_032, 0.02, 30),
        # Local workers that crowd each other were taken for a slow storage, and no remote one was bought: 232 %.
        ("plain", 16_035, 0.01, 30),
        # What the bill had removed came back for a wait of 6 %, and went again, each 40 s.
        ("several trainers", 10_030, 0.02, 15),
    ],
)
def test_it_ends_with_the_cheapest_deployment_where_it_had_ended_beside(
    family: str, seed: int, excess: float, changes: int
) -> None:
    job = SteadyJob(draw(seed, family), ordered=False)
    end, changed = job.go(placement(job.workload, "auto"), 1500.0)
    assert job.cost[end] <= (1 + excess) * job.cost[job.best] and changed <= changes
