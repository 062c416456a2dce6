"""What must hold while a history runs, and the books of what its training loops really got."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pecan_ray.job.credits import EARLY_SHARE, MOST_AHEAD
from pecan_ray.job.row_runs import WINDOW_BATCHES
from pecan_ray.job.rows_in_turn import LEAST_SHARE
from pecan_ray.job.trainer import TrainerState
from tests.protocol.engine import Made, ModelPiece, all_pieces
from tests.protocol.saved import Saved
from tests.protocol.scenario import Scenario

if TYPE_CHECKING:
    from tests.protocol.trainer import TrainerModel
    from tests.protocol.world import World

MUST_SAY_S = 7.0
"""A trainer that waits for a batch longer than this must have said why."""
MOST_EXCESS = MOST_AHEAD + 1
"""Messages of each worker by which a queue may exceed `prefetch_bytes`, beside one for each round of leftovers: those
that were under way when a larger one came."""


class ViolationError(AssertionError):
    """Something that must hold does not."""


def must(holds: bool, otherwise: str) -> None:
    """Raise a violation unless something holds."""
    if not holds:
        raise ViolationError(otherwise)


def undisturbed(world: World, epoch: int | None = None) -> bool:
    """Tell whether so far no worker was lost, or taken for lost since it was not heard (in an epoch).

    Then no level of visiting promises less than that everything is used once, or counted; but where every worker gives
    all data, what one gives that is let go is not complete either.
    """
    job = world.job.state
    kinds = ("lost", "drain") if world.scenario.sharding == "off" else ("lost",)
    gone = [one.seconds for one in job.story if one.kind in kinds]
    if epoch is None:
        return not gone
    ends = [0.0, *job.epoch_ends.latest, math.inf]
    return not any(ends[epoch] <= at <= ends[epoch + 1] for at in gone)


class Audit:
    """Books of one history, kept beside the job's own."""

    def __init__(self, world: World, saved: Saved | None = None) -> None:
        self.world, self.continues, self._saved = world, saved is not None, saved
        self.scenario: Scenario = world.scenario
        self.used_pieces: dict[int, Counter[tuple[str, ModelPiece]]] = {}
        """Of each epoch: what was used; by worker where every worker gives all data."""
        self.started: dict[int, set[str]] = {}
        """Workers that began to work on each epoch."""
        for made in saved.batches if saved is not None else ():
            self.used_pieces.setdefault(made.epoch, Counter()).update(("", piece) for piece in made.pieces)
        self.batches: Counter[tuple[int, int]] = Counter()
        """Of each rank and epoch."""
        self._round_of: dict[int, tuple[str, ModelPiece | None]] = {}
        """By step: the worker and the round of the batches that ranks use in it."""
        self.short: Counter[int] = Counter()
        """Batches of each epoch that are not full."""
        self._sequences: dict[int, list[ModelPiece]] = {}
        """Of each epoch what is to come, where that is one sequence."""
        self._rounds = 0
        """Most rounds in which the leftovers of an epoch were distributed."""
        self._left_before = saved.left if saved is not None else frozenset()
        self.left_before = saved.left_out if saved is not None else 0
        self.in_order_before = saved is not None and saved.in_order
        self.excess = 0.0
        """By how many messages for each worker a queue was above its bound at most."""

    def used(self, trainer: TrainerModel, worker: str, made: Made) -> None:
        """Note that a training loop has a batch."""
        self.world.progressed()
        scenario = self.scenario
        who = worker if scenario.sharding == "off" else ""
        ledger, exact = self.world.job.state.ledger, scenario.visitation == "exactly_once"
        in_turn = (scenario.alone and ledger.is_in_turn(made.epoch)) or (scenario.numbered and not ledger.runs.given_up)
        passed_over = made.epoch in self._left_before  # of such an epoch nobody knows what a loop has left
        if (scenario.in_order and exact) or (in_turn and not passed_over):
            self._check_turn(trainer.rank, made)
        if scenario.coordinated:
            step = trainer.used
            mine = worker, made.round
            must(made.rank == trainer.rank, f"{trainer.name} got the batch of rank {made.rank}")
            other = self._round_of.setdefault(step, mine)
            must(mine == other, f"step {step} is of round {mine} for {trainer.name}, and of {other} for another rank")
        used = self.used_pieces.setdefault(made.epoch, Counter())
        for piece in made.pieces:
            used[who, piece] += 1
            level = scenario.visitation == "zero_or_more" and scenario.sharding != "off"
            once = used[who, piece] == 1 or (level and not undisturbed(self.world, made.epoch))
            must(once, f"{trainer.name} got {piece} of epoch {made.epoch} again")
        self.batches[trainer.rank, made.epoch] += 1
        must(0 < made.rows <= scenario.batch_size, f"a batch of {made.rows} elements")
        if made.rows not in (scenario.bucket_sizes or [scenario.batch_size]):
            self.short[made.epoch] += 1
            must(not scenario.drop_remainder, f"{made.rows} elements in a batch with drop_remainder")

    @property
    def left(self) -> set[int]:
        """Epochs that some training loop has left: of these nobody has all."""
        return set(self._left_before).union(*(trainer.left for trainer in self.world.trainers))

    def _check_turn(self, rank: int, made: Made) -> None:
        """A batch is the one whose turn it is; those that ranks share at the end of an epoch hold equal shares."""
        scenario = self.scenario
        rest = self._sequence(made.epoch)
        batches = len(rest) // scenario.batch_size
        if len(rest) % scenario.batch_size and not scenario.drop_remainder:
            batches += 1
        number = self.batches[rank, made.epoch] * scenario.ranks + rank
        full = batches // scenario.ranks * scenario.ranks
        if number < full:
            wanted = rest[number * scenario.batch_size :][: scenario.batch_size]
        elif scenario.numbered:
            shared = rest[full * scenario.batch_size :]
            first, end = (one * len(shared) // scenario.ranks for one in (rank, rank + 1))
            wanted = shared[first:end]
        else:
            return
        must(made.pieces == wanted, f"batch {number} of epoch {made.epoch} holds {made.pieces}, and not {wanted}")

    def _sequence(self, epoch: int) -> list[ModelPiece]:
        """Return what is to come in an epoch, in order, when the run begins with it."""
        if epoch not in self._sequences:
            before, saved = self.used_pieces.get(epoch, Counter()), self._saved
            pieces = all_pieces(self.scenario)
            outputs = Counter((key, element) for key, element, _ in pieces)
            self._sequences[epoch] = [
                piece
                for piece in pieces
                if not before["", piece] and (saved is None or saved.holds(epoch, piece, outputs[piece[:2]]))
            ]
        return self._sequences[epoch]

    def waited(self, trainer: TrainerModel, since: float) -> None:
        """Note that a wait is over."""
        if self.world.clock.now - since > MUST_SAY_S and trainer.frozen_until < since:
            must(bool(trainer.message), f"{trainer.name} has waited {self.world.clock.now - since:.0f} s in silence")

    def _early(self, trainer: TrainerModel) -> None:
        """Look at the bytes of whole splits that have come before their turn: nothing else bounds these."""
        if self.scenario.whole < 1 or not self.scenario.numbered:
            return
        bound = EARLY_SHARE * self.scenario.prefetch_bytes
        messages = (trainer.state.queue.early.nbytes - bound) / max(1, trainer.largest_message)
        # A worker that drains, or is given the next rows, hands over all that it had finished before.
        most = (MOST_EXCESS + self.scenario.outbox) * max(1, len(trainer.streams))
        must(messages <= most, f"{trainer.name} has {messages:.1f} messages before their turn, of {most} that it may")

    def queue(self, trainer: TrainerModel) -> None:
        """Look at the bytes in a trainer's queue."""
        state: TrainerState = trainer.state
        self._early(trainer)
        bound = self.scenario.prefetch_bytes
        if self.scenario.numbered:  # what waited for its turn comes at once
            window = WINDOW_BATCHES * len(trainer.streams) * self.scenario.batch_size
            window = round(window / LEAST_SHARE) if self.scenario.joined else window
            bound = max(bound, window * self.scenario.row_bytes)
        excess = state.queue.nbytes - bound
        if excess <= 0:
            return
        # Ranks that wait for each other take all that a worker which drains has finished for them; it lies in their
        # queues until its turn comes, also when they have settled about the worker.
        excess -= sum(batch.nbytes for batch in state.queue if batch.id in trainer.of_drained)
        self._rounds = max(self._rounds, self.world.job.state.ledger.leftovers.rounds)
        regrouped = self._rounds * trainer.largest_message
        messages = max(0, excess - regrouped) / max(1, trainer.largest_message) / max(1, len(trainer.streams))
        self.excess = max(self.excess, messages)
        must(messages <= MOST_EXCESS, f"{trainer.name} has {messages:.1f} messages of each worker more than it may")
