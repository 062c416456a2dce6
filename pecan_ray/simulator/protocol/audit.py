"""What must hold for a history: checked while it runs and at its end, from what the training loops really got."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pecan_ray.job.credits import MOST_AHEAD
from pecan_ray.job.losses import MOST_IN_A_ROW
from pecan_ray.job.suspects import STRIKES
from pecan_ray.job.trainer import TrainerState
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey
from pecan_ray.simulator.protocol.clock import HEARD_WITHIN_S
from pecan_ray.simulator.protocol.engine import WIDTH, Made, ModelPiece, pieces_of
from pecan_ray.simulator.protocol.saved import Saved
from pecan_ray.simulator.protocol.scenario import BAD, FATAL, Scenario

if TYPE_CHECKING:
    from pecan_ray.simulator.protocol.job import JobModel
    from pecan_ray.simulator.protocol.trainer import TrainerModel
    from pecan_ray.simulator.protocol.world import World

MOST_EXCESS = MOST_AHEAD + 1
"""Messages of each worker by which a queue may exceed `prefetch_bytes`, beside one for each round of leftovers: those
that were under way when a larger one came."""


class ViolationError(AssertionError):
    """Something that must hold does not."""


def must(holds: bool, otherwise: str) -> None:
    """Raise a violation unless something holds."""
    if not holds:
        raise ViolationError(otherwise)


class Audit:
    """Books of one history, kept beside the job's own."""

    def __init__(self, world: World, saved: Saved | None = None) -> None:
        self._world, self._goes_on = world, saved is not None
        self._scenario: Scenario = world.scenario
        self._used: dict[int, Counter[tuple[str, ModelPiece]]] = {}
        """Of each epoch: what was used; by worker where every worker gives all data."""
        for made in saved.batches if saved is not None else ():
            self._used.setdefault(made.epoch, Counter()).update(("", piece) for piece in made.pieces)
        self._batches: Counter[tuple[int, int]] = Counter()
        """Of each rank and epoch."""
        self._short: Counter[int] = Counter()
        """Batches of each epoch that are not full."""
        self._sequences: dict[int, list[ModelPiece]] = {}
        """Of each epoch what is to come, where that is one sequence."""
        self._rounds = 0
        """Most rounds in which the leftovers of an epoch were distributed."""
        self._left_before = saved.left_out if saved is not None else 0
        self.excess = 0.0
        """By how many messages for each worker a queue was above its bound at most;"""
        self.regrouping = 0.0
        """while leftovers were regrouped."""

    # --- while it runs -------------------------------------------------------------------------------------

    def given(self, worker: str, lease: Lease) -> None:
        """Note that a worker was given a lease."""

    def used(self, trainer: TrainerModel, worker: str, made: Made) -> None:
        """Note that a training loop has a batch."""
        self._world.progressed()
        scenario = self._scenario
        who = worker if scenario.sharding == "off" else ""
        if scenario.in_order and scenario.visitation == "exactly_once":
            self._check_turn(trainer.rank, made)
        used = self._used.setdefault(made.epoch, Counter())
        for piece in made.pieces:
            used[who, piece] += 1
            if scenario.visitation != "zero_or_more":
                must(used[who, piece] == 1, f"{trainer.name} got {piece} of epoch {made.epoch} again")
        self._batches[trainer.rank, made.epoch] += 1
        must(0 < made.rows <= scenario.batch_size, f"a batch of {made.rows} elements")
        if made.rows < scenario.batch_size:
            self._short[made.epoch] += 1
            must(not scenario.drop_remainder, f"{made.rows} elements in a batch with drop_remainder")

    def _check_turn(self, rank: int, made: Made) -> None:
        """A batch is the one whose turn it is, but for those that ranks share at the end of an epoch."""
        scenario = self._scenario
        rest = self._sequence(made.epoch)
        batches = len(rest) // scenario.batch_size
        if len(rest) % scenario.batch_size and not scenario.drop_remainder:
            batches += 1
        number = self._batches[rank, made.epoch] * scenario.ranks + rank
        if number < batches // scenario.ranks * scenario.ranks:
            wanted = rest[number * scenario.batch_size :][: scenario.batch_size]
            must(made.pieces == wanted, f"batch {number} of epoch {made.epoch} holds {made.pieces}, and not {wanted}")

    def _sequence(self, epoch: int) -> list[ModelPiece]:
        """Return what is to come in an epoch, in order, when the run begins with it."""
        if epoch not in self._sequences:
            keys = [
                (branch, repetition, index)
                for branch, splits in enumerate(self._scenario.sources)
                for repetition in range(self._scenario.repetitions)
                for index in range(len(splits))
            ]
            before = self._used.get(epoch, Counter())
            pieces = [piece for key in keys for piece in pieces_of(self._scenario, key)]
            self._sequences[epoch] = [piece for piece in pieces if not before["", piece]]
        return self._sequences[epoch]

    def discarded(self, trainer: TrainerModel, made: Made, *, closed: bool) -> None:
        """Note that a trainer does not use a batch that it had."""

    def say(self, trainer: TrainerModel, text: str) -> None:
        """Note that a trainer said why it waits."""
        must(bool(text.strip()) and "{" not in text, f"{trainer.name} says {text!r}")

    def waited(self, trainer: TrainerModel, since: float) -> None:
        """Note that a wait is over."""
        if self._world.clock.now - since > 7.0 and trainer.frozen_until < since:
            must(bool(trainer.said), f"{trainer.name} has waited {self._world.clock.now - since:.0f} s in silence")

    def queue(self, trainer: TrainerModel) -> None:
        """Look at the bytes in a trainer's queue."""
        state: TrainerState = trainer.state
        excess = state.queue.nbytes - self._scenario.prefetch_bytes
        if excess <= 0:
            return
        self._rounds = max(self._rounds, self._world.job.state.ledger.leftovers.rounds)
        regrouped = self._rounds * trainer.largest_message
        messages = max(0, excess - regrouped) / max(1, trainer.largest_message) / max(1, len(trainer.streams))
        if state.orders.regrouping:
            self.regrouping = max(self.regrouping, messages)
        else:
            self.excess = max(self.excess, messages)
        must(messages <= MOST_EXCESS, f"{trainer.name} has {messages:.1f} messages of each worker more than it may")

    # --- at the end ----------------------------------------------------------------------------------------

    def finish(self, job: JobModel, trainers: list[TrainerModel]) -> None:
        """Check the whole history."""
        for worker in job.processes.values():
            must(not worker.alive, f"{worker.name} outlives the job")
        self._check_endings(job, trainers)
        if not trainers or any(trainer.ended != "end" for trainer in trainers):
            return
        must(job.state.ledger.finished, "all trainers are at the end, and the job is not")
        epochs = job.state.ledger.epoch
        if self._scenario.epochs is not None and job.state.ledger.queues.empty_source is False:
            must(epochs == self._scenario.epochs, f"{epochs} epochs instead of {self._scenario.epochs}")
        self._check_numbers(trainers, epochs)
        if len(trainers) < self._scenario.ranks:
            return  # one was lost, with what it had
        self._check_quarantine(job, trainers)
        if self._scenario.visitation == "zero_or_more":
            return
        if self._scenario.sharding == "off":
            return
        if self._scenario.serial:
            self._check_serial(job, epochs)
        else:
            self._check_positions(job, epochs)

    def _check_endings(self, job: JobModel, trainers: list[TrainerModel]) -> None:
        """Training loops end well unless there is a reason for something else, and with that reason."""
        scenario, world = self._scenario, self._world
        timeout = scenario.trainer_timeout_s
        reasons: dict[str, str] = {}
        if scenario.stop_after is not None:
            reasons |= {"enough": "", "ClusterError": "has left before the end"}
        if scenario.absent:
            reasons |= {"gave up": "", "ClusterError": "has left before the end"}
        if scenario.error_budget < 1.0:
            reasons["ErrorBudgetError"] = "error budget"
        if world.faults["fail"]:
            reasons["PlanError"] = "the function failed"
        silent = world.longest_freeze + HEARD_WITHIN_S > timeout
        if world.faults["kill trainer"] or silent:
            reasons["ClusterError"] = "has not been heard"
        if (world.deaths or self._machines_may_be_taken_for_elements) and scenario.on_error == "raise":
            reasons["OpError"] = "ended the process"
        if world.deaths and (scenario.one_sequence or scenario.sharding == "off"):
            reasons["ClusterError"] = "one after the other"
        # Of a deadly element two die that work on other data too, before other passes know of it; where nothing is run
        # again, one in each pass.
        deadly = sum(sum(map(split.outputs.count, FATAL)) for source in scenario.sources for split in source)
        passes = scenario.repetitions * ((scenario.epochs or 1) if scenario.visitation == "at_most_once" else 2)
        if world.losses + min(world.deaths, passes * deadly) > MOST_IN_A_ROW:
            reasons.setdefault("ClusterError", "in a row")
        error = job.state.error
        if error is not None:
            must(type(error).__name__ in reasons, f"the job failed without a reason: {error}")
            reasons.setdefault("ClusterError", "the controller is gone")
        for trainer in trainers:
            must(trainer.ended == "end" or trainer.ended in reasons, f"{trainer.name} ended: {trainer.error}")
            since = max((at for at in world.killed if at < trainer.ended_at), default=math.inf)
            frozen = max((fault.seconds for fault in scenario.faults if fault.seconds < math.inf), default=0.0)
            within = timeout + 20.0 + 200.0 * scenario.lost + max(frozen, world.longest_freeze)
            if trainer.ended == "ClusterError":
                must(trainer.ended_at - since < within, f"{trainer.name} heard of a killed one after {within:.0f} s")

    def _check_quarantine(self, job: JobModel, trainers: list[TrainerModel]) -> None:
        """Every bad element is kept by some trainer, and by one alone once, where data is worked on once.

        What a rank gives back others keep again, and so they do with what a rank said as it left, if that is lost.  A
        plan that one worker runs as a whole may be over before it has said what was bad behind the last batch.
        """
        scenario, known = self._scenario, job.state.bad.identities
        if scenario.on_error != "quarantine":
            return
        kept = Counter(one.identity for trainer in trainers for one in trainer.quarantined)
        complete = kept.keys() <= known if scenario.serial else kept.keys() == known
        must(complete, f"{len(kept)} of {len(known)} bad elements are kept")
        exact = scenario.visitation == "exactly_once" and scenario.sharding != "off" and scenario.ranks == 1
        if exact and not (self._world.losses or self._world.faults["kill controller"]):
            twice = [one for one, times in kept.items() if times > 1]
            must(not twice, f"{twice} are kept more than once")

    def _check_numbers(self, trainers: list[TrainerModel], epochs: int) -> None:
        scenario = self._scenario
        for epoch in range(epochs):
            counts = [self._batches[trainer.rank, epoch] for trainer in trainers]
            # Where data is given out again at once, a batch of a lost worker may come when its epoch is over.
            even = len(set(counts)) <= 1 or scenario.visitation == "zero_or_more"
            must(even, f"ranks have {counts} batches of epoch {epoch}")
            if scenario.ranks == 1 and not scenario.lossy and scenario.sharding != "off":
                must(self._short[epoch] <= 1, f"{self._short[epoch]} smaller batches in epoch {epoch}")

    def _check_positions(self, job: JobModel, epochs: int) -> None:
        """Every output was used once, or is counted."""
        scenario, ledger = self._scenario, job.state.ledger
        keys = [
            (branch, repetition, index)
            for branch, splits in enumerate(scenario.sources)
            for repetition in range(scenario.repetitions)
            for index in range(len(splits))
        ]
        dropped: dict[int, list[tuple[LeaseKey, int, int]]] = {}
        for lease in ledger.dropped:
            must(scenario.visitation == "at_most_once", f"{lease} was dropped")
            dropped.setdefault(lease.epoch, []).extend((lease.key, *span) for span in lease.spans)
        missing_in_all: list[ModelPiece] = []
        for epoch in range(epochs):
            used = self._used.get(epoch, Counter())
            expected = {piece for key in keys for piece in pieces_of(scenario, key)}
            unknown = {piece for _, piece in used} - expected
            must(not unknown, f"batches of epoch {epoch} hold {sorted(unknown)}, which nothing should yield")
            missing = [
                piece
                for piece in expected
                if not used["", piece] and not _within(piece, dropped.get(epoch, ()), scenario)
            ]
            missing_in_all += missing
            self._check_few(job, epoch, missing)
        if not self._goes_on:  # what the run before has left out was counted there
            self._check_counts(job, missing_in_all, epochs)

    def _check_few(self, job: JobModel, epoch: int, missing: list[ModelPiece]) -> None:
        """Only what cannot be divided among ranks, or fills no batch, is left out."""
        scenario = self._scenario
        most = (scenario.batch_size if scenario.drop_remainder else 1) * scenario.ranks - 1
        most += self._left_before
        if self._machines_may_be_taken_for_elements:
            most += job.state.bad.count
        if scenario.plain:
            must(len(missing) <= most, f"{len(missing)} elements of epoch {epoch} are missing: {sorted(missing)}")
        elif scenario.ranks == 1 and not scenario.drop_remainder:
            elements = {(key, element) for key, element, _ in missing}
            must(len(elements) <= most, f"epoch {epoch} lacks {sorted(missing)}")

    @property
    def _machines_may_be_taken_for_elements(self) -> bool:
        """Those that fail four times with the same element in hand make it look like one that ends workers."""
        return self._world.losses >= 2 * STRIKES

    def _check_counts(self, job: JobModel, missing: list[ModelPiece], epochs: int) -> None:
        """What is missing was counted: exactly where every element yields one output."""
        scenario, ledger = self._scenario, job.state.ledger
        elements = {(key, element) for key, element, _ in missing}
        splits = [split for source in scenario.sources for split in source]
        kinds = (BAD, *FATAL)
        bad = sum(sum(map(split.outputs[: split.readable].count, kinds)) + (split.torn is not None) for split in splits)
        many = self._machines_may_be_taken_for_elements
        blamed = max(0, job.state.bad.count - bad * epochs * scenario.repetitions) if many else 0
        if scenario.plain:
            must(many or not job.state.bad.count, "an element is blamed for nothing")
            counted = ledger.left_out_elements + job.state.bad.count
            must(counted == len(missing), f"{len(missing)} elements are missing, and {counted} are counted")
            return
        if any(split.torn is not None for split in splits) and (scenario.ranks > 1 or not scenario.apart):
            return  # elements before the place where a split is torn are counted together with it
        nothing = sum(outputs != 1 for split in splits for outputs in split.outputs)
        nothing += sum(split.torn is not None for split in splits)
        counted, most = ledger.left_out_elements + blamed, len(missing) + nothing * epochs * scenario.repetitions
        must(
            len(elements) <= counted <= most,
            f"{len(elements)} elements ({len(missing)} outputs) are missing, {counted} are counted as left out",
        )
        if scenario.visitation == "exactly_once":
            lacks = len(elements) + bad * epochs * scenario.repetitions
            counted = ledger.left_out_elements + job.state.bad.count
            filtered = sum(split.outputs[: split.readable].count(0) for split in splits)
            single = all(outputs <= 1 for split in splits for outputs in split.outputs)
            repeats = epochs * scenario.repetitions
            bound = len(missing) + (bad + filtered) * repeats if single else math.inf
            must(
                lacks <= counted <= bound,
                f"{lacks} elements are missing or bad, and {counted} are counted as one of these ({filtered} filtered)",
            )

    def _check_serial(self, job: JobModel, epochs: int) -> None:
        """One sequence: what no rank got was counted, where no worker was lost."""
        scenario, ledger = self._scenario, job.state.ledger
        total = sum(len(pieces_of(scenario, (b, 0, i))) for b, s in enumerate(scenario.sources) for i in range(len(s)))
        total *= scenario.repetitions
        if scenario.take is not None:
            total = min(total, scenario.take)
        used = sum(sum(counts.values()) for counts in self._used.values())
        counted, before = used + ledger.left_out_elements, self._left_before
        told = f"{used} elements used, {counted - used} left out and {before} by a run before, of {total * epochs}"
        must(counted <= total * epochs <= counted + before, told)


def _within(piece: ModelPiece, spans: object, scenario: Scenario) -> bool:
    """Tell whether some of an output's positions are in one of some intervals."""
    key, element, output = piece
    branch, _, index = key
    outputs = scenario.sources[branch][index].outputs[element]
    begin = (element << OUTPUT_BITS) + output * (WIDTH // outputs)
    end = begin + WIDTH // outputs
    assert isinstance(spans, (list, tuple))
    return any(other == key and start < end and stop > begin for other, start, stop in spans)
