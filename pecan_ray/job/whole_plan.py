"""A plan that cannot be cut, in one epoch: which worker runs it, and how many batches it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class WholePlan:
    """What is known of a whole plan's run."""

    runner: str | None = None
    """The one worker that runs the plan."""
    produced: int | None = None
    """Batches that it makes and that are not given back; None: not known yet."""
    rest: int = 0
    """Elements that fill none of these batches."""

    def may_run(self, worker: str) -> bool:
        """Tell whether a worker may run the plan: no other one does."""
        return self.runner in (None, worker)

    def begin(self, worker: str) -> None:
        """Let a worker run the plan."""
        self.runner, self.produced = worker, None

    def ended(self, worker: str, batches: int, rest: int) -> int:
        """Note that a worker has read all that it needs; return how many elements, that fill no batch, it leaves out.

        Those of the runner are left out once the epoch ends: it may be run again.
        """
        if worker != self.runner:
            return rest
        self.produced, self.rest = batches, rest
        return 0

    def given_back(self, batches: int) -> None:
        """Note batches that nobody will use."""
        if self.produced is not None:
            self.produced -= batches

    def on_the_way(self, batches: int) -> int:
        """Return how many batches are made, and have come to no trainer: trainers have received so many together."""
        return max(0, (self.produced or 0) - batches)

    def arrived(self, batches: int) -> bool:
        """Tell whether the trainers, that have received so many batches together, have all."""
        return self.produced is not None and batches >= self.produced


@dataclass
class ProducedBatches:
    """How many batches of whole plans the trainers have received in epochs before this one, and in runs before."""

    epochs: dict[int, int] = field(default_factory=dict)

    def of(self, epoch: int, counts: Sequence[int]) -> int:
        """Return how many of an epoch there are, with those that each rank has received of it since."""
        return self.epochs.get(epoch, 0) + sum(counts)

    def by_rank(self, epoch: int, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the same for each rank: they get the batches in turn."""
        before, ranks = self.epochs.get(epoch, 0), len(counts)
        # Ranks have got the first `before` batches in turn: rank r has those with the numbers r, r + ranks, ...
        return tuple(count + len(range(rank, before, ranks)) for rank, count in enumerate(counts))

    def end(self, epoch: int, counts: Sequence[int]) -> None:
        """Note that an epoch is over."""
        self.epochs[epoch] = self.of(epoch, counts)

    def forget(self, before: int) -> None:
        """Drop the epochs of which no state can be taken any more."""
        for epoch in [epoch for epoch in self.epochs if epoch < before]:
            del self.epochs[epoch]
