"""A trainer's process: the real `TrainerState`, and a training loop, streams and calls around it."""

from __future__ import annotations

import math
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING

from pecan_ray.errors import ClusterError
from pecan_ray.job import events
from pecan_ray.job import trainer_events as told
from pecan_ray.job.messages import LeftOutElement, TrainerReport, TrainerUpdate
from pecan_ray.job.trainer import TrainerState
from tests.protocol.audit import must
from tests.protocol.clock import Party
from tests.protocol.engine import Made
from tests.protocol.outbox import Stream, StreamMessage
from tests.protocol.scenario import CUT

if TYPE_CHECKING:
    from tests.protocol.world import World

POLL_S = 8.0
"""A trainer that waits for orders asks anew after so long."""
LONGEST_STEP_S = 20.0


class TrainerModel(Party):
    """One rank."""

    def __init__(self, world: World, rank: int) -> None:
        super().__init__(f"rank {rank}")
        scenario = world.scenario
        self.world, self.rank = world, rank
        self.node = f"host-{rank % scenario.hosts}"
        self.incarnation = f"i{rank}"
        self.step_s = scenario.steps_s[rank % len(scenario.steps_s)]
        joins = scenario.shape.joins
        self.state = TrainerState(
            rank, scenario.ranks, self.incarnation, scenario.prefetch_bytes, world.clock.now, joins
        )
        self.time_factor = 1.0
        self.largest_message = 0
        self.of_drained: set[int] = set()
        """Batches that have come from workers that drain, where each batch is for a certain rank."""
        self.sent_bytes: Counter[str] = Counter()
        """By worker, of what has come."""
        self.streams: dict[str, Stream] = {}
        self.registered = False
        self.ended: str | None = None
        """How its training loop ended: "end", "enough", or the name of an error."""
        self.error: BaseException | None = None
        self.ended_at = math.inf
        self.used_at = 0.0
        """When it got its last batch."""
        self.waits_since: float | None = None
        self.waits: list[float] = []
        """How long its loop has waited for each batch, and for the end."""
        self.message: list[str] = []
        """Why it waits, since it has begun to."""
        self.quarantined: list[LeftOutElement] = []
        """Bad elements that it keeps."""
        self._batches: dict[int, Made] = {}
        self._used: list[Made | None] = []
        """What its loop has, with None for each batch that was passed over."""
        self.left: set[int] = set()
        """Epochs that its loop has left."""
        self._last: Made | None = None
        self._timer = math.inf
        self._polls = 0
        self._left = False

    # --- its life ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Register, again and again until that has come through, and ask for the first batch."""
        if not self.world.job.alive:
            self._job_gone()
            self._want()
            return
        came = events.TrainerRegistered(self.rank, self.incarnation, self.node, (), self.name)
        self.world.links.send(self.world.job, self.world.job.register, self, came)
        self.world.clock.after(2.0, self, self._register_again)

    def _register_again(self) -> None:
        if not self.registered and self.ended is None:
            self.begin()

    def welcome(self) -> None:
        """Begin: the job knows this trainer."""
        if not self.registered:
            self.registered = True
            self._poll()
            self._want()

    def repeat(self) -> None:
        """Say again what the controller may not have heard: its process was killed."""
        if self._left:
            self._leave()

    def die(self) -> None:
        """The process is gone."""
        self.alive = False
        for stream in self.streams.values():
            stream.close()

    def handle(self, event: told.TrainerEvent) -> None:
        """Let the state machine take an event, and do what it says."""
        now, passed = self.world.clock.now, self.state.queue.passed
        done = self.state.handle(event, now)
        self._used += [None] * (self.state.queue.passed - passed)
        for instruction in done:
            self._perform(instruction)
        self.world.audit.queue(self)
        if self._left:
            return
        due = max(self.state.due, now + 1e-6)
        if due < self._timer:
            self._timer = due
            self.world.clock.after(due - now, self, self._on_timer, due)

    def _on_timer(self, due: float) -> None:
        if due == self._timer:
            self._timer = math.inf
            self.handle(told.TrainerTime())

    # --- what its state wants done -------------------------------------------------------------------------

    def _perform(self, instruction: told.TrainerInstruction) -> None:
        world = self.world
        if isinstance(instruction, told.OpenStream):
            worker = world.job.processes[instruction.worker]
            self.streams[instruction.worker] = Stream(worker, self, world.clock, world.links)
        elif isinstance(instruction, told.CloseStream):
            self.streams[instruction.worker].close()
        elif isinstance(instruction, told.Grant):
            self.streams[instruction.worker].grant(instruction.credits)
        elif isinstance(instruction, told.DeliverBatch):
            self._step(instruction.batch)
        elif isinstance(instruction, told.Discard):
            self._batches.pop(instruction.batch.id, None)
        elif isinstance(instruction, told.EndOfData):
            self.end("end")
        elif isinstance(instruction, told.RaiseError):
            self.error = instruction.error
            self.end(type(instruction.error).__name__)
        elif isinstance(instruction, told.SendReport):
            self._report(instruction.report)
        elif isinstance(instruction, told.Quarantine):
            self.quarantined += instruction.elements
        elif isinstance(instruction, told.TrainerLog):
            self.message.append(instruction.text)
            must(
                bool(instruction.text.strip()) and "{" not in instruction.text, f"{self.name} says {instruction.text!r}"
            )

    def _report(self, report: TrainerReport) -> None:
        job = self.world.job
        if job.alive:
            self.world.links.send(job, job.reported, self, report)
        else:
            self._job_gone()

    def _job_gone(self) -> None:
        self.world.clock.after(0.0, self, self.handle, told.TrainerFailed(ClusterError("the controller is gone")))

    # --- orders --------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Wait for orders; if none come for long, ask anew."""
        if self.state.over or self._left:
            return
        self._polls += 1
        job = self.world.job
        if not job.alive:
            self._job_gone()
            return
        listens = events.TrainerWaiting(self.rank, self.incarnation, self.state.update.met, self.state.update.number)
        self.world.links.send(job, job.listened, self, listens, self._polls)
        self.world.clock.after(POLL_S, self, self._poll_again, self._polls)

    def _poll_again(self, poll: int) -> None:
        if poll == self._polls:
            self._poll()

    def ordered(self, poll: int, orders: TrainerUpdate) -> None:
        """Take orders that came for a call, perhaps for an old one, and wait for the next ones."""
        self.handle(told.UpdateReceived(orders))
        if poll == self._polls:
            self._poll()

    # --- streams -------------------------------------------------------------------------------------------

    def receive(self, stream: Stream, message: StreamMessage | None) -> None:
        """Take a message from a stream, or its end."""
        if stream.over or self._left:
            return
        name = stream.worker.name
        if message is None:
            stream.over = True
            self.handle(told.StreamEnded(name))
            return
        self.largest_message = max(self.largest_message, message.nbytes)
        received = []
        for made in message.batches:
            number = next(self.world.numbers)
            self._batches[number] = made
            if self.state.update.addressed and name in self.state.update.settle:
                self.of_drained.add(number)
            nbytes = made.rows * self.world.scenario.row_bytes
            mine = number, name, made.epoch, made.spans, made.rows, nbytes, made.without_data, made.row_range
            received.append(told.ReceivedBatch(*mine, payload=made))
        left_out = tuple(one for made in message.batches for one in made.left_out)
        self.quarantined += left_out
        sent_bytes = sum(batch.nbytes for batch in received) // CUT
        self.sent_bytes[name] += sent_bytes
        self.handle(told.BatchesReceived(name, tuple(received), left_out, sent_bytes))

    def stream_failed(self, stream: Stream) -> None:
        """A stream does not work any more, whatever the reason."""
        if not stream.over and not self._left:
            stream.close()
            self.handle(told.StreamEnded(stream.worker.name, stream_failed=True))

    # --- the training loop ---------------------------------------------------------------------------------

    def _want(self) -> None:
        if self._left:
            return
        enough = self.world.scenario.stop_after
        if enough is not None and self.state.yielded >= enough:
            self.end("enough")
            return
        self._leave_epoch()
        self.waits_since = self.world.clock.now
        self.message.clear()
        self.handle(told.BatchRequested())

    def _leave_epoch(self) -> None:
        """Leave the epoch of the last batch, and perhaps the next one with it, if the scenario says so."""
        made, scenario = self._last, self.world.scenario
        if made is None or made.epoch in self.left:
            return
        if self.world.audit.batches[self.rank, made.epoch] == scenario.leaves_after(self.rank, made.epoch):
            self.left.add(made.epoch)
            self.handle(told.EpochLeft(made.epoch))
            if scenario.leaves_after(0, made.epoch + 1) == 1 and made.epoch + 1 != scenario.epochs:
                self.left.add(made.epoch + 1)
                self.handle(told.EpochLeft(made.epoch + 1))
            self.world.faults["epoch left"] += 1

    def _step(self, batch: told.ReceivedBatch) -> None:
        self._stop_waiting()
        made = self._produced(batch)
        self._batches.pop(batch.id, None)
        self._used.append(made)
        self._last = made
        must(made.epoch not in self.left, f"{self.name} got a batch of epoch {made.epoch}, which it has left")
        self.used_at = self.world.clock.now
        self.world.audit.used(self, batch.worker, made)
        if batch.rows:
            seconds = min(LONGEST_STEP_S, self.step_s * self.time_factor) * (0.5 + self.world.clock.random.random())
            self.world.clock.after(seconds, self, self._want)
        else:
            self.world.clock.after(0.0, self, self._want)

    def first(self, batches: int) -> list[Made]:
        """Return the first batches that its training loop has, or will have: no other rank has used more."""
        queue = self.state.queue
        if self.world.scenario.coordinated:  # it may have yet to hear of turns
            queue, rounds = deepcopy(queue), self.world.job.state.ledger.rounds
            queue.apply_schedule(rounds.first, rounds.schedule)
        coming = (None if batch.epoch < queue.place.left else self._produced(batch) for batch in queue)
        return [made for made in [*self._used, *coming][:batches] if made is not None]

    def _produced(self, batch: told.ReceivedBatch) -> Made:
        """Return what a batch holds, which may have been joined."""
        if not batch.slices:
            return self._batches[batch.id]
        pieces = [one for piece in batch.slices for one in piece.block.payload.pieces[piece.start : piece.stop]]
        return Made(batch.epoch, pieces, {key: list(spans) for key, spans in batch.spans.items()})

    def _stop_waiting(self) -> None:
        if self.waits_since is not None:
            self.world.audit.waited(self, self.waits_since)
            self.waits.append(self.world.clock.now - self.waits_since)
        self.waits_since = None

    def end(self, how: str) -> None:
        """End the training loop, unless it has."""
        if self.ended is None:
            self._stop_waiting()
            self.ended, self.ended_at = how, self.world.clock.now
            self.world.progressed()
            self.world.clock.after(0.05 * self.world.clock.random.random(), self, self._close)

    def _close(self) -> None:
        if not self._left:
            self.handle(told.TrainerClosed())
            if self.state.unused:
                self.world.missed.append(self.world.clock.now)
            self._left = True
            for stream in self.streams.values():
                stream.close()
            self._leave()

    def _leave(self) -> None:
        job = self.world.job
        self.world.links.call(job, job.handle, events.TrainerLeft(self.rank, self.incarnation, self.state.unused))

    def __str__(self) -> str:
        streams = [name for name, stream in self.streams.items() if not stream.over]
        queue = f"{len(self.state.queue)} queued ({self.state.queue.nbytes} bytes)"
        return f"{self.name}: {queue}, waits since {self.waits_since}, streams {streams}, {self.state.update}"

    @property
    def used(self) -> int:
        """Batches that its loop has, or that were passed over."""
        return self.state.yielded + self.state.queue.passed

    @property
    def there(self) -> bool:
        """Whether it lives and will go on."""
        return self.alive and self.frozen_until < math.inf
