"""What is simulated and forecast without noise, in cases drawn at random, written down."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.reproduction.cache_policies import ComparedPolicy
from benchmarks.reproduction.shared_cache import SILOD, ReadingJob, simulate_cache
from pecan_ray.cache import ClusterResources
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment, Window
from pecan_ray.simulator import PoolRule, SimulatedJob, Simulation, placement
from pecan_ray.simulator.run_profile import MeasuredSpeed, RunProfile
from pecan_ray.simulator.what_if import suggestions, what_if
from pecan_ray.simulator.workload import build

WRITTEN = Path(__file__).with_name("decided.txt")
"""A paragraph for each case; `python -m tests.unit.simulator.test_simulator_decided` writes all anew."""
MODES = ("pecan", "pecan-code", "cachew", "collocated", "fastflow")


def jobs(draw: random.Random) -> Iterator[str]:
    """Yield what becomes of two jobs that share a pool, and the windows of the first one now and then."""
    specs = []
    for number in range(2):
        values: dict[str, float] = {
            "trainer.step_s": draw.choice((0.02, 0.05)),
            "trainer.run_ahead": draw.choice((0, 0, 4)),
            "host.cpus": draw.choice((12.0, 64.0)),
            "host.receive_cpu_s": draw.choice((0.0, 0.05)),
            "noise.batch_cv": 0.0,
            "nodes.start_s": draw.choice((2.0, 20.0)),
            "clients": draw.choice((1, 1, 2)),
            "max_local": 4,
            "max_remote": 8,
            "split_batches": draw.choice((4.0, 40.0)),
            **{f"{side}.cpu_s": draw.uniform(0.3, 1.5) for side in ("local", "remote")},
            **{f"{side}.cpus": 5.0 for side in ("local", "remote")},
        }
        workload, mode = build("drawn", "", Prices(10.0, 1.0), values), draw.choice(MODES)
        starts_s = 10.0 * number
        specs.append(SimulatedJob(workload, placement(workload, mode), starts_s=starts_s, most_batches=12_000))
        yield f"{mode}, {values}"
    found = Simulation(specs, PoolRule(workers=draw.choice((5, 20)), slots=draw.choice((1, 2)))).run()
    for one in found.jobs:
        yield (
            f"ends with {one.running} after {one.end.seconds:.1f} s, {one.batch_s:.4g} s a batch, starved "
            f"{one.starved_share:.1%}, {one.received_share:.1%} from {one.remote:.3g} remote workers, "
            f"${one.epoch_cost:.4g} an epoch, ${one.convergence_cost:.4g} until converged to {one.converged_to}"
        )
        yield f"{one.flows}"
        for turn in one.timeline[:: max(1, len(one.timeline) // 4)]:
            yield f"  {turn.seconds:.1f} s, {turn.batches} batches, {turn.deployment}: {rounded(turn.window)}"
    yield f"{found.most_workers} nodes at most"


def rounded(window: Window) -> str:
    """Spell what a window measured."""
    values = {field.name: getattr(window, field.name) for field in fields(window)}
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)


def forecasts(draw: random.Random) -> Iterator[str]:
    """Yield what other workers would have done for a run."""
    here = Deployment(draw.randint(0, 3), draw.randint(1, 4))
    measured = tuple(
        MeasuredSpeed(Deployment(here.local + more, here.remote), draw.choice((0.05, 0.08, 0.2)), 0.05)
        for more in range(draw.randint(0, 2))
    )
    profile = RunProfile(
        "drawn",
        here,
        1000,
        step_s=0.05,
        wait_share=draw.choice((0.0, 0.5)),
        local_rate=draw.choice((4.0, 2.5)),
        remote_rate=3.0,
        prices=draw.choice((None, Prices(10.0, 1.0))),
        measured=measured,
        trainers=draw.choice((1, 1, 2)),
    )
    yield f"{profile}"
    for one in (*suggestions(profile), what_if(profile, Deployment(8, 8)), what_if(profile, Deployment(1, 0))):
        yield f"{one} [{one.low_s:.4g} to {one.high_s:.4g} s]"


def caches(draw: random.Random) -> Iterator[str]:
    """Yield when jobs end that share a cache and a pipe."""
    reading = [
        ReadingJob(
            str(number),
            draw.choice((20.0, 50.0, 100.0)),
            draw.choice((1e3, 1e4)),
            draw.randint(1, 4),
            draw.randint(1, 3),
            draw.choice((0.0, 100.0)),
        )
        for number in range(4)
    ]
    cluster = ClusterResources(draw.choice((1e3, 1e4)), draw.choice((30.0, 200.0)), gpus=4)
    yield f"{cluster}, {reading}"
    for policy in get_args(ComparedPolicy):
        for schedule in SILOD:
            run = simulate_cache(reading, cluster, policy, schedule)
            ended = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.ended_s.items())
            yield f"{policy}, {schedule}: {ended}; fairness {run.fairness:.3f}"


CASES: list[Callable[[random.Random], Iterator[str]]] = [*[jobs] * 6, *[forecasts] * 5, *[caches] * 2]


def decided(case: int) -> str:
    """Return what is simulated in a case."""
    return "\n".join((f"case {case}", *CASES[case](random.Random(case))))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_is_simulated_in_a_case_is_what_is_written_down(case: int) -> None:
    assert decided(case) == WRITTEN.read_text().strip().split("\n\n")[case]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(map(decided, range(len(CASES)))) + "\n")
