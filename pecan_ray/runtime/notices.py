"""The orders that hold now: built once for all clients, pickled once for all that are due the same.

A worker's handle is costly to pickle and clients are many, so each handle is pickled when its worker comes up, and a
client is sent only those that it has not met yet.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import cloudpickle

from pecan_ray.runtime.messages import Orders, WorkerInfo
from pecan_ray.sampling.ledger import Ledger

Own: TypeAlias = tuple[tuple[str, ...], int | None]
"""In what a rank's orders may differ from the others': workers to settle about, and batches to keep."""


class Notices:
    """What clients are told, and which workers they can fetch from."""

    def __init__(self) -> None:
        self._shared = Orders()
        self._exceptions: dict[int, Orders] = {}
        self._met: list[str] = []
        self._running: dict[str, bytes] = {}
        self._pickled: dict[tuple[Own, int], bytes] = {}

    def meet(self, worker: WorkerInfo) -> None:
        """Add a worker that has come up."""
        self._met.append(worker.name)
        self._running[worker.name] = pickle.dumps(worker)

    def part(self, worker: str) -> None:
        """Take a worker off: clients that have not met it never will."""
        self._running.pop(worker, None)

    def renew(self, ledger: Ledger, ranks: Iterable[int], error: BaseException | None, wanted: dict[str, int]) -> bool:
        """Look at everything anew; tell whether any rank's orders have changed."""
        shared = Orders(
            epoch=ledger.epoch,
            allowed=ledger.allowed() if ledger.shape.world_size > 1 else 0,
            finished=ledger.finished,
            closing=ledger.closing(),
            error=error,
            running=len(self._running),
            met=len(self._met),
            wanted=wanted,
        )
        exceptions = _exceptions(shared, ledger, ranks)
        if (shared, exceptions) == (self._shared, self._exceptions):
            return False
        self._shared, self._exceptions = shared, exceptions
        self._pickled.clear()
        return True

    def orders(self, rank: int) -> Orders:
        """Return a rank's orders; the workers that it has not met are left out."""
        return self._exceptions.get(rank, self._shared)

    def pickled(self, rank: int, met: int) -> bytes:
        """Return the orders, pickled, for a rank that knows the first `met` workers."""
        orders = self.orders(rank)
        key = ((orders.settle, orders.keep), met)
        if key not in self._pickled:
            here = (self._running.get(name) for name in self._met[met : orders.met])
            newcomers = tuple(worker for worker in here if worker is not None)
            self._pickled[key] = bytes(cloudpickle.dumps(replace(orders, newcomers=newcomers)))
        return self._pickled[key]


def _exceptions(shared: Orders, ledger: Ledger, ranks: Iterable[int]) -> dict[int, Orders]:
    """Return the orders of the ranks that have others than most."""
    keep, lost = ledger.keeps(), ledger.unsettled()
    if keep is None and not lost:
        return {}
    kinds: dict[Own, Orders] = {}
    exceptions = {}
    for rank in ranks:
        richer = keep is not None and ledger.counts[rank] > keep
        settle = tuple(worker for worker, owing in lost.items() if rank in owing)
        if not richer and not settle:
            continue
        own = (settle, keep if richer else None)
        if own not in kinds:
            kinds[own] = replace(shared, settle=own[0], keep=own[1])
        exceptions[rank] = kinds[own]
    return exceptions
