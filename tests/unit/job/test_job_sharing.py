"""Jobs that share nodes: each hears what the others bid, and obeys its own share."""

from __future__ import annotations

import pytest

from pecan_ray.job.events import PoolRequestsReceived
from pecan_ray.job.instructions import DrainWorker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.sharing import STALE_S, PoolBid, Sharing
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import AutoWorkers, Sharding, Workers
from pecan_ray.placement.pool import Demand
from pecan_ray.placement.trial_history import ControlState, Known
from pecan_ray.plan.windows import Deployment
from tests.unit.job.job_rig import JobRig, of_kind

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


def test_a_job_is_bounded_only_where_another_one_wants_more_than_there_is_on_the_same_nodes() -> None:
    assert heard(bid("b", 1.0, 1.0)).shares([bid("a", 1.0, 1.0)]) == {"remote": None}
    assert Sharing().shares([bid("a", *[1.0] * 99)]) == {"remote": None}
    assert heard(bid("b", *[9.0] * 99, nodes=("n3",))).shares([bid("a", *[1.0] * 99)]) == {"remote": None}


def test_what_is_stale_or_gone_is_dropped() -> None:
    sharing, mine = heard(bid("b", *[9.0] * 99)), [bid("a", *[1.0] * 99)]
    assert sharing.shares(mine) == {"remote": 0}
    sharing.handle_update((), {"remote": NODES}, CPUS, STALE_S)
    assert sharing.shares(mine) == {"remote": 0}
    sharing.handle_update((), {"remote": NODES}, CPUS, STALE_S + 1)
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
    assert rig.job.fleet.wanted == Deployment(3, 0)


@pytest.mark.parametrize("bounded", [False, True])
def test_a_job_lets_workers_go_that_are_worth_more_elsewhere_and_says_so(bounded: bool) -> None:
    """It has four workers on a node of four CPUs, and a job comes to which they are worth more; the user's own bound
    is not shared."""
    rig = JobRig(LedgerShape(batch_size=10), AutoWorkers(max_local=4 if bounded else None, max_remote=0))
    (first,) = rig.come()
    rig.place(first)
    placing, four = rig.job.placement.placing, Deployment(4, 0)
    assert placing is not None
    for start in of_kind(StartWorker, rig.job.fleet.scale(four, 0.0)):
        rig.place(start.worker)
    placing.target = four
    placing.policy.state = ControlState(known=Known(each=(50.0, 0.0), step_s=0.05))
    drained = of_kind(DrainWorker, rig.handle(bids_heard(*[1000.0] * 9)))
    assert len(drained) == (0 if bounded else 2), "beside one it would be more than three times slower"
    assert any("at most 2" in event.text for event in rig.job.told) is not bounded
    rig.handle(PoolRequestsReceived((), (("local", ("node",)),), (("node", 4.0),), gone=("rival",)))
    assert any("no longer bounded" in event.text for event in rig.job.told) is not bounded


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
    assert rig.job.fleet.wanted == Deployment(1, 0), "it has not even come up"
    rig.place(first)
    rig.handle(shared_local(*[1000.0] * 9))
    assert rig.job.fleet.wanted == Deployment(1, 0)
    rig.job.fleet.workers[first].delivered = WorkerProgress(3, 1)
    rig.handle(shared_local(*[1000.0] * 9))
    assert rig.job.fleet.wanted == (Deployment(1, 0) if sharding == "off" else Deployment(0, 1))


# --- a policy within a share ---------------------------------------------------------------------------------


# --- many jobs, each with what it has measured ----------------------------------------------------------------
