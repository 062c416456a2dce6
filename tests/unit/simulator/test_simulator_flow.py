"""The batches of one job: closed forms, conservation, and the written-out loop against the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.loop_steps import WARM_UP
from pecan_ray.job.windows import WindowMeter
from pecan_ray.simulator.flow import NEVER, Flow, SimulatedFeed, advance_alone
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


@given(
    seed=st.integers(0, 1000),
    step_s=st.floats(0.01, 0.2),
    run_ahead=st.integers(0, 6),
    sync_every=st.sampled_from([0, 7, 50]),
    pause_every=st.sampled_from([0, 40]),
    moments=st.lists(st.floats(0.0, 40.0), min_size=1, max_size=5),
)
@examples(60)
def test_the_written_out_loop_gives_what_the_plain_one_gives(
    seed: int, step_s: float, run_ahead: int, sync_every: int, pause_every: int, moments: list[float]
) -> None:
    trainer = Trainer(
        step_s, run_ahead=run_ahead, sync_every=sync_every, pause_every=pause_every, pause_s=5.0, dispatch_s=0.001
    )
    fast, plain = (quiet_flow(trainer, [0.1, 0.17, 0.06], 3, cv=0.3, seed=seed) for _ in range(2))
    for moment in sorted(moments):
        one = advance_alone(fast, fast.clients[0], fast.feed, moment, 150)
        other = plain.advance_together(moment, 150)
        assert one == other
        for flow in (fast, plain):
            flow.feed.produce_until(moment)
    assert fast.consumed == plain.consumed
    assert fast.clients[0].got == plain.clients[0].got
    assert fast.done == plain.done
    # Single steps are looked at where there are several clients.
    assert fast.clients[0].totals == replace(plain.clients[0].totals, sampled=(), waited_last=0.0)
    assert (fast.paused, fast.feed.received) == (plain.paused, plain.feed.received)
    assert fast.starved == pytest.approx(plain.starved)


def test_a_program_that_runs_ahead_is_no_faster_and_catches_up_where_it_waits_for_the_accelerators() -> None:
    ahead, behind = (quiet_flow(Trainer(step_s=0.1, run_ahead=n), [0.01], 8) for n in (10, 0))
    assert ahead.advance(NEVER, 20)
    assert behind.advance(NEVER, 20)
    assert ahead.clients[0].got < behind.clients[0].got - 0.5
    assert pace(ahead) == pytest.approx(pace(behind))
    flow = quiet_flow(Trainer(step_s=0.1, run_ahead=10, sync_every=100), [0.01], 8)
    assert flow.advance(NEVER, 100)
    assert flow.clients[0].asked == flow.done
    assert flow.clients[0].asked - flow.clients[0].got == pytest.approx(1.1)
    assert flow.starved < 0.1


@pytest.mark.parametrize("clients", [1, 2])
def test_what_a_worker_takes_to_start_is_no_trainers_wait(clients: int) -> None:
    """As live: a step is from one batch in hand to the next, and the first ones count for nothing."""
    flow = quiet_flow(Trainer(step_s=0.1), [], clients=clients)
    assert not flow.advance(60.0, 1)
    flow.feed.join(0, 0.01, 60.0, remote=True)
    assert flow.advance(NEVER, 50)
    for client in flow.clients:
        assert client.totals.batches == 50 - WARM_UP
        assert client.totals.seconds / client.totals.batches == pytest.approx(0.1)
        assert client.totals.waited == 0.0


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
