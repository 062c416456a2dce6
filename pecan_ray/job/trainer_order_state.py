"""The orders that hold now: made once for all trainers that are due the same, numbered as they change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from pecan_ray.job.ledger import Ledger
from pecan_ray.job.messages import LeftOutElement, PlacingNow, TrainerUpdate
from pecan_ray.job.next_makers import next_makers
from pecan_ray.plan.windows import Deployment

Unkept: TypeAlias = tuple[int, tuple[LeftOutElement, ...]]
"""Bad elements that a trainer shall keep, and how many came before them."""
Own: TypeAlias = tuple[tuple[str, ...], int | None, Unkept]
"""In what a rank's orders may differ from the others': workers to settle about, batches and bad elements to keep."""
NONE_UNKEPT: Unkept = (0, ())


class TrainerOrderState:
    """What trainers are told, and which workers they can fetch from."""

    def __init__(self) -> None:
        self._shared = TrainerUpdate(number=1)
        self._own: dict[int, Own] = {}
        # Never shortened: trainers tell how many of these they know, and hear of those behind that number.
        self._met: list[str] = []
        self._running: dict[str, None] = {}

    def add_worker(self, worker: str) -> None:
        """Add a worker that has come up."""
        self._met.append(worker)
        self._running[worker] = None

    def remove_worker(self, worker: str) -> None:
        """Take a worker off: trainers that have not met it never will."""
        self._running.pop(worker, None)

    @property
    def number(self) -> int:
        """Number of the orders that hold now."""
        return self._shared.number

    def refresh_state(
        self,
        ledger: Ledger,
        ranks: list[int],
        error: BaseException | None,
        wanted: Deployment,
        waits: tuple[str, ...],
        unkept: Unkept = NONE_UNKEPT,
        placing: PlacingNow = "",
    ) -> tuple[bool, bool]:
        """Look at everything anew; tell whether orders have changed, and whether in more than the allowance.

        What is `unkept` the first of the ranks keeps.
        """
        shared = TrainerUpdate(
            # With the number of before, so that only what else has changed makes new orders.
            number=self._shared.number,
            epoch=ledger.epoch,
            # A rank that is alone is not bounded: a number that changes with each batch would make new orders for it.
            allowed=ledger.allowed() if ledger.shape.world_size > 1 else 0,
            finished=ledger.finished,
            closing=ledger.awaits_acks(),
            merge_leftovers=ledger.merge_leftovers(),
            error=error,
            running=len(self._running),
            met=len(self._met),
            target=(wanted.local, wanted.remote),
            placement_note=placing,
            waiting_for=waits,
            coordinated=ledger.shape.coordinated,
            addressed=ledger.shape.addressed,
            first_turn=ledger.rounds.first,
            schedule=ledger.rounds.schedule,
            lost_workers=ledger.rounds.lost_workers,
            level=ledger.level(),
            next_makers=next_makers(ledger),
            unordered=bool(ledger.runs.given_up),
        )
        own = _own(ledger, ranks, unkept)
        if (shared, own) == (self._shared, self._own):
            return False, False
        before = self._shared
        as_before = replace(shared, allowed=before.allowed, first_turn=before.first_turn, schedule=before.schedule)
        only_limit_raised = own == self._own and as_before == before
        self._shared, self._own = replace(shared, number=self._shared.number + 1), own
        return True, not only_limit_raised

    def trainer_update(self, rank: int, met: int) -> TrainerUpdate:
        """Return a rank's orders; `met`: so many workers it knows."""
        settle, keep, (before, quarantine) = self._own.get(rank, ((), None, NONE_UNKEPT))
        new_workers = tuple(worker for worker in self._met[met:] if worker in self._running)
        if not (settle or new_workers or keep is not None or quarantine):
            return self._shared
        return replace(
            self._shared,
            settle=settle,
            keep=keep,
            new_workers=new_workers,
            quarantine=quarantine,
            quarantined=before,
        )


def _own(ledger: Ledger, ranks: list[int], unkept: Unkept) -> dict[int, Own]:
    """Return in what the orders of ranks differ from those of most."""
    keep, lost = ledger.keeps(), ledger.unresolved()
    # Mostly so: then no rank has to be looked at by itself.
    if keep is None and not lost and not unkept[1]:
        return {}
    own: dict[int, Own] = {}
    first = min(ranks, default=0)
    for rank in ranks:
        richer = keep if keep is not None and ledger.counts[rank] > keep else None
        settle = _to_settle(rank, lost)
        mine = unkept if rank == first else NONE_UNKEPT
        if richer is not None or settle or mine[1]:
            own[rank] = (settle, richer, mine)
    return own


def _to_settle(rank: int, lost: Mapping[str, Collection[int]]) -> tuple[str, ...]:
    """Return the lost workers that a rank has not settled about yet."""
    return tuple(worker for worker, owing in lost.items() if rank in owing)
