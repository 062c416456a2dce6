"""Which node a key belongs to, where nodes come and go: consistent hashing.

Every node has many points on a ring of numbers, and a key belongs to the node of the first point at or behind its own
number.  So a node that comes takes an equal part of all others' keys, one that goes leaves its keys to all others in
equal parts, and no other key moves.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable

POINTS = 256
"""Of each node: parts of nodes then differ by some 6 % (one standard deviation)."""


class HashRing:
    """Some nodes, by their names; the order in which they are named does not matter."""

    def __init__(self, nodes: Iterable[str] = (), points: int = POINTS) -> None:
        self.nodes = frozenset(nodes)
        placed = sorted((_number(f"{node}\0{point}"), node) for node in self.nodes for point in range(points))
        self._numbers = [number for number, _ in placed]
        self._nodes = [node for _, node in placed]

    def owner(self, key: str, without: Collection[str] = ()) -> str | None:
        """Return the node that a key belongs to, as if those of `without` were not there; None: there is no other."""
        if all(node in without for node in self.nodes):
            return None
        at = bisect_left(self._numbers, _number(key))
        while True:
            node = self._nodes[at % len(self._nodes)]
            if node not in without:
                return node
            at += 1


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
