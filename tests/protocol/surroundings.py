"""What happens around a job: ends of workers and nodes that are announced, and other jobs that bid for its nodes."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from pecan_ray.job import events
from pecan_ray.job.events import PoolRequestsReceived
from pecan_ray.job.heartbeat import NOTICE_S
from pecan_ray.job.messages import Placement
from pecan_ray.job.sharing import PoolBid
from pecan_ray.job.state import JobState
from pecan_ray.placement.pool import Demand
from tests.protocol.audit import must
from tests.protocol.scenario import Fault

if TYPE_CHECKING:
    from tests.protocol.world import World

HEARS_S = 1.0
"""Announcements are heard within so long."""


class AnnouncedEnds:
    """The part of a simulated world that takes workers and nodes away, and says so before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaving: dict[str, float] = {}
        """Nodes whose end was announced, and when it is."""

    def begin(self, fault: Fault) -> bool:
        """Let the end of a worker's process, or of a node without trainers, be announced, and come; False: of none."""
        world, of_node = self._world, fault.kind == "announce node"
        workers = [
            one
            for one in world.job.processes.values()
            if one.alive and not (of_node and (one.placement == "local" or one.node in self._leaving))
        ]
        if not workers:
            return False
        worker = workers[fault.target % len(workers)]
        if of_node:
            self._begin_of_node(worker.node, fault.seconds)
        else:
            world.losses += 1  # it may be asked to end because of what it does
            world.clock.after(world.clock.random.random() * HEARS_S, worker, worker.ask_to_end)
            world.clock.after(min(fault.seconds, NOTICE_S), None, world.end_process, worker)
        return True

    def _begin_of_node(self, node: str, seconds: float) -> None:
        world = self._world
        here = [worker for worker in world.job.processes.values() if worker.alive and worker.node == node]
        world.losses += len(here)
        self._leaving[node] = world.clock.now + seconds
        for worker in here:
            if worker.placed_at > world.clock.now:  # Ray places it elsewhere
                worker.node = self.node_in_place_of(node)
        world.clock.after(world.clock.random.random() * HEARS_S, None, self._tell, node)
        if seconds < math.inf:
            world.clock.after(seconds, None, world.end_node, node)

    def _tell(self, node: str) -> None:
        """Let the job hear of it, again and again, since its process may be another one."""
        world, left_s = self._world, self._leaving[node] - self._world.clock.now
        if left_s > 0.0 and world.job.ended_at is None:
            told = events.NodesLeave(((node, left_s if left_s < math.inf else None),))
            world.clock.after(0.0, world.job, world.job.handle, told)
            world.clock.after(HEARS_S, None, self._tell, node)

    def node_in_place_of(self, node: str) -> str:
        """Return a node that stays: this one, or one that comes in its place."""
        while node in self._leaving:
            node += "'"
        return node


# --- other jobs -----------------------------------------------------------------------------------------------

REMOTE_NODES = ("node-0", "node-1")
"""Where workers run that are not on a trainer's node."""
SILENT_SHARE, ENDS_SHARE = 0.2, 0.1
"""Of other jobs, in each round: some are too busy to tell, some end."""


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
    wanted, here = job.worker_table.target, job.worker_table.running()
    if job.over or not job.placement.active or not job.worker_table.hosts:
        return
    must(wanted.workers > 0, "a job with rivals wants no worker")
    awaited = not all(worker.running or worker.draining for worker in job.worker_table.workers.values())
    for placement, share in job.scaling.sharing.applied_shares.items():
        count, running = getattr(wanted, placement), getattr(here, placement)
        must(
            share is None or count <= max(share, 1), f"{count} {placement} workers are wanted, and its share is {share}"
        )
        must(awaited or running <= count, f"{running} {placement} workers run on, and {count} are wanted")
