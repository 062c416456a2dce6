"""Workers that hang: replaced after a time, and what they hang at is left out, raised, or ends the job by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pecan_ray.errors import ClusterError, OpError
from pecan_ray.job import events
from pecan_ray.job.instructions import KillWorker
from pecan_ray.job.losses import MOST_IN_A_ROW
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import OnError, Workers
from pecan_ray.plan.splits import AtWork, Lease, Origin, origin_of
from tests.protocol import Scenario
from tests.protocol.scenario import HANGING, Fault
from tests.unit.job.job_histories import played, split_of
from tests.unit.job.job_rig import JobRig, of_kind, said

AFTER_S = 30.0


def rig_of(on_error: OnError = "skip", workers: int = 1) -> JobRig:
    return JobRig(workers=Workers(workers), on_error=on_error, hung_after_s=AFTER_S, error_budget=1.0)


def stuck(seconds: float, origin: Origin | None, *, reads: bool = False) -> WorkerProgress:
    text = "decode has been working on element 7 of a.jpg for {seconds}"
    return WorkerProgress(stuck=text, stuck_s=seconds, at=AtWork("decode", origin, reads))


def hang(rig: JobRig, worker: str, element: int | None = 7, *, reads: bool = False) -> str:
    """Let a worker take the split, and hang in it; return the one that comes up in its place, if one does."""
    rig.assign(worker)
    (lease,) = rig.take(worker)
    done = rig.handle(
        events.WorkerTold(worker, stuck(AFTER_S + 1, None if element is None else at(lease, element), reads=reads))
    )
    assert of_kind(KillWorker, done) == [KillWorker(worker)]
    assert "it hangs: decode has been working on element 7 of a.jpg for 31 s" in said(done)
    rig.report(settled=(worker,))
    for start in of_kind(StartWorker, done):
        rig.place(start.worker)
        return start.worker
    return ""


def at(lease: Lease, element: int) -> Origin:
    return origin_of(lease, element)


def test_a_worker_that_is_busy_with_one_thing_for_too_long_is_replaced_and_others_are_left_alone() -> None:
    rig = rig_of()
    (worker,) = rig.begin()
    waits = WorkerProgress(stuck="s3://a has been tried again for {seconds}: 503", stuck_s=1000.0)
    assert not of_kind(KillWorker, rig.handle(events.WorkerTold(worker, waits))), "a storage that is tried again"
    assert not of_kind(KillWorker, rig.handle(events.WorkerTold(worker, stuck(AFTER_S, None))))
    assert hang(rig, worker)
    rig.handle(events.WorkerTold(worker, stuck(AFTER_S + 1, None)))
    assert rig.job.facts(rig.now).workers_lost == 1 and rig.take(worker) == ()


def test_an_element_at_which_two_workers_hang_is_left_out_by_its_name_and_all_others_are_given_out() -> None:
    rig = rig_of()
    (worker,) = rig.begin()
    third = hang(rig, hang(rig, worker))
    assert [event.text for event in rig.job.told if event.kind == "bad"] == [
        "element 7 of split 0 is left out: decode had not done with it after 30 s, twice (Config(hung_after_s=...))"
    ]
    rig.assign(third)
    (lease,) = rig.take(third)
    assert [(a >> 32, b >> 32) for a, b in lease.spans] == [(0, 7), (8, 1 << 30)]
    assert rig.job.bad.count == 1


def test_it_is_raised_by_operator_and_element_where_bad_elements_are() -> None:
    rig = rig_of("raise")
    (worker,) = rig.begin()
    assert rig.job.error is None
    hang(rig, hang(rig, worker))
    error = rig.job.error
    assert isinstance(error, OpError) and error.fields["op"] == "decode" and error.fields["element"] == 7
    assert "element 7 of split 0 cannot be processed: decode had not done with it after 30 s" in str(error)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_storage_at_which_two_workers_hang_ends_the_job_and_takes_no_element_for_bad(on_error: OnError) -> None:
    rig = rig_of(on_error)
    (worker,) = rig.begin()
    hang(rig, hang(rig, worker, reads=True), reads=True)
    assert isinstance(rig.job.error, ClusterError) and "decode has been working on element 7" in str(rig.job.error)
    assert rig.job.bad.count == 0


def test_workers_that_hang_one_after_the_other_end_the_job_with_what_the_last_one_hung_at() -> None:
    rig = rig_of()
    (worker,) = rig.come()
    for number in range(MOST_IN_A_ROW + 1):
        rig.handle(events.WorkerPlaced(worker, f"node-{number}", 1))
        loading = WorkerProgress(stuck="it has been loading for {seconds}", stuck_s=31.0, at=AtWork("loading"))
        done = rig.handle(events.WorkerTold(worker, loading), after=31.0)
        worker = next((start.worker for start in of_kind(StartWorker, done)), "")
    assert "since it hangs: it has been loading for 31 s. Config(hung_after_s=...)" in str(rig.job.error)


# --- whole jobs ---------------------------------------------------------------------------------------------


ONE = Scenario(
    sources=((split_of(300), split_of(300, 177, kind=HANGING), split_of(300)),), batch_size=8, element_s=0.001
)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_element_at_which_every_worker_hangs_costs_two_workers_where_they_name_it(workers: int) -> None:
    world = played(replace(ONE, local=workers, window=4))
    assert (world.deaths, world.job.state.bad.count, world.job.state.error) == (2, 1, None)


@pytest.mark.parametrize("workers", [1, 3])
def test_it_is_found_in_smaller_and_smaller_pieces_where_they_do_not(workers: int) -> None:
    world = played(replace(ONE, local=workers, names_element=False))
    assert world.job.state.bad.count == 1 and world.deaths <= 6


def test_one_sequence_goes_on_without_it_where_workers_name_it_and_ends_with_the_reason_where_they_do_not() -> None:
    world = played(replace(ONE, in_order=True, local=3, ranks=2))
    assert (world.deaths, world.job.state.bad.count, world.job.state.error) == (2, 1, None)
    world = played(replace(ONE, in_order=True, names_element=False))
    assert "since it hangs: map works on it for 20 s" in str(world.job.state.error)


@pytest.mark.parametrize("seconds", [19.0, 21.0, 25.0, math.inf])
@pytest.mark.parametrize("ranks", [1, 2])
def test_workers_that_hang_for_a_while_cost_no_element_also_when_they_wake_up(seconds: float, ranks: int) -> None:
    faults = tuple(Fault(0.1 + number, "hang worker", number, seconds) for number in range(3))
    world = played(replace(ONE, sources=((split_of(300),) * 3,), local=3, ranks=ranks, faults=faults))
    assert world.job.state.bad.count == 0 and world.job.state.error is None
