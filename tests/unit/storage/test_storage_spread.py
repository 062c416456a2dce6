"""Blocks that lie on other nodes: found there, and done without where a node does not answer."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from pecan_ray.cache.fetch_turns import Fetcher
from pecan_ray.storage import BlockCache, digest
from pecan_ray.storage.spread import AWAY_S, BEHIND_BYTES, SentBlock, SpreadBlocks
from tests.ray.waiting import until
from tests.unit.cache.memory_nodes import BLOCK, MemoryNode, Objects

KEYS = [random.Random(number).randbytes(20).hex() for number in range(300)]
OTHER = Fetcher("b", 1, 0)


class Nodes:
    """Three nodes, seen from the first."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, list[str]()
        self.others = {"b": MemoryNode(), "c": MemoryNode()}
        self.spread = SpreadBlocks("a", self.said.append, lambda: self.now)
        self.know()

    def know(self) -> None:
        self.spread.know({"a": MemoryNode(), **self.others})

    def owner(self, key: str) -> str:
        """Return the node that is asked for a block, which has none."""
        before = {name: node.asked for name, node in self.others.items()}
        self.spread.get(key)
        return next((name for name, node in self.others.items() if node.asked > before[name]), "a")


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def put(nodes: Nodes, key: str, data: bytes = b"data") -> None:
    nodes.spread.put(SentBlock(key, "s3://data", data, 7))


def test_a_block_is_found_where_it_was_put_and_belongs_to_one_node(nodes: Nodes) -> None:
    nodes.spread.rooms = (("s3://data", 5),)
    for key in KEYS:
        put(nodes, key, key.encode())
    theirs = [key for key in KEYS if nodes.spread.elsewhere(key)]
    assert 0.5 * len(KEYS) < len(theirs) < 0.85 * len(KEYS)
    until(lambda: sum(len(node.blocks) for node in nodes.others.values()) == len(theirs), "blocks are not sent")
    assert nodes.spread.sizes(KEYS) == dict.fromkeys(theirs, 7)
    assert all(nodes.spread.get(key) == (key.encode() if key in theirs else None) for key in KEYS)
    assert all(node.rooms == nodes.spread.rooms for node in nodes.others.values())


def test_a_node_that_is_lost_is_asked_once_and_its_blocks_belong_to_the_others_meanwhile(nodes: Nodes) -> None:
    before = {key: nodes.owner(key) for key in KEYS}
    lost = nodes.others["b"]
    lost.lost, asked = True, lost.asked
    after = {key: nodes.owner(key) for key in KEYS}
    assert lost.asked == asked + 1 and len(nodes.said) == 1 and "does not answer" in nodes.said[0]
    heirs = Counter(nodes.owner(key) for key in KEYS if before[key] == "b")
    assert set(heirs) == {"a", "c"}
    assert all(after[key] == before[key] for key in KEYS if before[key] != "b")


def test_whoever_could_not_send_a_block_lets_others_fetch_it(nodes: Nodes) -> None:
    key = next(key for key in KEYS if nodes.spread.elsewhere(key))
    missed = nodes.spread.missed()
    nodes.spread.ask(missed, [key])
    owner = next(node for node in nodes.others.values() if node.looks)
    assert owner.fetching.take(key, OTHER, 0.0) == missed.by
    failures = iter([True, False])
    owner.before_answer = lambda: setattr(owner, "lost", next(failures))
    assert nodes.spread.put(SentBlock(key, "s3://data", b"data", 7, missed.by))
    until(lambda: nodes.spread.idle, "it is still under way")
    assert owner.fetching.take(key, OTHER, 0.0) is None and not owner.blocks


def test_it_is_tried_again_by_one_and_more_and_more_seldom(nodes: Nodes) -> None:
    key = next(key for key in KEYS if nodes.owner(key) == "b")
    lost = nodes.others["b"]
    lost.lost = True
    tries: list[float] = []
    for _ in range(4000):
        asked = lost.asked
        nodes.spread.get(key)
        tries += [nodes.now] * (lost.asked - asked)
        nodes.now += 0.1
    apart = [later - sooner for sooner, later in itertools.pairwise(tries)]
    assert apart[:4] == pytest.approx([AWAY_S, 2 * AWAY_S, 4 * AWAY_S, 8 * AWAY_S], abs=0.3)
    lost.lost = False
    nodes.now += 1000.0
    assert nodes.owner(key) == "b" and nodes.owner(key) == "b", "it has answered"


def test_a_node_that_was_started_anew_is_asked_at_once(nodes: Nodes) -> None:
    key = next(key for key in KEYS if nodes.owner(key) == "b")
    nodes.others["b"].lost = True
    nodes.spread.get(key)
    assert nodes.owner(key) != "b"
    nodes.know()
    assert nodes.owner(key) != "b", "it is the same one"
    nodes.others["b"] = MemoryNode()
    nodes.know()
    assert nodes.owner(key) == "b"
    del nodes.others["b"]
    nodes.know()
    assert nodes.owner(key) != "b"


def test_what_waits_to_be_sent_is_bounded(nodes: Nodes) -> None:
    go_on = threading.Event()
    for node in nodes.others.values():
        node.before_answer = lambda: go_on.wait(60)
    size = BEHIND_BYTES // 4
    for key in [key for key in KEYS if nodes.spread.elsewhere(key)][:10]:
        put(nodes, key, bytes(size))
    go_on.set()
    until(lambda: sum(node.asked for node in nodes.others.values()) == 4, "blocks are not sent")
    assert sum(len(node.blocks) for node in nodes.others.values()) <= 4


# --- a cache among others -----------------------------------------------------------------------------------


def sent(nodes: Nodes) -> None:
    """Wait until all blocks that belong elsewhere are there."""
    until(lambda: nodes.spread.idle, "blocks are not sent")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("known", [False, True], ids=["by version", "by digest"])
def test_what_one_node_has_read_another_one_does_not_ask_for(tmp_path: Path, nodes: Nodes, known: bool) -> None:
    objects = Objects()
    digests = [{path: about(path, data) for path, data in objects.contents.items()}] if known else []
    cache = BlockCache(tmp_path / "a", 1 << 30, digests, others=nodes.spread)
    assert objects.read_all(cache) == objects.nbytes
    sent(nodes)
    assert objects.read_all(cache) == 0 and cache.nbytes == objects.nbytes
    # A process on another node, with an empty disk of its own, finds what does not belong to it.
    elsewhere = SpreadBlocks("d", nodes.said.append)
    elsewhere.know({"a": MemoryNode(), **nodes.others})
    fetched = objects.read_all(BlockCache(tmp_path / "d", 1 << 30, digests, others=elsewhere))
    assert 0 < fetched < 0.6 * objects.nbytes, "what the first node has on its own disk alone nobody tells it"
    assert not nodes.said


def about(path: str, data: bytes) -> digest.ObjectDigest:
    hashes = b"".join(digest.block_hash(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))
    return digest.ObjectDigest(path, len(data), "v", "", hashes)


@pytest.mark.usefixtures("small_blocks")
def test_a_node_that_is_lost_in_the_middle_costs_its_blocks_and_nothing_else(tmp_path: Path, nodes: Nodes) -> None:
    objects = Objects()
    cache = BlockCache(tmp_path, 1 << 30, others=nodes.spread)
    objects.read_all(cache)
    sent(nodes)
    nodes.others["b"].lost = True
    fetched = objects.read_all(cache)
    assert 0 < fetched < 0.6 * objects.nbytes
    sent(nodes)
    assert objects.read_all(cache) == 0, "the others have taken its part over"


@pytest.mark.usefixtures("small_blocks")
def test_bytes_of_another_node_that_a_digest_does_not_tell_of_come_from_the_bucket(
    tmp_path: Path, nodes: Nodes
) -> None:
    objects = Objects()
    digests = [{path: about(path, data) for path, data in objects.contents.items()}]
    cache = BlockCache(tmp_path, 1 << 30, digests, others=nodes.spread)
    objects.read_all(cache)
    sent(nodes)
    for node in nodes.others.values():
        node.spoil = lambda data: bytes([data[0] ^ 1]) + data[1:]
    assert objects.read_all(cache) > 0.4 * objects.nbytes


@pytest.mark.usefixtures("small_blocks")
def test_what_other_nodes_hold_is_looked_for_together(tmp_path: Path, nodes: Nodes) -> None:
    objects = Objects()
    cache = BlockCache(tmp_path, 1 << 30, others=nodes.spread)
    objects.read_all(cache)
    sent(nodes)
    asked = sum(node.asked for node in nodes.others.values())
    ranges = [(path, "v", 0, len(data)) for path, data in objects.contents.items()]
    cache.look(ranges)
    assert sum(node.asked for node in nodes.others.values()) == asked + 2, "one question to each"
    assert all(cache.holds(*one) for one in ranges)
