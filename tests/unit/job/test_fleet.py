"""A job's workers: spread over nodes, drained, squeezed in, and asked for on the other side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job import events
from pecan_ray.job.events import PoolRequestsReceived
from pecan_ray.job.first_worker import first_names, first_worker
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.sharing import PoolBid, Sharing
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.worker_table import DeliveredTotals, WorkerPlace, WorkerTable
from pecan_ray.options import AutoWorkers, Sharding, Workers
from pecan_ray.placement.pool import Demand
from pecan_ray.plan.windows import Deployment
from tests.unit.job.job_rig import JobRig, of_kind


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
        worker.running, worker.place = True, WorkerPlace(start.host or "far")


def test_local_workers_are_spread_by_the_power_of_the_trainers_nodes() -> None:
    worker_table = fleet_of({"big": 12.0, "small": 4.0, "none": 0.0})
    starts = started(worker_table.scale(Deployment(4, 2), 0.0))
    assert Counter(start.host for start in starts) == {"big": 3, "small": 1, "": 2}
    assert {start.sharing for start in starts if start.host == "big"} == {3}
    assert [start.worker for start in starts if not start.host] == ["pecan:job:remote-0", "pecan:job:remote-1"]


def test_the_dearest_remote_workers_are_drained_first() -> None:
    worker_table = fleet_of({"n": 4.0})
    run(worker_table, worker_table.scale(Deployment(1, 3), 0.0))
    for worker, price in zip(
        (one for one in worker_table.workers.values() if not one.host), (0.1, 0.9, 0.4), strict=True
    ):
        worker.place = replace(worker.place, price=price)
    assert worker_table.remote_per_hour() == pytest.approx(1.4)
    worker_table.scale(Deployment(1, 1), 1.0)
    assert sorted(worker.price or 0.0 for worker in worker_table.too_many()) == [0.4, 0.9]
    next(one for one in worker_table.workers.values() if not one.host).place = WorkerPlace("far")
    assert worker_table.remote_per_hour() is None, "it is not known of all"
    assert {worker.price for worker in worker_table.too_many()} == {0.4, 0.9}, "one of no price is taken for cheap"


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


def shared_local(*cost_reductions: float) -> PoolRequestsReceived:
    """Another job holds the one CPU of the trainer's node, and needs it; remote workers have a node of their own."""
    rival = PoolBid("local", ("node",), Demand("earlier", cost_reductions, holds=1, least=1))
    cpus = (("node", 1.0), ("other", 1.0))
    return PoolRequestsReceived((rival,), (("local", ("node",)), ("remote", ("other",))), cpus)


def test_nodes_that_are_gone_have_no_cpus_to_share() -> None:
    rival, own = (
        PoolBid("remote", ("gone",), Demand(*bid, holds=0, least=0)) for bid in (("a", (2, 1)), ("b", (9, 1)))
    )
    for cpus, share in (({"gone": 4.0}, None), ({"gone": 2.0}, 1), ({"gone": 1.0}, 1), ({}, 0)):
        sharing = Sharing()
        sharing.handle_update((rival,), {"remote": ("gone",)}, cpus, 0.0)
        assert sharing.shares((own,)) == {"remote": share}


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
