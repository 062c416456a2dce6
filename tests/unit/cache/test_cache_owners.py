"""Which node a key belongs to: parts that are equal, and no more keys that move than must."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pecan_ray.cache.rendezvous_hash import RendezvousHash

KEYS = [random.Random(number).randbytes(20).hex() for number in range(6000)]


@pytest.mark.parametrize("count", [1, 3, 50])
def test_every_node_has_about_an_equal_part(count: int) -> None:
    owners = RendezvousHash(f"node-{number}" for number in range(count))
    parts = Counter(owners.owner(key) for key in KEYS)
    mean = len(KEYS) / count
    assert set(parts) == set(owners.nodes)
    assert all(abs(part - mean) <= 4 * mean**0.5 for part in parts.values()), "as by chance"


@pytest.mark.parametrize("count", [2, 5, 20])
def test_only_the_keys_of_a_node_that_goes_move_and_to_all_others(count: int) -> None:
    nodes = [f"node-{number}" for number in range(count)]
    owners, less = RendezvousHash(nodes), RendezvousHash(nodes[1:])
    heirs = Counter[str | None]()
    for key in KEYS:
        if owners.owner(key) == nodes[0]:
            heirs[less.owner(key)] += 1
        else:
            assert less.owner(key) == owners.owner(key)
        assert owners.owner(key, {nodes[0]}) == less.owner(key), "who is away is passed over in the same way"
    assert set(heirs) == set(nodes[1:])
    backwards = RendezvousHash(reversed([*nodes, nodes[0]]))
    assert [backwards.owner(key) for key in KEYS[:100]] == [owners.owner(key) for key in KEYS[:100]], "whoever looks"
    assert RendezvousHash().owner(KEYS[0]) is owners.owner(KEYS[0], nodes) is None
