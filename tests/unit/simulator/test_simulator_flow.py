"""The batches of one job: closed forms, conservation, and the written-out loop against the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.loop_steps import WARM_UP
from pecan_ray.job.windows import WindowMeter
from pecan_ray.simulator.flow import NEVER, Flow, SimulatedFeed
from pecan_ray.simulator.noise import Services, StepTimes, generator
from pecan_ray.simulator.workload import Trainer
from tests.long_form import examples


def quiet_flow(
    trainer: Trainer, services_s: list[float], places: int = 4, clients: int = 1, cv: float = 0.0, seed: int = 0
) -> Flow:
    """A job with these workers at work from the start; without noise, unless it is asked for."""
    services = Services(generator(seed, "services"), cv, 0.0, 100)
    feed = SimulatedFeed(services, places)
    for worker, service_s in enumerate(services_s):
        feed.join(worker, service_s, 0.0, remote=worker % 2 == 0)
    return Flow(trainer, feed, StepTimes(generator(seed, "steps"), cv), clients=clients, batches_per_epoch=1000)


def pace(flow: Flow, batches: int = 400) -> float:
    """Seconds per batch in the long run."""
    assert flow.advance(NEVER, 200)
    begun = flow.done
    assert flow.advance(NEVER, batches)
    return (flow.done - begun) / batches


@given(
    step_s=st.floats(0.001, 1.0),
    services_s=st.lists(st.floats(0.005, 2.0), min_size=1, max_size=8),
    clients=st.integers(1, 3),
)
@examples(40)
def test_without_noise_a_batch_takes_the_longer_of_step_and_supply(
    step_s: float, services_s: list[float], clients: int
) -> None:
    flow = quiet_flow(Trainer(step_s=step_s), services_s, places=32, clients=clients)
    supply = sum(1 / service_s for service_s in services_s)
    # Workers of unlike speed take turns unevenly: over 400 batches the end of the last turn shows.
    longest = max(services_s) / 400
    assert pace(flow) == pytest.approx(max(step_s, clients / supply), rel=0.02, abs=longest)


def test_what_a_worker_takes_to_start_is_no_trainers_wait() -> None:
    """As live: a step is from one batch in hand to the next, and the first ones count for nothing."""
    flow = quiet_flow(Trainer(step_s=0.1), [], clients=2)
    assert not flow.advance(60.0, 1)
    flow.feed.join(0, 0.01, 60.0, remote=True)
    assert flow.advance(NEVER, 50)
    totals = [client.totals for client in flow.clients]
    assert [(one.batches, one.waited) for one in totals] == [(50 - WARM_UP, 0.0)] * 2
    assert totals[0].seconds / totals[0].batches == pytest.approx(0.1)


def test_the_first_window_of_several_trainers_knows_who_waited_for_its_first_batch() -> None:
    """Else none would seem to have waited, and what each waited for the others would be its work."""
    flow, meter = quiet_flow(Trainer(step_s=0.1), [1.0], clients=3), WindowMeter(3, 10, NEVER)
    for moment in (WARM_UP, 10):
        for rank, client in enumerate(flow.clients):
            meter.add(rank, client.totals)
        assert flow.advance(NEVER, moment)
    for rank, client in enumerate(flow.clients):
        meter.add(rank, client.totals)
    window = meter.close()
    assert window is not None and window.wait_time is not None
    assert window.batch_time - window.wait_time == pytest.approx(0.1)
