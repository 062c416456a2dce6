"""Blocks that lie on other nodes' disks: each belongs to one node, by its name, and that node is asked.

Other nodes may be lost, hang, or come back.  Then nobody waits for them again and again: one that has not answered is
left alone for a while, and its blocks belong to the others meanwhile; they come from the bucket.  Nothing here raises.

Of reads that miss a block together one fetches it, as the node that it belongs to says; the others wait for it a while.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from pecan_ray.cache.fetch_claims import TURN_S, Fetcher
from pecan_ray.cache.readers import READS_S
from pecan_ray.cache.rendezvous_hash import RendezvousHash
from pecan_ray.job.messages import DatasetRooms
from pecan_ray.storage.threads import RequestThreads

# docs/decisions/shared-cache-and-pipe.md#68-blocks-on-other-nodes, as the next two.
AWAY_S = 5.0
"""Seconds for which a node is left alone that has not answered; twice as long after each further time."""
MOST_AWAY_S = 120.0
"""Most seconds for which a node is left alone."""
TRIED_S = 10.0
"""Then one asks it, and the others wait so long for what becomes of that."""
BEHIND_BYTES = 64 << 20
"""Blocks that are on their way to other nodes, 64 of them; further ones are not kept, and come from the bucket
again."""
WRITES = 4
"""Blocks that are sent at a time."""
# docs/decisions/shared-cache-and-pipe.md#77-one-of-several-nodes-fetches, as the next three.
LOOK_S = 0.01
"""Whoever waits for a block that another one fetches asks after so long, and then after twice that."""
MOST_LOOK_S = 0.1
"""Most seconds between two of these questions."""
LOOKS_OF_ONE = 4
"""After so many of these questions it asks each time whether the other one still runs."""

ASKED_S = 2.0
"""Where nodes take so long to tell what they have, no further one is asked."""

T = TypeVar("T")


class SentBlock(NamedTuple):
    """A block that is to be kept."""

    key: str
    dataset: str
    data: bytes
    object_bytes: int
    """Of the object that it is a part of."""
    by: Fetcher | None = None
    """Whose turn it is to bring it; None: nobody waits for it."""
    shared: bool = False
    """Several jobs read its dataset, each first what is there: what has come first goes first."""


class CacheNode(Protocol):
    """Another node's blocks; its methods raise OSError where it does not answer soon."""

    def sizes(self, keys: list[str]) -> dict[str, int]:
        """Return which of some blocks are there, with the sizes of their objects."""

    def claim_blocks(self, keys: list[str], by: Fetcher) -> tuple[dict[str, int], dict[str, Fetcher]]:
        """Return which of some blocks are there, and who fetches which others; the rest `by` fetches from now on."""

    def cancel_fetch(self, keys: list[str], by: Fetcher) -> None:
        """Take notice that `by` does not fetch these blocks, or keeps them nowhere."""

    def runs(self, process: int) -> bool:
        """Tell whether a process of that node still runs."""

    def reads(self, job: str, datasets: list[str]) -> tuple[str, ...]:
        """Take notice that a job reads some datasets; return those that other jobs read too."""

    def get(self, key: str) -> bytes | None:
        """Return a block."""

    def put(self, block: SentBlock, cache_limits: DatasetRooms) -> bool:
        """Keep a block, and tell whether it is there now; `cache_limits`: what may be kept of datasets."""


@dataclass
class BlockMisses:
    """The blocks that a read misses on its node, and what becomes of them."""

    by: Fetcher
    until: float
    """No longer it waits for others, by the monotonic clock."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Blocks that other nodes have, with the sizes of their objects."""
    fetched_by_others: dict[str, Fetcher] = field(default_factory=dict)
    """Blocks that other reads fetch."""
    mine: set[str] = field(default_factory=set)
    """Blocks that this read is to fetch, as it has told their owners."""

    def is_missing(self, key: str) -> bool:
        """Tell whether no other node has a block, and no other read fetches it, as far as is known."""
        return key not in self.sizes and key not in self.fetched_by_others


@dataclass
class _NodeBackoff:
    until: float
    for_s: float


class SpreadBlocks:
    """The other nodes' blocks, as one process sees them; threads may use it side by side."""

    def __init__(self, here: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`here`: the name of this node; `say` is told of what is wrong, from any thread."""
        self._here, self._say, self._clock = here, say, clock
        self._write_threads = RequestThreads(WRITES)
        self._numbers = itertools.count()
        self._read: dict[tuple[str, str], float] = {}
        """When each job of this process has last read which dataset."""
        self._shared: frozenset[str] = frozenset()
        """Datasets that other jobs read too, also on other nodes."""
        self._lock = threading.Lock()
        """Guards all below."""
        self._nodes: Mapping[str, CacheNode] = {}
        self._owner_map = RendezvousHash()
        self._unavailable: dict[str, _NodeBackoff] = {}
        self._behind = 0
        self.cache_limits: DatasetRooms = ()
        """What may be kept of datasets; empty: nobody bounds that."""

    def set_nodes(self, nodes: Mapping[str, CacheNode]) -> None:
        """Take these for the nodes that there are, this one among them; one that was started anew is not away."""
        owners = RendezvousHash(nodes)
        with self._lock:
            # Another object for a known name is another actor: that node was started anew.
            for name in [name for name in self._unavailable if nodes.get(name) is not self._nodes.get(name)]:
                del self._unavailable[name]
            self._nodes, self._owner_map = dict(nodes), owners

    @property
    def idle(self) -> bool:
        """Return whether all that was put has been sent, or given up."""
        with self._lock:
            return not self._behind

    def elsewhere(self, key: str) -> bool:
        """Tell whether a block belongs to another node than this one."""
        with self._lock:
            return self._owner(key) is not None

    def reads(self, job: str, dataset: str) -> None:
        """Note that a job reads a dataset, for the other nodes to know."""
        self._read[job, dataset] = self._clock()

    def several(self, dataset: str) -> bool:
        """Tell whether other jobs read a dataset too, also on other nodes, as far as was heard."""
        return dataset in self._shared

    def exchange_readers(self) -> None:
        """Tell the nodes that datasets belong to, by their names, who reads them, and hear who else does."""
        now, shared = self._clock(), set[str]()
        told: dict[str, list[str]] = {}
        # Of a copy, because reads add to it without the lock.
        for (job, dataset), read in list(self._read.items()):
            if now - read > READS_S:
                del self._read[job, dataset]
            else:
                told.setdefault(job, []).append(dataset)
        for job, datasets in told.items():
            for node, named in self._by_owner(datasets).items():
                shared |= set(self._ask(node, _reading(job, named)) or ())
        self._shared = frozenset(shared)

    def sizes(self, keys: Iterable[str]) -> dict[str, int]:
        """Return which of some blocks other nodes have, with the sizes of their objects: one question to each node."""
        found: dict[str, int] = {}
        until = self._clock() + ASKED_S
        for node, wanted in self._by_owner(keys).items():
            if node != self._here and self._clock() < until:
                found |= self._ask(node, _sizes_of(wanted)) or {}
        return found

    def new_misses(self) -> BlockMisses:
        """Return the beginning of a read, which has missed nothing yet."""
        return BlockMisses(Fetcher(self._here, os.getpid(), next(self._numbers)), time.monotonic() + TURN_S)

    def ask(self, missed: BlockMisses, keys: Iterable[str]) -> None:
        """Ask the owners of blocks that a read misses: whether they have them, and who fetches them; each once."""
        until = self._clock() + ASKED_S
        for node, wanted in self._by_owner(keys).items():
            # Decision 77: owners that are lost cost a read two seconds in all.
            answer = self._ask(node, _claim_at(wanted, missed.by)) if self._clock() < until else None
            if answer is not None:
                sizes, theirs = answer
                missed.sizes |= sizes
                missed.fetched_by_others |= theirs
                missed.mine |= {key for key in wanted if key not in sizes and key not in theirs}

    def wait(self, missed: BlockMisses, key: str) -> None:
        """Wait until a block that another read fetches has come, or is this one's to fetch, also since time is up."""
        pause, looks = LOOK_S, 0
        # Taken out: `ask` puts it back as long as another read fetches it.
        while (by := missed.fetched_by_others.pop(key, None)) is not None:
            if time.monotonic() >= missed.until:  # it may have come while this read fetched what is its own
                self.ask(missed, [key])
                missed.fetched_by_others.pop(key, None)
                return
            # Decision 77: asked again and again, because answers that wait for a block would fill the owner's threads.
            # Then the block itself could not come.
            time.sleep(pause)
            pause, looks = min(2 * pause, MOST_LOOK_S), looks + 1
            if looks % LOOKS_OF_ONE == 0 and not self._ask(by.node, _running(by.process)):
                # Decision 77: a reader that dies is found out by those who wait for it.
                self._cancel_fetch([key], by)
            self.ask(missed, [key])

    def end(self, missed: BlockMisses) -> None:
        """Let others fetch what a read has not sent to those that it belongs to.  Returns at once."""
        # Decision 77: nobody shall wait for a read that has failed, or could not send what it has.
        if missed.mine:
            self._write_threads.start(partial(self._cancel_fetch, list(missed.mine), missed.by))
            missed.mine = set()

    def get(self, key: str) -> bytes | None:
        """Return a block that belongs to another node, if it is there and comes soon."""
        with self._lock:
            node = self._owner(key)
        return None if node is None else self._ask(node, lambda one: one.get(key))

    def put(self, block: SentBlock) -> bool:
        """Let a block be kept by the node that it belongs to, which is another one; tell whether it is on its way."""
        with self._lock:
            node, nbytes = self._owner(block.key), len(block.data)
            # Decision 68: the bucket is the second copy, so a block that is not kept is no loss.
            # Where nothing else is on its way a block of any size may go.
            if node is None or (self._behind and self._behind + nbytes > BEHIND_BYTES):
                return False
            self._behind += nbytes
        self._write_threads.start(partial(self._send, node, block))
        return True

    # --- inside --------------------------------------------------------------------------------------------

    def _owner(self, key: str) -> str | None:
        """Return the other node that a block belongs to; the caller holds the lock.

        What belongs to this node lies on its own disk, whether its actor answers or not.
        """
        now = self._clock()
        # Decision 68: by the same hash others take over the part of a node that does not answer.
        gone = [name for name, away in self._unavailable.items() if now < away.until and name != self._here]
        owner = self._owner_map.owner(key, gone)
        return None if owner == self._here else owner

    def _by_owner(self, keys: Iterable[str]) -> dict[str, list[str]]:
        """Return which node each block belongs to, this one among them; nothing where there is no other."""
        asked: dict[str, list[str]] = {}
        with self._lock:
            if len(self._nodes) > 1:
                for key in keys:
                    asked.setdefault(self._owner(key) or self._here, []).append(key)
        return asked

    def _cancel_fetch(self, keys: Collection[str], by: Fetcher) -> None:
        for node, given in self._by_owner(keys).items():
            self._ask(node, _release_call(given, by))

    def _send(self, node: str, block: SentBlock) -> None:
        try:
            kept = self._ask(node, lambda one: one.put(block, self.cache_limits))
            if kept is None and block.by is not None:
                self._tell_lost(node, block.key, block.by)
        finally:
            with self._lock:
                self._behind -= len(block.data)

    def _tell_lost(self, node: str, key: str, by: Fetcher) -> None:
        """Let others fetch a block that did not come where it belongs, though that node may be left alone by now."""
        with self._lock:
            asked = self._nodes.get(node)
        if asked is not None:
            with contextlib.suppress(OSError):  # then the turn ends by itself
                asked.cancel_fetch([key], by)

    def _ask(self, node: str, request: Callable[[CacheNode], T]) -> T | None:
        """Ask a node something; None where it does not answer, or was left alone meanwhile."""
        with self._lock:
            asked, away, now = self._nodes.get(node), self._unavailable.get(node), self._clock()
            if asked is None or (away is not None and now < away.until):
                return None
            if away is not None:  # its time is over: this one tries it, and the others see what comes of that
                away.until = now + TRIED_S
        try:
            answer = request(asked)
        except OSError as error:
            self._failed(node, asked, error, away)
            return None
        with self._lock:
            # Otherwise it is known anew, or another question has failed since: this answer tells nothing of
            # that.
            if self._nodes.get(node) is asked and self._unavailable.get(node) is away:
                self._unavailable.pop(node, None)
        return answer

    def _failed(self, node: str, asked: CacheNode, error: OSError, tried: _NodeBackoff | None) -> None:
        """Leave a node alone; `tried`: it was left alone before, and this one has tried it again."""
        with self._lock:
            if self._nodes.get(node) is not asked or self._unavailable.get(node) is not tried:
                return  # it is known anew, or another question has failed beside this one
            for_s = AWAY_S if tried is None else min(MOST_AWAY_S, 2 * tried.for_s)
            self._unavailable[node] = _NodeBackoff(self._clock() + for_s, for_s)
        self._say(f"another node does not answer, so what it holds comes from buckets: {node[:8]}, {error}")


def _sizes_of(keys: list[str]) -> Callable[[CacheNode], dict[str, int]]:
    return lambda node: node.sizes(keys)


def _claim_at(keys: list[str], by: Fetcher) -> Callable[[CacheNode], tuple[dict[str, int], dict[str, Fetcher]]]:
    return lambda node: node.claim_blocks(keys, by)


def _release_call(keys: list[str], by: Fetcher) -> Callable[[CacheNode], None]:
    return lambda node: node.cancel_fetch(keys, by)


def _running(process: int) -> Callable[[CacheNode], bool]:
    return lambda node: node.runs(process)


def _reading(job: str, datasets: list[str]) -> Callable[[CacheNode], tuple[str, ...]]:
    return lambda node: node.reads(job, datasets)
