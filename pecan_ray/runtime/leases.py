"""A worker's leases: asked for before they are needed, several in one call where they are soon done."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import ray

from pecan_ray.plan.splits import Lease

LOT_S = 0.5
"""Leases that take less time are asked for in lots of about so much;"""
MOST_IN_LOT = 256
AHEAD_S = 1.0
"""and the next lot while the last one is being worked on, if a lease takes less than this: what a worker holds and has
not begun, no other one can do at the end of an epoch."""

Lengths = list[tuple[tuple[int, int, int], int]]
"""Lease key -> elements that the split holds."""


@dataclass
class Branch:
    """What a worker holds of one source."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Whoever takes a lease waits for it with this."""
    here: deque[Lease] = field(default_factory=deque)
    asked: Any = None
    """The answer to come."""
    lease_s: float | None = None
    """How long a lease takes, lately."""
    given: float | None = None
    """When the last one was handed out."""


def lot_of(lease_s: float | None) -> int:
    """Return how many leases to ask for at a time, given how long one takes; None: not known yet."""
    if lease_s is None:
        return 1
    return max(1, min(MOST_IN_LOT, int(LOT_S / max(lease_s, 1e-9))))


class WorkerLeases:
    """The controller's leases, as the engine sees them."""

    def __init__(self, worker: str, controller: Any, *, ahead: bool) -> None:
        """`ahead`: every lease that is taken will be worked on, so that some may be taken early."""
        self._worker, self._controller, self._ahead = worker, controller, ahead
        self._branches: dict[int, Branch] = {}
        self._lengths: Lengths = []
        self._noting = threading.Lock()
        self.stopped = threading.Event()

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease, or None at the end of the stretch."""
        mine = self._branches.setdefault(branch, Branch())
        with mine.lock:
            if self.stopped.is_set():
                return None
            self._time(mine)
            if not mine.here:
                asked = self._ask(branch, mine) if mine.asked is None else mine.asked
                mine.asked = None
                mine.here.extend(ray.get(asked))
            if not mine.here:
                self._tell_lengths()
                return None
            lease = mine.here.popleft()
            if self._ahead and not mine.here and mine.lease_s is not None and mine.lease_s < AHEAD_S:
                mine.asked = self._ask(branch, mine)
            mine.given = time.monotonic()
            return lease

    def _ask(self, branch: int, mine: Branch) -> Any:
        most = lot_of(mine.lease_s) if self._ahead else 1
        return self._controller.take.remote(self._worker, branch, most, self._noted())

    @staticmethod
    def _time(mine: Branch) -> None:
        """Note how long the last lease took, with what the trainer made it wait."""
        if mine.given is not None:
            took = time.monotonic() - mine.given
            mine.lease_s = took if mine.lease_s is None else mine.lease_s + 0.3 * (took - mine.lease_s)
            mine.given = None

    def ended(self, lease: Lease, elements: int) -> None:
        """Report the length of a split, with the next call that is due."""
        with self._noting:
            self._lengths.append((lease.key, elements))

    def _noted(self) -> Lengths:
        with self._noting:
            lengths, self._lengths = self._lengths, []
        return lengths

    def _tell_lengths(self) -> None:
        if lengths := self._noted():
            self._controller.ended.remote(self._worker, lengths)
