"""Jobs that read the same data through one folder of a node, each first what is there: what they read remotely."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from pecan_ray.cache import EvictionPolicy
from pecan_ray.caching.store import EntryStore
from pecan_ray.job.lease_requests import LEAST_LOOK
from pecan_ray.job.pass_order import Listing
from pecan_ray.job.split_queue import SplitQueue
from pecan_ray.plan.splits import Split
from pecan_ray.sampling.random_keys import SplitOrder
from pecan_ray.storage import BlockCache, co_readers
from pecan_ray.storage.co_readers import PRESENT_S, RENEW_S, ReaderRegistry
from tests.unit.storage.conftest import SMALL, StoredObject

BLOCK = SMALL
OBJECTS, JOBS, EPOCHS = 60, 4, 3
ROOM = OBJECTS * BLOCK // 5


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a job see at each read who else reads."""
    monkeypatch.setattr(co_readers, "LOOK_S", -1.0)


def path_of(number: int) -> str:
    return f"s3://data/set/{number:04}"


class ReadingJob:
    """A job as far as it reads: its queue, and a worker with its view of the node's folder."""

    def __init__(self, number: int, objects: list[StoredObject], cache: BlockCache) -> None:
        listing = Listing()
        listing.add([Split(index) for index in range(OBJECTS)])
        listing.complete = True
        self.queue = SplitQueue(listing, 0, SplitOrder(1000 + number))
        self.cache, self._objects, self._at_hand = cache, objects, tuple[int, ...]()
        self.epoch, self.read = 0, list[int]()

    def step(self) -> None:
        lease = self.queue.take(deque(self._at_hand))
        if lease is None:
            assert sorted(self.read) == list(range(OBJECTS)), "an epoch has each element once"
            self.epoch += 1
            self.queue.begin(self.epoch, 0)
            self.read = []
            return
        stored = self._objects[lease.split.index]
        assert stored.read(self.cache, 0, BLOCK) == stored.data
        self.read.append(lease.split.index)
        offered = self.queue.peek_splits(LEAST_LOOK) if self.cache.is_shared else []
        self._at_hand = tuple(one.index for one in offered if self.cache.holds(path_of(one.index), "v1", 0, BLOCK))


def passes_read(folder: Path, *, named: bool, policy: EvictionPolicy) -> float:
    """Let jobs read in turn; return passes over the data they fetched."""
    objects = [StoredObject(number.to_bytes(4, "big") * (BLOCK // 4), path_of(number)) for number in range(OBJECTS)]
    caches = [BlockCache(folder, ROOM, job=f"job-{n}" * named, policy=policy) for n in range(JOBS)]
    reading = [ReadingJob(n, objects, cache) for n, cache in enumerate(caches)]
    while any(job.epoch < EPOCHS for job in reading):
        for job in reading:
            if job.epoch < EPOCHS:
                job.step()
    for cache in caches:
        cache.close()
    return sum(len(stored.requested) for stored in objects) / OBJECTS / EPOCHS


@pytest.mark.usefixtures("small_blocks")
def test_four_jobs_in_different_orders_read_together_little_more_than_one_does(tmp_path: Path) -> None:
    assert passes_read(tmp_path / "ours", named=True, policy="resident") <= 1.15
    assert passes_read(tmp_path / "lru", named=False, policy="lru") > 3.2


# --- who is there -------------------------------------------------------------------------------------------


def test_jobs_know_of_one_another_as_long_as_they_read(tmp_path: Path) -> None:
    now = [1000.0]
    with EntryStore(tmp_path, max_bytes=1 << 20) as one, EntryStore(tmp_path, max_bytes=1 << 20) as other:
        first, second = (ReaderRegistry(store, name, lambda: now[0]) for store, name in ((one, "a"), (other, "b")))
        again = ReaderRegistry(other, "a", lambda: now[0])
        first.reads("s3://data")
        again.reads("s3://data")
        assert not first.several("s3://data"), "two processes of one job are no company"
        second.reads("s3://data")
        second.reads("s3://other")
        now[0] += 2.0
        assert first.several("s3://data") and second.several("s3://data") and not second.several("s3://other")
        assert first.is_read_elsewhere()
        now[0] += PRESENT_S - RENEW_S
        assert first.is_read_elsewhere() and second.several("s3://data"), "who looks for work is there"
        now[0] += PRESENT_S - 2.0
        assert second.several("s3://data") and not first.several("s3://data")
        assert set(one.notes("reads\ns3://data\n")) == {"a"}, "what is old is removed"
