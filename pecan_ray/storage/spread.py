"""Blocks that lie on other nodes' disks: each belongs to one node, by its name, and that node is asked.

Other nodes may be lost, hang, or come back.  Then nobody waits for them again and again: one that has not answered is
left alone for a while, and its blocks belong to the others meanwhile; they come from the bucket.  Nothing here raises.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from pecan_ray.cache.ring import HashRing
from pecan_ray.job.messages import DatasetRooms
from pecan_ray.storage.threads import RequestThreads

AWAY_S = 5.0
"""So long a node is left alone after it has not answered at first; twice as long after each further time,"""
MOST_AWAY_S = 120.0
"""and no longer than that."""
TRIED_S = 10.0
"""Then one asks it, and the others wait so long for what becomes of that."""
BEHIND_BYTES = 64 << 20
"""Blocks that are on their way to other nodes; further ones are not kept."""
WRITES = 4
"""Blocks that are sent at a time."""

T = TypeVar("T")


class SentBlock(NamedTuple):
    """A block that is to be kept."""

    key: str
    dataset: str
    data: bytes
    object_bytes: int
    """Of the object that it is a part of."""


class CacheNode(Protocol):
    """Another node's blocks; its methods raise OSError where it does not answer soon."""

    def sizes(self, keys: list[str]) -> dict[str, int]:
        """Return which of some blocks are there, with the sizes of their objects."""

    def get(self, key: str) -> bytes | None:
        """Return a block."""

    def put(self, block: SentBlock, rooms: DatasetRooms) -> None:
        """Keep a block; `rooms`: what may be kept of datasets."""


@dataclass
class _Away:
    until: float
    for_s: float


class SpreadBlocks:
    """The other nodes' blocks, as one process sees them; threads may use it side by side."""

    def __init__(self, here: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`here`: the name of this node; `say` is told of what is wrong, from any thread."""
        self._here, self._say, self._clock = here, say, clock
        self._writers = RequestThreads(WRITES)
        self._lock = threading.Lock()
        """Guards all below."""
        self._nodes: Mapping[str, CacheNode] = {}
        self._ring = HashRing()
        self._away: dict[str, _Away] = {}
        self._behind = 0
        self.rooms: DatasetRooms = ()
        """What may be kept of datasets; empty: nobody bounds that."""

    def know(self, nodes: Mapping[str, CacheNode]) -> None:
        """Take these for the nodes that there are, this one among them; one that was started anew is not away."""
        ring = HashRing(nodes)
        with self._lock:
            for name in [name for name in self._away if nodes.get(name) is not self._nodes.get(name)]:
                del self._away[name]
            self._nodes, self._ring = dict(nodes), ring

    @property
    def idle(self) -> bool:
        """Whether all that was put has been sent, or given up."""
        with self._lock:
            return not self._behind

    def elsewhere(self, key: str) -> bool:
        """Tell whether a block belongs to another node than this one."""
        with self._lock:
            return self._owner(key) is not None

    def sizes(self, keys: Iterable[str]) -> dict[str, int]:
        """Return which of some blocks other nodes have, with the sizes of their objects: one question to each node."""
        asked: dict[str, list[str]] = {}
        with self._lock:
            for key in keys:
                if (node := self._owner(key)) is not None:
                    asked.setdefault(node, []).append(key)
        found: dict[str, int] = {}
        for node, wanted in asked.items():
            found |= self._ask(node, _sizes_of(wanted)) or {}
        return found

    def get(self, key: str) -> bytes | None:
        """Return a block that belongs to another node, if it is there and comes soon."""
        with self._lock:
            node = self._owner(key)
        return None if node is None else self._ask(node, lambda one: one.get(key))

    def put(self, block: SentBlock) -> None:
        """Let a block be kept by the node that it belongs to, which is another one.  Returns at once."""
        with self._lock:
            node, nbytes = self._owner(block.key), len(block.data)
            if node is None or (self._behind and self._behind + nbytes > BEHIND_BYTES):
                return
            self._behind += nbytes
        self._writers.start(partial(self._send, node, block))

    # --- inside --------------------------------------------------------------------------------------------

    def _owner(self, key: str) -> str | None:
        """Return the other node that a block belongs to; the caller holds the lock."""
        now = self._clock()
        owner = self._ring.owner(key, [name for name, away in self._away.items() if now < away.until])
        return None if owner == self._here else owner

    def _send(self, node: str, block: SentBlock) -> None:
        try:
            self._ask(node, lambda one: one.put(block, self.rooms))
        finally:
            with self._lock:
                self._behind -= len(block.data)

    def _ask(self, node: str, question: Callable[[CacheNode], T]) -> T | None:
        """Ask a node something; None where it does not answer, or was left alone meanwhile."""
        with self._lock:
            asked, away, now = self._nodes.get(node), self._away.get(node), self._clock()
            if asked is None or (away is not None and now < away.until):
                return None
            if away is not None:  # its time is over: this one tries it, and the others see what comes of that
                away.until = now + TRIED_S
        try:
            answer = question(asked)
        except OSError as error:
            self._failed(node, asked, error, away)
            return None
        with self._lock:
            if self._nodes.get(node) is asked and self._away.get(node) is away:
                self._away.pop(node, None)
        return answer

    def _failed(self, node: str, asked: CacheNode, error: OSError, tried: _Away | None) -> None:
        """Leave a node alone; `tried`: it was left alone before, and this one has tried it again."""
        with self._lock:
            if self._nodes.get(node) is not asked or self._away.get(node) is not tried:
                return  # it is known anew, or another question has failed beside this one
            for_s = AWAY_S if tried is None else min(MOST_AWAY_S, 2 * tried.for_s)
            self._away[node] = _Away(self._clock() + for_s, for_s)
        self._say(f"another node does not answer, so what it holds comes from buckets: {node[:8]}, {error}")


def _sizes_of(keys: list[str]) -> Callable[[CacheNode], dict[str, int]]:
    return lambda node: node.sizes(keys)
