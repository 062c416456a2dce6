"""Nodes that keep blocks for one another, in this process, and objects of a bucket that are read through them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from pecan_ray.cache.fetch_claims import FetchClaims, Fetcher
from pecan_ray.cache.readers import Readers
from pecan_ray.job.messages import DatasetRooms
from pecan_ray.storage import BlockCache
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.spread import SentBlock

BLOCK = 64
"""Bytes of a block."""


class MemoryNode:
    """Another node, in this process."""

    def __init__(self) -> None:
        self.blocks: dict[str, tuple[bytes, int]] = {}
        self.cache_limits: DatasetRooms = ()
        self.shared = False
        self.full = False
        """Whether it lets nothing in."""
        self.requested, self.lost = 0, False
        self.fetching, self.readers, self.dead = FetchClaims(), Readers(), set[int]()
        self.looks = 0
        """Questions who fetches."""
        self.lock = threading.Lock()
        """Guards who fetches."""
        self.before_answer: Callable[[], object] = lambda: None
        self.spoil: Callable[[bytes], bytes] = lambda data: data

    def _answers(self) -> None:
        self.requested += 1
        self.before_answer()
        if self.lost:
            raise ConnectionError("it is gone")

    def sizes(self, keys: list[str]) -> dict[str, int]:
        self._answers()
        return {key: self.blocks[key][1] for key in keys if key in self.blocks}

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
        return self.spoil(self.blocks[key][0]) if key in self.blocks else None

    def put(self, block: SentBlock, cache_limits: DatasetRooms) -> bool:
        self._answers()
        with self.lock:
            if self.full:
                self.fetching.rejected(block.key, 0.0)
                return False
            self.fetching.complete(block.key)
        self.blocks[block.key], self.cache_limits = (block.data, block.object_bytes), cache_limits
        self.shared = self.shared or block.shared
        return True


class Objects:
    """Objects of some blocks each."""

    def __init__(self, count: int = 30, blocks: int = 4) -> None:
        self.contents = {f"s3://data/set/{n}": random.Random(n).randbytes(blocks * BLOCK - 5) for n in range(count)}
        self.requested = 0

    def read(self, cache: BlockCache, path: str, start: int = 0, stop: int | None = None) -> None:
        data = self.contents[path]

        def ask(first: int, last: int | None, version: str) -> FileRange:
            self.requested += len(data[first:last])
            return FileRange(data[first:last], len(data), version)

        piece = cache.read(ask, path, start, stop, "v")
        assert piece.data == data[start:stop] and piece.size == len(data)

    def read_all(self, cache: BlockCache) -> int:
        """Read everything; return what was asked for."""
        before = self.requested
        for path, data in self.contents.items():
            self.read(cache, path, 0, len(data))
        return self.requested - before

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.contents.values()))
