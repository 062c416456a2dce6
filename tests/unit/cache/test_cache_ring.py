"""Which node a key belongs to: parts that are equal, and no more keys that move than must."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pecan_ray.cache.ring import HashRing

KEYS = [random.Random(number).randbytes(20).hex() for number in range(6000)]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 50])
def test_every_node_has_about_an_equal_part(count: int) -> None:
    ring = HashRing(f"node-{number}" for number in range(count))
    parts = Counter(ring.owner(key) for key in KEYS)
    assert set(parts) == ring.nodes
    assert max(parts.values()) < 1.4 * len(KEYS) / count and min(parts.values()) > 0.6 * len(KEYS) / count


@pytest.mark.parametrize("count", [2, 5, 20])
def test_only_the_keys_of_a_node_that_goes_move_and_to_all_others(count: int) -> None:
    nodes = [f"node-{number}" for number in range(count)]
    ring, less = HashRing(nodes), HashRing(nodes[1:])
    heirs = Counter[str | None]()
    for key in KEYS:
        if ring.owner(key) == nodes[0]:
            heirs[less.owner(key)] += 1
        else:
            assert less.owner(key) == ring.owner(key)
        assert ring.owner(key, {nodes[0]}) == less.owner(key), "who is away for a while is passed over in the same way"
    assert set(heirs) == set(nodes[1:])


def test_nodes_are_found_alike_whoever_looks() -> None:
    nodes = ["a", "b", "c"]
    one, other = HashRing(nodes), HashRing(reversed([*nodes, "a"]))
    assert [one.owner(key) for key in KEYS[:100]] == [other.owner(key) for key in KEYS[:100]]


def test_without_nodes_there_is_no_owner() -> None:
    assert HashRing().owner("key") is None
    assert HashRing(["a", "b"]).owner("key", {"a", "b"}) is None
    assert HashRing(["a", "b"]).owner("key", ["a"]) == "b"
