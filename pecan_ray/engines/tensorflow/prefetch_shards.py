"""The next shard of a user's tf.data pipeline is opened by a thread, while the one before it is read.

To open a shard takes 40 ms of CPU and more: the user's function is called, TensorFlow optimizes its graph, and the
first element goes through all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from pecan_ray.engines.contract import ConcurrentLeases, Leases
from pecan_ray.plan.splits import Lease


class Shard(Protocol):
    """A shard that was opened."""

    @property
    def may_prefetch_next(self) -> bool:
        """Return whether the next shard may be opened while this one is read."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


S = TypeVar("S", bound=Shard)


class PrefetchedShards(Generic[S]):
    """The shards of one assignment, each of which is opened before its turn if that takes no lease from others."""

    def __init__(self, leases: Leases, open_shard: Callable[[Lease], S]) -> None:
        self._leases, self._open = leases, open_shard
        self._next: Future[S | None] | None = None

    def take(self) -> S | None:
        """Return the next shard; None at the end."""
        ahead, self._next = self._next, None
        shard = None if ahead is None else ahead.result()
        # Asked anew if nothing was opened ahead: None there only said that no lease was to be had beside
        # another one.
        if shard is None:
            lease = self._leases.take()
            shard = None if lease is None else self._open(lease)
        if shard is not None and shard.may_prefetch_next and isinstance(self._leases, ConcurrentLeases):
            self._next = Future()
            threading.Thread(
                target=self._open_next, args=(self._leases, self._next), name="pecan-next-shard", daemon=True
            ).start()
        return shard

    def _open_next(self, leases: ConcurrentLeases, opened: Future[S | None]) -> None:
        try:
            # Branch 0, one being read, two wanted at a time.
            lease = leases.take_concurrent(0, 1, 2)
            opened.set_result(None if lease is None else self._open(lease))
        except BaseException as error:
            opened.set_exception(error)

    def close(self) -> None:
        """Give up the shard that was opened ahead, as soon as it is there."""
        if self._next is not None:
            # A callback and no wait: opening may take long, and a stretch that is left should end at once.
            self._next.add_done_callback(_close_shard)


def _close_shard(opened: Future[S | None]) -> None:
    if opened.exception() is None and (shard := opened.result()) is not None:
        shard.close()
