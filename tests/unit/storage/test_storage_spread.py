"""Blocks on other nodes: found there, fetched once where several miss them, done without where a node is silent."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pecan_ray.cache.fetch_claims import FetchClaims, Fetcher
from pecan_ray.cache.readers import Readers
from pecan_ray.job.messages import DatasetRooms
from pecan_ray.storage import BlockCache, spread
from pecan_ray.storage.blocks import ObjectBlocks
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.spread import AWAY_S, BEHIND_BYTES, SentBlock, SpreadBlocks
from tests.ray.waiting import until
from tests.unit.storage.conftest import SMALL, StoredObject

KEYS = [random.Random(number).randbytes(20).hex() for number in range(300)]


class MemoryNode:
    """Another node, in this process."""

    def __init__(self) -> None:
        self.blocks: dict[str, SentBlock] = {}
        self.cache_limits: DatasetRooms = ()
        self.lost = self.full = False
        """Whether it answers nothing, or lets nothing in."""
        self.fetching, self.readers, self.dead = FetchClaims(), Readers(), set[int]()
        self.requested = self.looks = 0
        """Requests, and those that ask who fetches."""
        self.lock = threading.Lock()
        """Guards who fetches."""
        self.before_answer: Callable[[], object] = lambda: None
        self.spoil: Callable[[bytes], bytes] = bytes

    def _answers(self) -> None:
        self.requested += 1
        self.before_answer()
        if self.lost:
            raise ConnectionError("it is gone")

    def sizes(self, keys: list[str]) -> dict[str, int]:
        self._answers()
        return {key: self.blocks[key].object_bytes for key in keys if key in self.blocks}

    def claim_blocks(self, keys: list[str], by: Fetcher) -> tuple[dict[str, int], dict[str, Fetcher]]:
        found = self.sizes(keys)
        with self.lock:
            self.looks += 1
            taken = {key: self.fetching.take(key, by, 0.0) for key in keys if key not in found}
        return found, {key: other for key, other in taken.items() if other is not None}

    def cancel_fetch(self, keys: list[str], by: Fetcher) -> None:
        self._answers()
        with self.lock:
            self.fetching.cancel_fetch(keys, by)

    def reads(self, job: str, datasets: list[str]) -> tuple[str, ...]:
        self._answers()
        return self.readers.report(job, datasets, 0.0)

    def runs(self, process: int) -> bool:
        self._answers()
        return process not in self.dead

    def get(self, key: str) -> bytes | None:
        self._answers()
        return self.spoil(self.blocks[key].data) if key in self.blocks else None

    def put(self, block: SentBlock, cache_limits: DatasetRooms) -> bool:
        self._answers()
        with self.lock:
            if self.full:
                self.fetching.rejected(block.key, 0.0)
                return False
            self.fetching.complete(block.key)
        self.blocks[block.key], self.cache_limits = block, cache_limits
        return True


class Nodes:
    """Three nodes, seen from the first."""

    def __init__(self) -> None:
        self.now, self.message = 0.0, list[str]()
        self.others = {"b": MemoryNode(), "c": MemoryNode()}
        self.spread = SpreadBlocks("a", self.message.append, lambda: self.now)
        self.know()

    def know(self) -> None:
        self.spread.set_nodes({"a": MemoryNode(), **self.others})

    def owner(self, key: str) -> str:
        """Return the node that is asked for a block, which has none."""
        before = {name: node.requested for name, node in self.others.items()}
        self.spread.get(key)
        return next((name for name, node in self.others.items() if node.requested > before[name]), "a")


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_a_block_is_found_where_it_was_put_and_belongs_to_one_node(nodes: Nodes) -> None:
    nodes.spread.cache_limits = (("s3://data", 5),)
    for key in KEYS:
        nodes.spread.put(SentBlock(key, "s3://data", key.encode(), 7))
    theirs = [key for key in KEYS if nodes.spread.elsewhere(key)]
    assert 0.5 * len(KEYS) < len(theirs) < 0.85 * len(KEYS)
    until(lambda: sum(len(node.blocks) for node in nodes.others.values()) == len(theirs), "blocks are not sent")
    assert nodes.spread.sizes(KEYS) == dict.fromkeys(theirs, 7)
    assert all(nodes.spread.get(key) == (key.encode() if key in theirs else None) for key in KEYS)
    assert all(node.cache_limits == nodes.spread.cache_limits for node in nodes.others.values())


def test_a_node_that_is_lost_is_asked_more_and_more_seldom_and_its_blocks_belong_to_the_others_meanwhile(
    nodes: Nodes,
) -> None:
    before = {key: nodes.owner(key) for key in KEYS}
    lost = nodes.others["b"]
    lost.lost, asked = True, lost.requested
    after = {key: nodes.owner(key) for key in KEYS}
    assert lost.requested == asked + 1 and len(nodes.message) == 1 and "does not answer" in nodes.message[0]
    heirs = Counter(nodes.owner(key) for key in KEYS if before[key] == "b")
    assert set(heirs) == {"a", "c"}
    assert all(after[key] == before[key] for key in KEYS if before[key] != "b")
    key = next(key for key in KEYS if before[key] == "b")
    tries: list[float] = []
    for _ in range(4000):
        asked = lost.requested
        nodes.spread.get(key)
        tries += [nodes.now] * (lost.requested - asked)
        nodes.now += 0.1
    assert tries[:4] == pytest.approx([AWAY_S, 3 * AWAY_S, 7 * AWAY_S, 15 * AWAY_S], abs=0.4)
    nodes.know()
    assert nodes.owner(key) != "b", "it is the same one"
    nodes.others["b"] = MemoryNode()
    nodes.know()
    assert nodes.owner(key) == "b", "one that was started anew is asked at once"
    del nodes.others["b"]
    nodes.know()
    assert nodes.owner(key) != "b"


def test_what_waits_to_be_sent_is_bounded(nodes: Nodes) -> None:
    go_on = threading.Event()
    for node in nodes.others.values():
        node.before_answer = lambda: go_on.wait(60)
    size = BEHIND_BYTES // 4
    for key in [key for key in KEYS if nodes.spread.elsewhere(key)][:10]:
        nodes.spread.put(SentBlock(key, "s3://data", bytes(size), 7))
    go_on.set()
    until(lambda: sum(node.requested for node in nodes.others.values()) == 4, "blocks are not sent")
    assert sum(len(node.blocks) for node in nodes.others.values()) <= 4


# --- a cache among others -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("known", [False, True], ids=["by version", "by digest"])
def test_what_one_node_has_read_another_one_does_not_ask_for(tmp_path: Path, nodes: Nodes, known: bool) -> None:
    objects = some_objects()
    nbytes = sum(len(one.data) for one in objects)
    digests = [one.digest() for one in objects] if known else []
    cache = BlockCache(tmp_path / "a", 1 << 30, digests, others=nodes.spread)
    assert read_all(objects, cache) == nbytes
    until(lambda: nodes.spread.idle, "blocks are not sent")
    assert read_all(objects, cache) == 0 and cache.nbytes == nbytes
    # A process on another node, with an empty disk of its own, finds what does not belong to it.
    elsewhere = SpreadBlocks("d", nodes.message.append)
    elsewhere.set_nodes({"a": MemoryNode(), **nodes.others})
    fetched = read_all(objects, BlockCache(tmp_path / "d", 1 << 30, digests, others=elsewhere))
    assert 0 < fetched < 0.6 * nbytes, "what the first node has on its own disk alone nobody tells it"
    assert not nodes.message
    nodes.others["b"].lost = True  # which costs its blocks and nothing else
    assert 0 < read_all(objects, cache) < 0.6 * nbytes
    until(lambda: nodes.spread.idle, "blocks are not sent")
    assert read_all(objects, cache) == 0, "the others have taken its part over"
    for node in nodes.others.values():
        node.spoil = lambda data: bytes([data[0] ^ 1]) + data[1:]
    if known:
        assert read_all(objects, cache) > 0.4 * nbytes, "bytes that the digest does not tell of"


def some_objects() -> list[StoredObject]:
    """Of some blocks each."""
    return [StoredObject(random.Random(n).randbytes(4 * SMALL - 5), f"s3://data/set/{n}") for n in range(30)]


def read_all(objects: list[StoredObject], cache: BlockCache) -> int:
    """Read everything; return how many bytes were asked for."""
    before = sum(one.fetched for one in objects)
    assert all(one.read(cache, 0, len(one.data)) == one.data for one in objects)
    return sum(one.fetched for one in objects) - before


PATH = "s3://data/set/contested"


class Contest:
    """Three nodes with caches of their own, and an object that they read at the same time."""

    def __init__(self, folder: Path, blocks: int = 1) -> None:
        self.data = random.Random(5).randbytes(blocks * SMALL - 5)
        self.nodes = {name: MemoryNode() for name in "abc"}
        self.spreads = {name: SpreadBlocks(name, print) for name in "abc"}
        for one in self.spreads.values():
            one.set_nodes(self.nodes)
        self.caches = {name: BlockCache(folder / name, 1 << 20, others=one) for name, one in self.spreads.items()}
        self.requested: list[tuple[str, int, int | None]] = []
        self.found: list[bytes] = []
        self.at_bucket: Callable[[str], object] = lambda name: None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> None:
        def ask(first: int, last: int | None, version: str) -> FileRange:
            self.requested.append((name, first, last))
            self.at_bucket(name)
            return FileRange(self.data[first:last], len(self.data), version)

        self.found.append(self.caches[name].read(ask, PATH, start, stop or len(self.data), "v").data)

    def read_at_once(self, *names: str) -> None:
        """Let nodes read everything, each in a thread."""
        threads = [threading.Thread(target=self._try_to_read, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _try_to_read(self, name: str) -> None:
        with contextlib.suppress(ConnectionError):
            self.read(name)

    def read_behind(self, first: str, other: str, then: Callable[[str], object]) -> None:
        """Let another one read while the first is at the bucket, where it stays until that has asked several times."""
        coming = threading.Event()

        def at_bucket(name: str) -> None:
            if name == first:
                coming.set()
                before = self.looks()
                until(lambda: self.looks() >= before + 6, "the other one does not wait", 60)
                then(name)

        self.at_bucket = at_bucket
        begun = threading.Thread(target=self._try_to_read, args=(first,))
        begun.start()
        assert coming.wait(60)
        self.read_at_once(other)
        begun.join()

    def key(self, number: int) -> str:
        return ObjectBlocks(PATH, "v", None).key(number)

    def owner(self, number: int = 0) -> str:
        return next(name for name in "abc" if not self.spreads[name].elsewhere(self.key(number)))

    def readers(self) -> list[str]:
        """Return nodes that look on the owner's disk."""
        return [name for name in "abc" if name != self.owner()]

    def looks(self) -> int:
        return sum(node.looks for node in self.nodes.values())


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's time is up in a test that is slow."""
    monkeypatch.setattr(spread, "TURN_S", 600.0)


@pytest.mark.usefixtures("small_blocks", "endless")
@pytest.mark.parametrize("fails", [False, True])
def test_of_nodes_that_miss_a_block_one_fetches_it_and_if_it_fails_another(tmp_path: Path, fails: bool) -> None:
    contest = Contest(tmp_path)
    first, second = contest.readers()

    def fail(name: str) -> None:
        if fails:
            raise ConnectionError("the bucket does not answer")

    contest.read_behind(first, second, fail)
    assert contest.found == [contest.data] * (1 if fails else 2)
    assert [name for name, _, _ in contest.requested] == ([first, second] if fails else [first])
    until(lambda: not any(len(node.fetching) for node in contest.nodes.values()), "a turn is left", 60)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "how", ["its process is gone", "its node is gone", "it is not known", "the owner is lost", "it takes too long"]
)
def test_nobody_waits_for_one_that_brings_nothing(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "TURN_S", 0.05 if how == "it takes too long" else 600.0)
    contest = Contest(tmp_path)
    owner = contest.nodes[contest.owner()]
    reader, other = contest.readers()
    if how == "its process is gone":
        contest.nodes[other].dead.add(77)
    contest.nodes[other].lost = how == "its node is gone"
    owner.claim_blocks([contest.key(0)], Fetcher("unknown" if how == "it is not known" else other, 77, 0))
    if how == "the owner is lost":
        owner.before_answer = lambda: setattr(owner, "lost", owner.looks > 3)
    contest.read(reader)
    assert contest.found == [contest.data] and [name for name, _, _ in contest.requested] == [reader]


# --- jobs on other nodes ------------------------------------------------------------------------------------


def test_jobs_on_different_nodes_that_read_the_same_data_know_of_one_another(tmp_path: Path) -> None:
    nodes = {name: MemoryNode() for name in "abc"}
    spreads = {name: SpreadBlocks(name, print, lambda: 0.0) for name in "abc"}
    jobs = {"a": "one", "b": "one", "c": "two"}  # two processes of one job, and another job, which begins later
    caches = {name: BlockCache(tmp_path / name, 1 << 20, job=job, others=spreads[name]) for name, job in jobs.items()}
    objects = some_objects()
    for begins, company in (("ab", False), ("c", True)):
        for name in begins:
            spreads[name].set_nodes(nodes)
            objects[0].read(caches[name], 0, 10)
        for name in "abc" * 2:
            spreads[name].exchange_readers()
        assert caches["a"].is_shared == caches["b"].is_shared == company
    read_all(objects, caches["a"])
    until(lambda: spreads["a"].idle, "blocks are not sent")
    assert any(block.shared for node in nodes.values() for block in node.blocks.values()), (
        "owners are told to keep what came last"
    )
    for node in nodes.values():
        node.readers = Readers()
    for name in "ab":
        spreads[name].exchange_readers()
    assert not caches["a"].is_shared
