"""Ends of workers' processes and nodes that are announced, and come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pecan_ray.job import events
from pecan_ray.job.heartbeat import NOTICE_S
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
            world.clock.after(seconds, None, self._take_away, node)

    def _tell(self, node: str) -> None:
        """Let the job hear of it, again and again, since its process may be another one."""
        world, left_s = self._world, self._leaving[node] - self._world.clock.now
        if left_s > 0.0 and world.job.ended_at is None:
            told = events.NodesLeave(((node, left_s if left_s < math.inf else None),))
            world.clock.after(0.0, world.job, world.job.handle, told)
            world.clock.after(HEARS_S, None, self._tell, node)

    def _take_away(self, node: str) -> None:
        for worker in list(self._world.job.processes.values()):
            if worker.node == node:
                self._world.job.process_gone(worker, "node")

    def node_in_place_of(self, node: str) -> str:
        """Return a node that stays: this one, or one that comes in its place."""
        while node in self._leaving:
            node += "'"
        return node
