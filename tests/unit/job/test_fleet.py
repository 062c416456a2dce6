"""A job's workers: requested, drained, replaced, squeezed in, and asked for on the other side."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pecan_ray.job import events
from pecan_ray.job.events import PoolRequestsReceived
from pecan_ray.job.first_worker import first_names, first_worker
from pecan_ray.job.instructions import DrainWorker, Instruction, KillWorker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.sharing import STALE_S, PoolBid, Sharing
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.worker_table import DeliveredTotals, WorkerTable
from pecan_ray.options import AutoWorkers, Sharding, Visitation, Workers
from pecan_ray.placement.pool import Demand
from pecan_ray.placement.trial_history import ControlState, Known
from pecan_ray.plan.windows import Deployment
from tests.unit.job.job_rig import JobRig, of_kind, said


def started(done: list[Instruction]) -> list[StartWorker]:
    return of_kind(StartWorker, done)


def fleet_of(hosts: dict[str, float]) -> WorkerTable:
    worker_table = WorkerTable("job")
    worker_table.hosts = hosts
    return worker_table


def run(worker_table: WorkerTable, done: list[Instruction]) -> None:
    """Let what was requested come up."""
    for start in started(done):
        worker = worker_table.workers[start.worker]
        worker.running, worker.node = True, start.host or "far"


def test_local_workers_are_spread_by_the_power_of_the_trainers_nodes() -> None:
    worker_table = fleet_of({"big": 12.0, "small": 4.0, "none": 0.0})
    starts = started(worker_table.scale(Deployment(4, 2), 0.0))
    assert Counter(start.host for start in starts) == {"big": 3, "small": 1, "": 2}
    assert {start.sharing for start in starts if start.host == "big"} == {3}
    assert [start.worker for start in starts if not start.host] == ["pecan:job:remote-0", "pecan:job:remote-1"]


def test_a_node_that_is_about_to_go_gets_no_worker() -> None:
    worker_table = fleet_of({"goes": 4.0, "stays": 4.0})
    worker_table.draining_nodes["goes"] = 30.0
    assert [start.host for start in started(worker_table.scale(Deployment(2, 0), 0.0))] == ["stays"]


def test_a_local_worker_has_no_cpus_of_its_own_where_a_node_has_too_few() -> None:
    worker_table = fleet_of({"none": 0.0})
    (start,) = started(worker_table.scale(Deployment(1, 0), 0.0))
    assert (start.host, start.reserve) == ("none", False)
    rig = JobRig(workers=Workers(4), cpus_per_worker=4.0)
    rig.come(("small", 2.0), ("big", 8.0))
    assert {(one.host, one.reserve) for one in started(rig.done[-1])} == {("small", False), ("big", True)}
    assert "node small has 2 CPU(s) for Ray, and a worker takes 4 (Config(cpus_per_worker=...))" in said(rig.done[-1])


def test_what_is_too_many_goes_when_nobody_is_awaited_and_those_that_do_not_run_yet_go_first_and_at_once() -> None:
    worker_table = fleet_of({"n": 4.0})
    run(worker_table, worker_table.scale(Deployment(2, 0), 0.0))
    awaited = worker_table.scale(Deployment(1, 1), 1.0)
    assert worker_table.too_many() == []
    run(worker_table, awaited)
    assert [worker.placement for worker in worker_table.too_many()] == ["local"]
    waiting = started(worker_table.scale(Deployment(4, 1), 2.0))
    worker_table.scale(Deployment(1, 1), 3.0)
    assert [worker.name for worker in worker_table.too_many()] == [start.worker for start in waiting]
    done = [worker_table.drain(worker) for worker in worker_table.too_many()]
    assert done == [KillWorker(start.worker) for start in waiting]
    assert isinstance(worker_table.drain(worker_table.too_many()[0]), DrainWorker)


def test_the_dearest_remote_workers_are_drained_first() -> None:
    worker_table = fleet_of({"n": 4.0})
    run(worker_table, worker_table.scale(Deployment(1, 3), 0.0))
    for worker, price in zip(
        (one for one in worker_table.workers.values() if not one.host), (0.1, 0.9, 0.4), strict=True
    ):
        worker.price = price
    assert worker_table.remote_per_hour() == pytest.approx(1.4)
    worker_table.scale(Deployment(1, 1), 1.0)
    assert sorted(worker.price or 0.0 for worker in worker_table.too_many()) == [0.4, 0.9]
    next(one for one in worker_table.workers.values() if not one.host).price = None
    assert worker_table.remote_per_hour() is None, "it is not known of all"


def test_the_numbers_that_a_trainer_fixes_before_room_is_found_hold_from_the_beginning() -> None:
    rig = JobRig(workers=AutoWorkers())
    rig.handle(events.TrainerRegistered(0, "t0", "node"))
    rig.handle(events.ScaleRequested(2, 1))
    done = rig.handle(events.RoomFound((("node", 8.0),), (8.0,)))
    assert Counter(start.placement for start in started(done)) == {"local": 2, "remote": 1}


def test_a_whole_plan_is_given_one_worker_by_autoplacement() -> None:
    rig = JobRig(LedgerShape(serial=True), AutoWorkers())
    assert len(rig.come(("node", 8.0), remote=(8.0,))) == 1
    assert any("one worker at a time" in event.text for event in rig.job.story)


def test_a_job_without_any_worker_starts_one_that_shares_the_cpus_of_others() -> None:
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.come()
    done = rig.handle(events.WorkerPending(worker, "job other has all CPUs"))
    (start,) = started(done)
    assert not start.reserve and start.host == "node" and start.worker != worker
    done = rig.handle(events.WorkerPending(start.worker, "still none"))
    assert not started(done), "once"
    rig.place(start.worker)
    assert list(rig.job.worker_table.workers) == [start.worker], "the other one is too many"
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
    if has_place == "perhaps":
        (start,) = started(rig.handle(starting))
        assert not start.reserve, "tasks use the CPUs, perhaps"
    else:
        rig.place(worker)
        assert list(rig.job.worker_table.workers) == [worker]


@pytest.mark.parametrize("room", [(8.0,), ()])
def test_autoplacement_without_any_worker_asks_on_the_other_side_as_well(room: tuple[float, ...]) -> None:
    rig = JobRig(workers=AutoWorkers(max_local=4))
    (worker,) = rig.come(("node", 4.0), remote=room)
    other = "remote" if rig.job.worker_table.workers[worker].placement == "local" else "local"
    done = rig.handle(events.WorkerPending(worker, "no CPU"))
    assert [start.placement for start in started(done) if start.reserve] == [other] * len(room)


def test_another_job_gets_a_local_worker_of_autoplacement_where_more_than_the_least_run() -> None:
    rig = JobRig(workers=AutoWorkers(min_local=1))
    first, *_ = rig.come(("node", 8.0), remote=(8.0,))
    rig.place(first)
    assert rig.handle(events.RoomRequested("other")) == [], "the last one stays"
    for start in started(rig.job.worker_table.scale(Deployment(2, 0), 0.0)):
        rig.place(start.worker)
    assert len(of_kind(DrainWorker, rig.handle(events.RoomRequested("other")))) == 1
    fixed = JobRig(workers=Workers(3))
    fixed.begin()
    assert fixed.handle(events.RoomRequested("other")) == [], "the user has fixed the number"


def test_a_worker_that_says_nothing_is_named_before_it_is_taken_for_lost() -> None:
    rig = JobRig(workers=Workers(1), trainer_timeout_s=1000.0)
    [worker] = rig.begin()
    quiet = rig.spec.lost_after_s / 2
    assert "said nothing" not in said(rig.handle(events.TimePassed(), after=quiet - 1))
    (text,) = said(rig.handle(events.TimePassed(), after=2)).splitlines()
    assert text.startswith(f"{worker} has said nothing for {quiet + 1:.0f} s: native code holds its GIL, ")
    assert said(rig.handle(events.TimePassed(), after=1)) == ""
    assert f"{worker} is lost: it has said nothing for" in said(rig.handle(events.TimePassed(), after=quiet))


def test_at_most_once_drops_what_a_worker_holds_that_is_removed_at_once_and_tells_how_much() -> None:
    rig = JobRig(LedgerShape(visitation="at_most_once"), Workers(2))
    _, goes = rig.begin(splits=2)
    rig.assign(goes)
    rig.take(goes)
    rig.job.placement.fast_removal = True
    done: list[Instruction] = []
    rig.job.worker_starts.drain(rig.job.worker_table.workers[goes], rig.now, done)
    assert KillWorker(goes) in done
    rig.report(settled=(goes,))
    facts = rig.job.stats(rig.now)
    (told,) = [one.text for one in facts.events if one.kind == "dropped"]
    assert told in said(rig.done[-1]) and "the rest of 1 splits of unknown length" in told
    assert (facts.dropped_open_ends, len(facts.dropped)) == (1, 1)


@pytest.mark.parametrize(("visitation", "becomes"), [("at_most_once", "dropped"), ("exactly_once", "given out again")])
def test_of_a_lost_worker_it_is_said_what_becomes_of_what_it_held(visitation: Visitation, becomes: str) -> None:
    rig = JobRig(LedgerShape(visitation=visitation))
    (worker,) = rig.begin()
    rig.assign(worker)
    rig.take(worker)
    assert f"what it held is {becomes}" in said(rig.handle(events.WorkerLost(worker, "process", "it died")))


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (Workers(3, 2), {"remote_io": 8e6}),
        (Workers(1), {"cpus_per_worker": 8.0}),
        (AutoWorkers(), {"cpus_per_worker": 2.0}),
        (AutoWorkers(mode="collocated"), {}),
        (AutoWorkers(min_local=1, max_local=2), {}),
    ],
)
@pytest.mark.parametrize("remote", [(), (4.0, 4.0)])
def test_it_is_what_the_controller_asks_for_first(
    workers: Workers | AutoWorkers, options: dict[str, Any], remote: tuple[float, ...]
) -> None:
    rig = JobRig(workers=workers, **options)
    rig.handle(events.TrainerRegistered(0, "t0", "node"))
    asked = of_kind(StartWorker, rig.handle(events.RoomFound((("node", 4.0),), remote)))
    assert first_worker(rig.spec, "node", 4.0) == asked[0]
    assert first_names(rig.spec, {"node": 4.0}) == {one.worker for one in asked if one.host}, "those that may be kept"


@pytest.mark.parametrize(
    "workers",
    [Workers(0, 2), AutoWorkers(mode="cachew"), AutoWorkers(max_local=0), AutoWorkers(max_local_cpu_fraction=0)],
)
def test_it_is_not_guessed_where_none_is_local(workers: Workers | AutoWorkers) -> None:
    assert first_worker(JobRig(workers=workers).spec, "node", 4.0) is None
    assert first_worker(JobRig(LedgerShape(world_size=2), Workers(1)).spec, "node", 4.0) is None, "of several trainers"


NODES = ("n1", "n2")
CPUS = {"n1": 4.0, "n2": 4.0, "n3": 8.0}


def bid(job: str, *cost_reductions: float, nodes: tuple[str, ...] = NODES, holds: int = 0) -> PoolBid:
    return PoolBid("remote", nodes, Demand(job, cost_reductions, holds))


def heard(*pool_requests: PoolBid, now: float = 0.0) -> Sharing:
    sharing = Sharing()
    sharing.handle_update(pool_requests, {"remote": NODES}, CPUS, now)
    return sharing


def test_all_jobs_compute_the_same_deal() -> None:
    pool_requests = {
        name: bid(name, *(start - n for n in range(6))) for name, start in (("a", 20.0), ("b", 10.0), ("c", 6.0))
    }
    found = {
        name: heard(*(other for rival, other in pool_requests.items() if rival != name)).shares([mine])["remote"]
        for name, mine in pool_requests.items()
    }
    assert found == {"a": 6, "b": 2, "c": 0}


def test_what_is_stale_or_gone_is_dropped() -> None:
    sharing, mine = heard(bid("b", *[9.0] * 99), now=7.0), [bid("a", *[1.0] * 99)]
    assert sharing.shares(mine) == {"remote": 0}
    sharing.handle_update((), {"remote": NODES}, CPUS, 7.0 + STALE_S)
    assert sharing.shares(mine) == {"remote": 0}
    sharing.handle_update((), {"remote": NODES}, CPUS, 8.0 + STALE_S)
    assert sharing.shares(mine) == {"remote": None}
    ended = heard(bid("b", *[9.0] * 99))
    ended.forget(["b"])
    assert ended.shares(mine) == {"remote": None}


# --- the job as a state machine -------------------------------------------------------------------------------


def bids_heard(*cost_reductions: float) -> PoolRequestsReceived:
    """Another job bids for the trainer's node, which has four CPUs."""
    rival = PoolBid("local", ("node",), Demand("rival", cost_reductions))
    return PoolRequestsReceived((rival,), (("local", ("node",)),), (("node", 4.0),))


def test_a_job_of_fixed_workers_needs_those_that_it_has() -> None:
    rig = JobRig(workers=Workers(3))
    rig.begin()
    rig.handle(bids_heard(*[9.0] * 9))
    assert [(one.demand.holds, one.demand.wants) for one in rig.job.pool_requests()] == [(3, 3)]
    rig.handle(events.TrainerLeft(0, "t0", 0))
    assert not rig.job.pool_requests(), "a job that has ended, and whose processes wait, wants nothing"
    assert rig.job.worker_table.target == Deployment(3, 0)


@pytest.mark.parametrize("bounded", [False, True])
def test_a_job_lets_workers_go_that_are_worth_more_elsewhere_and_says_so(bounded: bool) -> None:
    """It has four workers on a node of four CPUs, and a job comes to which they are worth more; the user's own bound
    is not shared."""
    rig = JobRig(LedgerShape(batch_size=10), AutoWorkers(max_local=4 if bounded else None, max_remote=0))
    (first,) = rig.come()
    rig.place(first)
    placing, four = rig.job.placement.policy_runner, Deployment(4, 0)
    assert placing is not None
    for start in of_kind(StartWorker, rig.job.worker_table.scale(four, 0.0)):
        rig.place(start.worker)
    placing.target = four
    placing.policy.state = ControlState(known=Known(each=(50.0, 0.0), step_s=0.05))
    drained = of_kind(DrainWorker, rig.handle(bids_heard(*[1000.0] * 9)))
    assert len(drained) == (0 if bounded else 2), "beside one it would be more than three times slower"
    assert any("at most 2" in event.text for event in rig.job.story) is not bounded
    rig.handle(PoolRequestsReceived((), (("local", ("node",)),), (("node", 4.0),), finished_jobs=("rival",)))
    assert any("no longer bounded" in event.text for event in rig.job.story) is not bounded


def shared_local(*cost_reductions: float) -> PoolRequestsReceived:
    """Another job holds the one CPU of the trainer's node, and needs it; remote workers have a node of their own."""
    rival = PoolBid("local", ("node",), Demand("earlier", cost_reductions, holds=1, least=1))
    cpus = (("node", 1.0), ("other", 1.0))
    return PoolRequestsReceived((rival,), (("local", ("node",)), ("remote", ("other",))), cpus)


@pytest.mark.parametrize("sharding", ["dynamic", "off"])
def test_the_only_worker_moves_to_the_other_side_once_trainers_have_something_from_it(sharding: Sharding) -> None:
    """Shares that change every five seconds would else end whoever works on an element that takes longer; and one that
    gives all data would never come to an epoch's end."""
    rig = JobRig(LedgerShape(sharding=sharding), AutoWorkers())
    (first,) = rig.come(remote=(4.0,))
    rig.handle(shared_local(*[1000.0] * 9))
    assert rig.job.scaling.sharing.applied_shares["local"] == 0
    assert rig.job.worker_table.target == Deployment(1, 0), "it has not even come up"
    rig.place(first)
    rig.handle(shared_local(*[1000.0] * 9))
    assert rig.job.worker_table.target == Deployment(1, 0)
    rig.job.worker_table.workers[first].delivered = DeliveredTotals(3, 1)
    rig.handle(shared_local(*[1000.0] * 9))
    assert rig.job.worker_table.target == (Deployment(1, 0) if sharding == "off" else Deployment(0, 1))
