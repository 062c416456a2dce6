"""Workers that leave decoding to the engines of the trainer's accelerator: the policy that runs live, simulated."""

from __future__ import annotations

import pytest

from pecan_ray.plan.prices import Prices
from pecan_ray.simulator import JpegEngines, Outcome, SimulatedJob, Workload, placement, simulate
from pecan_ray.simulator.workload import build

CPUS = 16


def large_photographs(clients: int = 1) -> Workload:
    """A step of 100 ms beside 16 CPUs, of which a batch takes 4.8 s: they give 3.3 batches a second of 10."""
    values = {
        "trainer.step_s": 0.1,
        "local.cpu_s": 4.8,
        "local.cpus": 1.0,
        "noise.batch_cv": 0.05,
        "host.cpus": CPUS,
        "clients": clients,
        "max_local": CPUS * clients,
        "max_remote": 0,
    }
    return build("large photographs", "", Prices(10.0, 1.0), values)


def run(workload: Workload, engines: JpegEngines | None) -> tuple[Outcome, list[float], bool]:
    """Run a job; return also when its workers began to leave decoding, or ceased, and whether that is kept."""
    driver = placement(workload, "auto")
    spec = SimulatedJob(workload, driver, most_batches=4000, after_convergence=None, engines=engines)
    outcome = simulate(spec)
    flags = [(turn.seconds, turn.decision.accelerator) for turn in outcome.timeline]
    switches = [
        seconds for (seconds, on), (_, before) in zip(flags, [(0.0, False), *flags], strict=False) if on != before
    ]
    return outcome, switches, driver.state.accelerator.is_kept


def batch_s(outcome: Outcome) -> float:
    return outcome.end.seconds / outcome.end.batches


@pytest.mark.parametrize("clients", [1, 2])
def test_engines_that_decode_end_the_wait_and_free_cpus(clients: int) -> None:
    workload = large_photographs(clients=clients)
    alone, none, _ = run(workload, None)
    assert not none and batch_s(alone) == pytest.approx(0.3, rel=0.05)
    outcome, switches, on = run(workload, JpegEngines(batches_per_s=20.0, left=0.05, slowdown=0.03))
    assert on and len(switches) == 1
    assert batch_s(outcome) < 0.115, "a step of 103 ms, and the time before"
    assert outcome.running.local <= 6 * clients


@pytest.mark.parametrize(
    ("engines", "pays"),
    [
        (JpegEngines(8.0), True),  # they are the limit, above that of the CPUs
        (JpegEngines(3.2), False),
        (JpegEngines(20.0, slowdown=2.5), False),
        (JpegEngines(20.0, left=1.1), False),
    ],
)
def test_engines_that_bring_nothing_are_given_back(engines: JpegEngines, pays: bool) -> None:
    outcome, switches, on = run(large_photographs(), engines)
    assert on == pays and (len(switches) == 1) == pays
    expected = 1 / engines.batches_per_s if pays else 0.3
    assert batch_s(outcome) == pytest.approx(expected, rel=0.08), "trials cost little"
