"""The pool of nodes that all jobs take their remote workers from: limited, slow to start, and mortal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pecan_ray.simulator.noise import factors, generator


@dataclass(frozen=True)
class PoolRule:
    """How many nodes there are, and how they live."""

    workers: int
    """Places for workers, over all nodes."""
    slots: int = 1
    """Workers that share a node: they die with it."""
    speed_cv: float = 0.0
    """Coefficient of variation of the time of a batch, from node to node."""
    life_s: float = 0.0
    """Mean time between failures of a node; 0: none."""
    lost_share: float = 0.0
    """Share of the requests that no node ever answers."""


@dataclass(eq=False)
class Node:
    """A machine with room for some workers."""

    time_factor: float
    """Factor of the time of a batch."""
    death_time: float
    size: int
    free: int


@dataclass(frozen=True)
class Request:
    """A job's wish for one remote worker."""

    job: int
    member: int


class Pool:
    """Deals places out, first come first served."""

    def __init__(self, rule: PoolRule, seed: int) -> None:
        self._rule = rule
        self._rng = generator(seed, "nodes")
        self._open: list[Node] = []
        """Nodes with a free place."""
        self._not_opened = rule.workers
        self._waiting: dict[Request, None] = {}
        self._positions: dict[Request, Node] = {}

    @property
    def used(self) -> int:
        """Places taken."""
        return len(self._positions)

    def ask(self, request: Request, now: float) -> Node | None:
        """Return a place, or keep the request until there is one."""
        if self._rule.lost_share and self._rng.random() < self._rule.lost_share:
            return None
        node = self._find(now)
        if node is None:
            self._waiting[request] = None
        else:
            self._positions[request] = node
        return node

    def is_waiting(self, request: Request) -> bool:
        """Return whether a request may still be served."""
        return request in self._waiting

    def release(self, request: Request, now: float) -> list[tuple[Request, Node]]:
        """Take a place (or a wish) back; return who is served by that."""
        self._waiting.pop(request, None)
        node = self._positions.pop(request, None)
        if node is None:
            return []
        node.free += 1
        if node.free == 1:
            self._open.append(node)
        # A node that nobody uses is given back: the next one that is opened is another machine.
        if node.free == node.size:
            self._open.remove(node)
            self._not_opened += node.size
        served = []
        while self._waiting and (place := self._find(now)) is not None:
            first = next(iter(self._waiting))
            del self._waiting[first]
            self._positions[first] = place
            served.append((first, place))
        return served

    def _find(self, now: float) -> Node | None:
        for node in self._open:
            if node.death_time > now:
                break
        else:
            size = min(self._rule.slots, self._not_opened)
            if size <= 0:
                return None
            self._not_opened -= size
            time_factor = float(factors(self._rng, self._rule.speed_cv, 1)[0])
            life = float(self._rng.exponential(self._rule.life_s)) if self._rule.life_s else math.inf
            node = Node(time_factor, now + life, size, size)
            self._open.append(node)
        node.free -= 1
        if not node.free:
            self._open.remove(node)
        return node
