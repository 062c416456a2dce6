"""Which node a key belongs to, and what a node's actor answers to others, without Ray."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pecan_ray.cache.fetch_claims import Fetcher
from pecan_ray.cache.rendezvous_hash import RendezvousHash
from pecan_ray.cache_options import MIB, Cache
from pecan_ray.runtime.cache_node import NodeBlocks
from pecan_ray.storage import SentBlock

KEYS = [random.Random(number).randbytes(20).hex() for number in range(6000)]


@pytest.mark.parametrize("count", [2, 5, 20])
def test_every_node_has_about_an_equal_part_and_only_the_keys_of_one_that_goes_move_to_all_others(count: int) -> None:
    nodes = [f"node-{number}" for number in range(count)]
    owners, less = RendezvousHash(nodes), RendezvousHash(nodes[1:])
    parts = Counter(owners.owner(key) for key in KEYS)
    mean = len(KEYS) / count
    assert set(parts) == set(owners.nodes)
    assert all(abs(part - mean) <= 4 * mean**0.5 for part in parts.values()), "as by chance"
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


ONE, OTHER = Fetcher("a", 1, 0), Fetcher("b", 1, 0)


def test_whoever_misses_a_block_is_told_who_fetches_it_until_it_has_come_or_is_not_kept(tmp_path: Path) -> None:
    node = NodeBlocks(Cache(tmp_path, source_bytes=64 * MIB))
    assert node.claim_blocks(["x", "y"], ONE) == ({}, {})
    assert node.claim_blocks(["x", "y", "z"], OTHER) == ({}, {"x": ONE, "y": ONE})
    node.put(SentBlock("x", "s3://data", b"bytes", 7, shared=True), ())
    node.cancel_fetch(["y", "z"], ONE)
    assert node.claim_blocks(["x", "y", "z"], ONE) == ({"x": 7}, {"z": OTHER})
    node.put(SentBlock("z", "s3://data", b"bytes", 7), (("s3://data", 0),))
    assert node.claim_blocks(["z"], ONE) == ({}, {}), "nobody waits for it"


def test_it_tells_of_its_processes_and_of_who_reads(tmp_path: Path) -> None:
    node = NodeBlocks(Cache(tmp_path, source_bytes=64 * MIB))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert node.runs(process.pid)
        process.communicate(b"\n")
    assert not node.runs(process.pid)
    assert node.reads("one", ["s3://data"]) == () and node.reads("two", ["s3://data"]) == ("s3://data",)
