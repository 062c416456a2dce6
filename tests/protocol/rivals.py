"""A model of other jobs that bid for workers on the nodes of this one; some are too busy to tell, some end."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from pecan_ray.job.events import PoolRequestsReceived
from pecan_ray.job.messages import Placement
from pecan_ray.job.sharing import PoolBid
from pecan_ray.job.state import JobState
from pecan_ray.placement.pool import Demand
from tests.protocol.audit import must

if TYPE_CHECKING:
    from tests.protocol.world import World

REMOTE_NODES = ("node-0", "node-1")
"""Where workers run that are not on a trainer's node."""
SILENT_SHARE, ENDS_SHARE = 0.2, 0.1


def heard_bids(world: World, hosts: tuple[str, ...], before: tuple[str, ...]) -> PoolRequestsReceived:
    """Return what is heard in a round; `before`: jobs that were asked in the last one."""
    random, cpus = world.clock.random, float(world.scenario.cpus)
    where: dict[Placement, tuple[str, ...]] = {"local": tuple(sorted(hosts)), "remote": REMOTE_NODES}
    gone = tuple(job for job in before if random.random() < ENDS_SHARE)
    pool_requests = []
    for number in range(world.scenario.rivals):
        job = f"rival-{number}"
        if job not in gone and random.random() > SILENT_SHARE:
            pool_requests += [
                PoolBid(placement, nodes, _demand(random, job))
                for placement, nodes in where.items()
                if random.random() < 0.7
            ]
    nodes = (*where["local"], *REMOTE_NODES)
    return PoolRequestsReceived(
        tuple(pool_requests), tuple(where.items()), tuple(dict.fromkeys(nodes, cpus).items()), gone
    )


def _demand(random: Random, job: str) -> Demand:
    wants = random.randint(1, 8)
    scale = random.choice((1e-3, 1.0, 1e3))
    cost_reductions = tuple(sorted((scale * random.random() for _ in range(wants)), reverse=True))
    time_factor = tuple(sorted((1.0 + 5.0 * random.random() for _ in range(wants)), reverse=True))
    cpus = random.choice((1.0, 1.0, 2.0))
    return Demand(job, cost_reductions, random.randrange(4), random.randrange(3), cpus, time_factor)


def check_shares(job: JobState) -> None:
    """A job that AutoPlacement places wants no more workers than its share, and one in any case.

    What runs above that is being drained, unless another worker is awaited: the job might have none meanwhile.
    """
    wanted, here = job.fleet.wanted, job.fleet.running()
    if job.over or not job.placement.decides or not job.fleet.hosts:
        return
    must(wanted.workers > 0, "a job with rivals wants no worker")
    awaited = not all(worker.running or worker.draining for worker in job.fleet.workers.values())
    for placement, share in job.scaling.sharing.applied_shares.items():
        count, running = getattr(wanted, placement), getattr(here, placement)
        must(
            share is None or count <= max(share, 1), f"{count} {placement} workers are wanted, and its share is {share}"
        )
        must(awaited or running <= count, f"{running} {placement} workers run on, and {count} are wanted")
