"""Which node a key belongs to: parts that are equal, and no more keys that move than must."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pecan_ray.cache.ring import HashRing

KEYS = [random.Random(number).randbytes(20).hex() for number in range(6000)]


@pytest.mark.parametrize("count", [1, 3, 50])
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
    backwards = HashRing(reversed([*nodes, nodes[0]]))
    assert [backwards.owner(key) for key in KEYS[:100]] == [ring.owner(key) for key in KEYS[:100]], "whoever looks"
    assert HashRing().owner(KEYS[0]) is ring.owner(KEYS[0], nodes) is None
