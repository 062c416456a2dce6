"""Blocks that several nodes miss at the same time, and jobs on different nodes that read the same data."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pecan_ray.cache.fetch_turns import Fetcher
from pecan_ray.cache.readers import READS_S, Readers
from pecan_ray.storage import BlockCache, block_cache, spread
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.spread import SpreadBlocks
from tests.ray.waiting import until
from tests.unit.cache.memory_nodes import BLOCK, MemoryNode, Objects

PATH = "s3://data/set/contested"


class Contest:
    """Three nodes with caches of their own, and an object that they read at the same time."""

    def __init__(self, folder: Path, blocks: int = 1) -> None:
        self.data = random.Random(5).randbytes(blocks * BLOCK - 5)
        self.nodes = {name: MemoryNode() for name in "abc"}
        self.spreads = {name: SpreadBlocks(name, print) for name in "abc"}
        for one in self.spreads.values():
            one.know(self.nodes)
        self.caches = {name: BlockCache(folder / name, 1 << 20, others=one) for name, one in self.spreads.items()}
        self.asked: list[tuple[str, int, int | None]] = []
        self.found: list[bytes] = []
        self.at_bucket: Callable[[str], object] = lambda name: None
        self.threads: list[threading.Thread] = []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> None:
        def ask(first: int, last: int | None, version: str) -> FileRange:
            self.asked.append((name, first, last))
            self.at_bucket(name)
            return FileRange(self.data[first:last], len(self.data), version)

        self.found.append(self.caches[name].read(ask, PATH, start, stop or len(self.data), "v").data)

    def begin(self, name: str) -> None:
        """Let a node read everything, in a thread."""

        def run() -> None:
            with contextlib.suppress(ConnectionError):
                self.read(name)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def begin_behind(self, first: str, others: list[str], then: Callable[[str], object]) -> None:
        """Let others read while the first one is at the bucket, where it stays until they have asked several times."""
        coming = threading.Event()

        def at_bucket(name: str) -> None:
            if name == first:
                coming.set()
                before = self.looks()
                until(lambda: self.looks() >= before + 6, "the others do not wait", 60)
                then(name)

        self.at_bucket = at_bucket
        self.begin(first)
        assert coming.wait(60)
        for name in others:
            self.begin(name)

    def end(self) -> None:
        for thread in self.threads:
            thread.join()

    def key(self, number: int) -> str:
        return block_cache._key(PATH, "v", number)

    def owner(self, number: int = 0) -> str:
        return next(name for name in "abc" if not self.spreads[name].elsewhere(self.key(number)))

    def readers(self, *, own: bool = False) -> list[str]:
        """Return nodes that look on the owner's disk, behind the owner itself if it reads as well."""
        return [name for name in "abc" if name == self.owner()] * own + [name for name in "abc" if name != self.owner()]

    def looks(self) -> int:
        return sum(node.looks for node in self.nodes.values())


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's time is up in a test that is slow."""
    monkeypatch.setattr(spread, "TURN_S", 600.0)


@pytest.mark.usefixtures("small_blocks", "endless")
@pytest.mark.parametrize("own", [True, False], ids=["its own block", "another node's block"])
def test_of_nodes_that_miss_a_block_together_one_fetches_it(tmp_path: Path, own: bool) -> None:
    contest = Contest(tmp_path)
    first, *others = contest.readers(own=own)
    if own:  # what is on a node's disk its actor finds there
        node, cache = contest.nodes[first], contest.caches[first]
        block = {contest.key(0): (contest.data, len(contest.data))}
        node.before_answer = lambda: node.blocks.update(block) if cache.holds(PATH, "v", 0, len(contest.data)) else None
    contest.begin_behind(first, others, lambda name: None)
    contest.end()
    assert contest.found == [contest.data] * (1 + len(others))
    assert [name for name, _, _ in contest.asked] == [first]
    until(lambda: not any(len(node.fetching) for node in contest.nodes.values()), "a turn is left", 60)


@pytest.mark.usefixtures("small_blocks", "endless")
def test_when_it_fails_another_one_fetches(tmp_path: Path) -> None:
    contest = Contest(tmp_path)
    first, second = contest.readers()

    def fail(name: str) -> None:
        raise ConnectionError("the bucket does not answer")

    contest.begin_behind(first, [second], fail)
    contest.end()
    assert contest.found == [contest.data]
    assert [name for name, _, _ in contest.asked] == [first, second]


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
    owner.turns([contest.key(0)], Fetcher("unknown" if how == "it is not known" else other, 77, 0))
    if how == "the owner is lost":
        owner.before_answer = lambda: setattr(owner, "lost", owner.looks > 3)
    contest.read(reader)
    assert contest.found == [contest.data] and [name for name, _, _ in contest.asked] == [reader]


@pytest.mark.usefixtures("small_blocks", "endless")
def test_readers_do_not_wait_for_each_other_where_nothing_finds_room(tmp_path: Path) -> None:
    contest = Contest(tmp_path, blocks=16)
    for name, node in contest.nodes.items():
        node.full = True
        contest.caches[name] = BlockCache(None, 0, others=contest.spreads[name])
    contest.caches["a"].read(lambda *_: FileRange(contest.data[:BLOCK], len(contest.data), "v"), PATH, 0, 1, "v")
    contest.caches["b"].read(lambda *_: FileRange(contest.data[:BLOCK], len(contest.data), "v"), PATH, 0, 1, "v")
    next_reads = {name: contest.spreads[name].missed().by for name in "ab"}
    for number in range(1, 16):  # each has the turns at every other block, and is done when the other one is
        by = next_reads["ab"[number % 2]]
        contest.nodes[contest.owner(number)].turns([contest.key(number)], by._replace(number=by.number + 1))
    for name in ("a", "b"):
        contest.begin(name)
    contest.end()
    assert contest.found == [contest.data] * 2


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_read_everything_at_once_have_it_and_fetch_little_twice(tmp_path: Path, seed: int) -> None:
    contest = Contest(tmp_path, blocks=40)
    for name in "abc":
        contest.begin(name)
    contest.end()
    assert contest.found == [contest.data] * 3


# --- jobs on other nodes ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_jobs_on_different_nodes_that_read_the_same_data_know_of_one_another(tmp_path: Path) -> None:
    nodes, now = {name: MemoryNode() for name in "abc"}, [0.0]
    spreads = {name: SpreadBlocks(name, print, lambda: now[0]) for name in "abc"}
    for one in spreads.values():
        one.know(nodes)
    # Two processes of one job on two nodes, and another job, which begins later.
    jobs = {"a": "one", "b": "one", "c": "two"}
    caches = {name: BlockCache(tmp_path / name, 1 << 20, job=job, others=spreads[name]) for name, job in jobs.items()}
    objects = Objects()

    def read(names: str) -> None:
        for name in names:
            objects.read(caches[name], next(iter(objects.contents)), 0, 10)
        for _ in range(2):
            for name in "abc":
                spreads[name].meet()

    read("ab")
    assert not caches["a"].among_several and not caches["b"].among_several
    read("c")
    assert all(cache.among_several for cache in caches.values())
    objects.read_all(caches["a"])
    until(lambda: spreads["a"].idle, "blocks are not sent")
    assert any(node.shared for node in nodes.values()), "owners are told to keep what came last"
    del spreads["c"], caches["c"]
    now[0] += READS_S + 1
    assert caches["a"].among_several, "as was heard last"
    for node in nodes.values():
        node.readers = Readers()
    for name in "ab":
        spreads[name].meet()
    assert not caches["a"].among_several
