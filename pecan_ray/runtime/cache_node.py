"""Blocks of buckets that nodes keep for one another: an actor on each node that has workers, and who asks it.

The actor serves the node's folder to other nodes; whoever is on the node opens the folder.  It belongs to the worker
that has started it, and ends with that one: then another worker of the node starts it anew.  What it holds lies on the
disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from pecan_ray.cache.fetch_claims import FetchClaims, Fetcher
from pecan_ray.cache.readers import Readers
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.errors import CacheError
from pecan_ray.job.messages import DatasetRooms
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.cluster import NAMESPACE, local_selector, named_actors, this_node
from pecan_ray.runtime.messages import Job
from pecan_ray.storage import SentBlock, SpreadBlocks, keep_source_bytes

logger = logging.getLogger("pecan_ray.storage")

PREFIX = "pecan:blocks:"
# Decision 68: blocks are in the bucket too, so a slow node is worth no longer wait.
ANSWER_S = 2.0
"""A node that has not answered after so long is left alone for a while."""
LOOK_S = 2.0
"""Least seconds between two looks of a worker for the nodes that there are: a new node serves blocks that soon."""
LOOKS_PER_S = 50
"""Most looks a second of all workers together: with many workers each looks more seldom."""
THREADS = 8
"""Questions that an actor answers side by side: each reads a disk, and eight keep one busy."""


PROTOCOL = 3
"""Of the questions that actors answer: those of other versions are not asked."""


class NodeBlocks:
    """The blocks on a node's disk, for processes on other nodes; run as a Ray actor."""

    def __init__(self, cache: Cache) -> None:
        self._lock = threading.Lock()
        """Guards all below."""
        self._claims, self._readers = FetchClaims(), Readers()
        self._store: EntryStore | None = None
        try:
            # Decision 52: a job reads each byte once an epoch, so one that is here is worth as much as one that comes.
            self._store = EntryStore(cache.source_folder, max_bytes=cache.source_bytes, policy="resident", by_kind=True)
        except CacheError as error:
            logger.warning("this node keeps no blocks of buckets for others: %s", error.message)

    def sizes(self, keys: list[str]) -> dict[str, int]:
        """Return which of some blocks are here, with the sizes of their objects."""
        with self._lock:
            return self._sizes(keys)

    def claim_blocks(self, keys: list[str], by: Fetcher) -> tuple[dict[str, int], dict[str, Fetcher]]:
        """Return which of some blocks are here, and who fetches which others; the rest `by` fetches from now on."""
        with self._lock:
            sizes, now = self._sizes(keys), time.monotonic()
            taken = {key: self._claims.take(key, by, now) for key in keys if key not in sizes}
        return sizes, {key: other for key, other in taken.items() if other is not None}

    def cancel_fetch(self, keys: list[str], by: Fetcher) -> None:
        """Take notice that `by` does not fetch these blocks, or keeps them nowhere."""
        with self._lock:
            self._claims.cancel_fetch(keys, by)

    def reads(self, job: str, datasets: list[str]) -> tuple[str, ...]:
        """Take notice that a job reads some datasets; return those that other jobs read too."""
        with self._lock:
            now = time.monotonic()
            self._readers.forget_old(now)
            return self._readers.report(job, datasets, now)

    @staticmethod
    def runs(process: int) -> bool:
        """Tell whether a process of this node still runs."""
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is another user's
            return True
        return True

    def _sizes(self, keys: list[str]) -> dict[str, int]:
        found = {key: self._store.about(key) for key in keys} if self._store is not None else {}
        return {key: about[1] for key, about in found.items() if about is not None}

    def get(self, key: str) -> bytes | None:
        """Return a block."""
        with self._lock:
            found = self._store.get(key) if self._store is not None else None
        return None if found is None else bytes(found)

    def put(self, block: SentBlock, cache_limits: DatasetRooms) -> bool:
        """Keep a block, as far as it has room; tell whether it is here now."""
        with self._lock:
            kept = False
            if self._store is not None:
                # Decision 60: rooms may change at any time, and whoever writes holds to them.
                self._store.bound(dict(cache_limits) if cache_limits else None)
                # Decision 54: of several jobs each takes what comes soon after it has come: the oldest was read by all.
                self._store.policy = "fifo" if block.shared else "resident"
                kept = self._store.put(block.key, block.dataset, [block.data], elements=block.object_bytes, seconds=0.0)
            if kept:
                self._claims.complete(block.key)
            else:  # those that have waited fetch it themselves
                self._claims.rejected(block.key, time.monotonic())
        return kept

    def place(self) -> tuple[str, int]:
        """Return the node and the process."""
        return this_node(), os.getpid()


class ActorNode:
    """Another node's actor, as a process sees it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def sizes(self, keys: list[str]) -> dict[str, int]:
        """Return which of some blocks are there, with the sizes of their objects."""
        found: dict[str, int] = _wait_for(self.actor.sizes.remote, keys)
        return found

    def claim_blocks(self, keys: list[str], by: Fetcher) -> tuple[dict[str, int], dict[str, Fetcher]]:
        """Return which of some blocks are there, and who fetches which others; the rest `by` fetches from now on."""
        found: tuple[dict[str, int], dict[str, Fetcher]] = _wait_for(self.actor.claim_blocks.remote, keys, by)
        return found

    def cancel_fetch(self, keys: list[str], by: Fetcher) -> None:
        """Take notice that `by` does not fetch these blocks, or keeps them nowhere."""
        _wait_for(self.actor.cancel_fetch.remote, keys, by)

    def reads(self, job: str, datasets: list[str]) -> tuple[str, ...]:
        """Take notice that a job reads some datasets; return those that other jobs read too."""
        found: tuple[str, ...] = _wait_for(self.actor.reads.remote, job, datasets)
        return found

    def runs(self, process: int) -> bool:
        """Tell whether a process of that node still runs."""
        found: bool = _wait_for(self.actor.runs.remote, process)
        return found

    def get(self, key: str) -> bytes | None:
        """Return a block."""
        found: bytes | None = _wait_for(self.actor.get.remote, key)
        return found

    def put(self, block: SentBlock, cache_limits: DatasetRooms) -> bool:
        """Keep a block; tell whether it is there now."""
        kept: bool = _wait_for(self.actor.put.remote, block, cache_limits)
        return kept


def _wait_for(ask: Callable[..., Any], *arguments: object) -> Any:
    """Wait for an answer; raises OSError where none comes soon."""
    try:
        return ray.get(ask(*arguments), timeout=ANSWER_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ConnectionError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error


def pool_prefix(cache: Cache) -> str:
    """Return how the names of the actors begin that keep blocks together: those of jobs with the same settings.

    What a path means may differ from node to node.
    """
    message = f"{PROTOCOL}\0{cache.path}\0{cache.source_bytes}"
    return f"{PREFIX}{hashlib.blake2b(message.encode(), digest_size=4).hexdigest()}:"


def pool_nodes(cache: Cache) -> int:
    """Return how many nodes keep blocks for one another."""
    prefix = pool_prefix(cache)
    return sum(name.startswith(prefix) for name in named_actors())


# Why members are listed and not registered:
# docs/decisions/shared-cache-and-pipe.md#68-blocks-on-other-nodes
class CacheNodeTracker:
    """Keeps what a worker knows of the nodes up to date, and its own node's actor alive."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._here = cache, this_node()
        self._prefix = pool_prefix(cache)
        self._nodes: dict[str, ActorNode] = {}
        self._coming: dict[str, tuple[ActorNode, Any]] = {}
        """Nodes that have not answered yet, with what they were asked."""
        self._own: Any = None
        """The handle of an actor that this process has started: without one it would end."""
        self.blocks = SpreadBlocks(self._here, lambda text: logger.warning("%s", text))

    def start(self) -> SpreadBlocks:
        """Begin, in a thread that ends with the process; return what reads ask."""
        threading.Thread(target=self._poll_loop, name="pecan-blocks", daemon=True).start()
        return self.blocks

    def _poll_loop(self) -> None:
        while True:
            try:
                self._look()
            except (ray.exceptions.RayError, ValueError, OSError) as error:
                logger.info("the nodes that keep blocks of buckets cannot be listed: %s", error)
            time.sleep(max(LOOK_S, len(self._nodes) / LOOKS_PER_S))

    def _look(self) -> None:
        listed = {name[len(self._prefix) :] for name in named_actors() if name.startswith(self._prefix)}
        if self._here not in listed:
            # Decision 68: the actor ends with the worker that has started it, and another worker starts it anew.
            self._begin()
            listed.add(self._here)
        found: dict[str, ActorNode] = {}
        for node in listed:
            try:
                actor: Any = ray.get_actor(f"{self._prefix}{node}", namespace=NAMESPACE)
            except ValueError:  # it has ended meanwhile
                continue
            known = self._nodes.get(node)
            if known is not None and known.actor._actor_id == actor._actor_id:
                # The same object as before: `SpreadBlocks.set_nodes` takes another one for a node that was started
                # anew.
                found[node] = known
            elif (new := self._ready_node(node, actor)) is not None:
                found[node] = new
        if found != self._nodes:
            self._nodes = found
            self.blocks.set_nodes(found)
        self.blocks.exchange_readers()

    def _ready_node(self, node: str, actor: Any) -> ActorNode | None:
        """Return a node that is new once it answers: nobody need wait for its start."""
        coming = self._coming.get(node)
        if coming is None or coming[0].actor._actor_id != actor._actor_id:
            coming = self._coming[node] = ActorNode(actor), actor.place.remote()
        new, asked = coming
        if not ray.wait([asked], timeout=0.1)[0]:
            return None
        del self._coming[node]
        try:
            ray.get(asked)
        except ray.exceptions.RayError:  # it has ended, or cannot start; it is asked again if it is listed still
            return None
        return new

    def _begin(self) -> None:
        """Start this node's actor, unless another worker just does."""
        made = actor(
            NodeBlocks,
            f"{self._prefix}{self._here}",
            local_selector(self._here),
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=THREADS,
            # Each question about blocks is a call, which would fill the dashboard's table of tasks.
            enable_task_events=False,
        )
        self._own = made.remote(self._cache)


def keep_blocks(job: Job) -> None:
    """Let this process, a worker of a job, keep what it reads of buckets as the job's settings say."""
    cache, spec = job.config.cache, job.spec
    others = CacheNodeTracker(cache).start() if cache.spread else None
    keep_source_bytes(cache, spec.name if spec.shape.any_order else "", others)
