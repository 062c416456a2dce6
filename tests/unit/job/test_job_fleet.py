"""A job's workers: requested, drained, replaced, squeezed in, and asked for on the other side."""

from __future__ import annotations

from collections import Counter

import pytest

from pecan_ray.job import events
from pecan_ray.job.fleet import Fleet
from pecan_ray.job.instructions import DrainWorker, Instruction, KillWorker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import AutoWorkers, Visitation, Workers
from pecan_ray.plan.windows import Deployment
from tests.unit.job.job_rig import JobRig, of_kind, said


def started(done: list[Instruction]) -> list[StartWorker]:
    return of_kind(StartWorker, done)


def fleet_of(hosts: dict[str, float]) -> Fleet:
    fleet = Fleet("job")
    fleet.hosts = hosts
    return fleet


def run(fleet: Fleet, done: list[Instruction]) -> None:
    """Let what was requested come up."""
    for start in started(done):
        worker = fleet.workers[start.worker]
        worker.running, worker.node = True, start.host or "far"


def test_local_workers_are_spread_by_the_power_of_the_trainers_nodes() -> None:
    fleet = fleet_of({"big": 12.0, "small": 4.0, "none": 0.0})
    starts = started(fleet.scale(Deployment(4, 2), 0.0))
    assert Counter(start.host for start in starts) == {"big": 3, "small": 1, "": 2}
    assert {start.sharing for start in starts if start.host == "big"} == {3}
    assert [start.worker for start in starts if not start.host] == ["pecan:job:remote-0", "pecan:job:remote-1"]


def test_a_local_worker_has_no_cpus_of_its_own_where_a_node_has_too_few() -> None:
    fleet = fleet_of({"none": 0.0})
    (start,) = started(fleet.scale(Deployment(1, 0), 0.0))
    assert (start.host, start.reserve) == ("none", False)
    rig = JobRig(workers=Workers(4), cpus_per_worker=4.0)
    rig.come(("small", 2.0), ("big", 8.0))
    assert {(one.host, one.reserve) for one in started(rig.done[-1])} == {("small", False), ("big", True)}
    assert "node small has 2 CPU(s) for Ray, and a worker takes 4 (Config(cpus_per_worker=...))" in said(rig.done[-1])


def test_scaling_requests_what_is_missing_under_names_that_are_never_used_again() -> None:
    fleet = fleet_of({"n": 4.0})
    run(fleet, fleet.scale(Deployment(2, 3), 0.0))
    assert fleet.scale(Deployment(2, 3), 1.0) == []
    assert len(started(fleet.scale(Deployment(2, 5), 1.0))) == 2
    names = set(fleet.workers)
    fleet.gone("pecan:job:remote-4")
    (again,) = started(fleet.scale(Deployment(2, 5), 1.0))
    assert again.worker not in names


def test_what_is_too_many_goes_when_nobody_is_awaited_and_those_that_do_not_run_yet_go_first_and_at_once() -> None:
    fleet = fleet_of({"n": 4.0})
    run(fleet, fleet.scale(Deployment(2, 0), 0.0))
    awaited = fleet.scale(Deployment(1, 1), 1.0)
    assert fleet.too_many() == []
    run(fleet, awaited)
    assert [worker.placement for worker in fleet.too_many()] == ["local"]
    waiting = started(fleet.scale(Deployment(4, 1), 2.0))
    fleet.scale(Deployment(1, 1), 3.0)
    assert [worker.name for worker in fleet.too_many()] == [start.worker for start in waiting]
    done = [fleet.drain(worker) for worker in fleet.too_many()]
    assert done == [KillWorker(start.worker) for start in waiting]
    assert isinstance(fleet.drain(fleet.too_many()[0]), DrainWorker)


def test_the_dearest_remote_workers_are_drained_first() -> None:
    fleet = fleet_of({"n": 4.0})
    run(fleet, fleet.scale(Deployment(1, 3), 0.0))
    for worker, price in zip((one for one in fleet.workers.values() if not one.host), (0.1, 0.9, 0.4), strict=True):
        worker.price = price
    assert fleet.remote_per_hour() == pytest.approx(1.4)
    fleet.scale(Deployment(1, 1), 1.0)
    assert sorted(worker.price or 0.0 for worker in fleet.too_many()) == [0.4, 0.9]
    next(one for one in fleet.workers.values() if not one.host).price = None
    assert fleet.remote_per_hour() is None, "it is not known of all"


def test_the_numbers_that_a_trainer_fixes_before_room_is_found_hold_from_the_beginning() -> None:
    rig = JobRig(workers=AutoWorkers())
    rig.handle(events.TrainerCame(0, "t0", "node"))
    rig.handle(events.ScaleAsked(2, 1))
    done = rig.handle(events.RoomFound((("node", 8.0),), (8.0,)))
    assert Counter(start.placement for start in started(done)) == {"local": 2, "remote": 1}


def test_a_whole_plan_is_given_one_worker_by_autoplacement() -> None:
    rig = JobRig(LedgerShape(serial=True), AutoWorkers())
    assert len(rig.come(("node", 8.0), remote=(8.0,))) == 1
    assert any("one worker at a time" in event.text for event in rig.job.told)


def test_a_job_without_any_worker_starts_one_that_shares_the_cpus_of_others() -> None:
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.come()
    done = rig.handle(events.WorkerPending(worker, "job other has all CPUs"))
    (start,) = started(done)
    assert not start.reserve and start.host == "node" and start.worker != worker
    done = rig.handle(events.WorkerPending(start.worker, "still none"))
    assert not started(done), "once"
    rig.place(start.worker)
    assert list(rig.job.fleet.workers) == [start.worker], "the other one is too many"
    rig.list_splits(1)
    rig.assign(start.worker)


@pytest.mark.parametrize(("has_place", "seconds"), [("yes", 600.0), ("perhaps", 29.0)])
def test_a_worker_whose_process_is_being_started_is_waited_for(has_place: events.PlaceFound, seconds: float) -> None:
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.come()
    starting = events.WorkerPending(worker, "its process is being started on node a", has_place)
    assert not started(rig.handle(starting, after=seconds))
    rig.handle(events.TrainerWaiting(0, "t0"))
    text = said(rig.handle(events.TimePassed(), after=1.0))
    assert f"{worker} start(s) for {seconds + 1.0:.0f} s: its process is being started on node a" in text
    assert "wait(s) for a place" not in text
    rig.place(worker)
    assert list(rig.job.fleet.workers) == [worker]


def test_cpus_that_are_perhaps_held_for_a_worker_are_others_after_a_while() -> None:
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.come()
    unplaced = events.WorkerPending(worker, "its process is being started, or tasks use the CPUs", "perhaps")
    assert not started(rig.handle(unplaced, after=20.0))
    (start,) = started(rig.handle(unplaced, after=10.0))
    assert not start.reserve


@pytest.mark.parametrize(("room", "sides"), [((8.0,), ["remote"]), ((), [])])
def test_autoplacement_without_any_worker_asks_on_the_other_side_as_well(
    room: tuple[float, ...], sides: list[str]
) -> None:
    rig = JobRig(workers=AutoWorkers(max_local=4))
    (worker,) = rig.come(("node", 4.0), remote=room)
    first = rig.job.fleet.workers[worker].placement
    other = "remote" if first == "local" else "local"
    done = rig.handle(events.WorkerPending(worker, "no CPU"))
    asked = [start.placement for start in started(done) if start.reserve]
    assert asked == ([other] if room else sides)


def test_another_job_gets_a_local_worker_of_autoplacement_where_more_than_the_least_run() -> None:
    rig = JobRig(workers=AutoWorkers(min_local=1))
    first, *_ = rig.come(("node", 8.0), remote=(8.0,))
    rig.place(first)
    assert rig.handle(events.RoomAsked("other")) == [], "the last one stays"
    for start in started(rig.job.fleet.scale(Deployment(2, 0), 0.0)):
        rig.place(start.worker)
    assert len(of_kind(DrainWorker, rig.handle(events.RoomAsked("other")))) == 1
    fixed = JobRig(workers=Workers(3))
    fixed.begin()
    assert fixed.handle(events.RoomAsked("other")) == [], "the user has fixed the number"


def test_a_worker_that_says_nothing_is_named_before_it_is_taken_for_lost() -> None:
    rig = JobRig(workers=Workers(1), trainer_timeout_s=1000.0)
    [worker] = rig.begin()
    quiet = rig.spec.silent_after_s / 2
    assert "said nothing" not in said(rig.handle(events.TimePassed(), after=quiet - 1))
    (text,) = said(rig.handle(events.TimePassed(), after=2)).splitlines()
    assert text.startswith(f"{worker} has said nothing for {quiet + 1:.0f} s: native code holds its GIL, ")
    assert said(rig.handle(events.TimePassed(), after=1)) == ""
    assert f"{worker} is lost: it has said nothing for" in said(rig.handle(events.TimePassed(), after=quiet))


@pytest.mark.parametrize("fast", [False, True])
def test_at_most_once_drops_what_is_removed_at_once_and_nothing_of_a_worker_that_drains(fast: bool) -> None:
    rig = JobRig(LedgerShape(visitation="at_most_once"), Workers(2))
    stays, goes = rig.begin(splits=2)
    for worker in (stays, goes):
        rig.assign(worker)
        rig.take(worker)
    rig.job.placement.fast_removal = fast
    done: list[Instruction] = []
    if fast:
        rig.job.staffing.drain(rig.job.fleet.workers[goes], rig.now, done)
    else:
        done += rig.handle(events.ScaleAsked(1, 0))
    assert (KillWorker(goes) in done) is fast
    rig.report(settled=(goes,))
    facts = rig.job.facts(rig.now)
    told = [one.text for one in facts.events if one.kind == "dropped"]
    assert (facts.dropped_open_ends, len(told), len(facts.dropped)) == ((1, 1, 1) if fast else (0, 0, 0))
    if fast:
        assert told[0] in said(rig.done[-1]) and "the rest of 1 splits of unknown length" in told[0]
    else:
        assert [lease.split.index for lease in rig.take(stays)] == [1], "what the other one held"


@pytest.mark.parametrize(("visitation", "becomes"), [("at_most_once", "dropped"), ("exactly_once", "given out again")])
def test_of_a_lost_worker_it_is_said_what_becomes_of_what_it_held(visitation: Visitation, becomes: str) -> None:
    rig = JobRig(LedgerShape(visitation=visitation))
    (worker,) = rig.begin()
    rig.assign(worker)
    rig.take(worker)
    assert f"what it held is {becomes}" in said(rig.handle(events.WorkerLost(worker, "process", "it died")))
