"""A worker's process: the real `WorkerState`, and a model of its engine and of what sends its batches around it."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

from pecan_ray.job import events
from pecan_ray.job import worker_events as told
from pecan_ray.job.events import LossCause
from pecan_ray.job.heartbeat import BEATS, HEARTBEAT_S, Heartbeat
from pecan_ray.job.lease_sizes import SideBySide
from pecan_ray.job.messages import Placement, Reply, SplitOpenFailure, WorkerProgress
from pecan_ray.job.worker import WorkerState
from pecan_ray.job.worker_channels import RUN
from pecan_ray.plan.splits import AtWork, Lease, Origin
from tests.protocol.clock import Party
from tests.protocol.engine import EngineModel, Fatal, Made, NeedsLease, Step, unreadable
from tests.protocol.outbox import OutboxModel, Stream
from tests.protocol.scenario import HUNG_AFTER_S

if TYPE_CHECKING:
    from tests.protocol.world import World

REPEAT_S = 2.0
"""A question that was not answered for so long is asked again."""


class WorkerModel(Party):
    """One worker's process."""

    def __init__(self, world: World, name: str, placement: Placement, node: str, placed_at: float) -> None:
        super().__init__(name)
        self.world, self.placement, self.node, self.placed_at = world, placement, node, placed_at
        self.died_of: LossCause = "process"
        self.time_factor = 1.0
        self.streams: list[Stream] = []
        scenario = world.scenario
        self._beat_s = min(HEARTBEAT_S, HUNG_AFTER_S / BEATS) / 2
        self.state = WorkerState(scenario.shape, Heartbeat(HUNG_AFTER_S), HUNG_AFTER_S)
        self.outbox = OutboxModel(self)
        self._requested: dict[str, told.AskJob] = {}
        """What was not answered, by channel."""
        self._held: told.AskJob | None = None
        """What is asked when there is room for a batch: nothing happens in that thread before."""
        self._engine: EngineModel | None = None
        self._has_started = self._busy = self._told_to_end = False
        self._work_done = 0
        """Elements that its process has worked on."""
        self._hangs: tuple[float, Origin | None] | None = None
        """Since when, and at which element."""
        self._free = [0.0] * world.scenario.threads
        """When each of several threads has no work any more,"""
        self._placed = 0.0
        """and when all rows before those that they work on are in their places."""
        self.hang_for: float | None = None
        """At whatever it does next, for so many seconds."""

    def handle(self, event: told.WorkerEvent) -> None:
        """Let the state machine take an event, and do what it says."""
        for instruction in self.state.handle(event, self.world.clock.now):
            self._perform(instruction)
        if isinstance(event, told.DrainRequested):
            self.outbox.drain()

    def _perform(self, instruction: told.WorkerInstruction) -> None:
        scenario, random = self.world.scenario, self.world.clock.random
        if isinstance(instruction, told.AskJob):
            self._ask(instruction)
        elif isinstance(instruction, told.FindLocalSplits):
            share = scenario.local_splits
            found = None if share is None else [one.index for one in instruction.splits if random.random() < share]
            self.handle(told.LocalSplitsFound(instruction.branch, None if found is None else tuple(found)))
        elif isinstance(instruction, told.ProvideLease):
            self._feed(instruction.branch, instruction.lease)
        elif isinstance(instruction, told.RunAssignment):
            epoch = instruction.assignment.epoch
            self.world.audit.started.setdefault(epoch, set()).add(self.name)
            self._engine, self._busy = EngineModel(scenario, epoch, random), False
            self.go_on()
        elif isinstance(instruction, told.StopAssignment):
            self._engine = None
        elif isinstance(instruction, told.PutOut):
            made = instruction.batch or Made(instruction.epoch)
            assert isinstance(made, Made)
            if instruction.rows is not None:
                made = Made(instruction.epoch, made.pieces[slice(*instruction.rows)])
            made.row_range = instruction.row_range
            if instruction.spans is not None:
                made.spans, made.without_data = {key: list(one) for key, one in instruction.spans.items()}, {}
            self.outbox.put(instruction.rank, made)
        elif isinstance(instruction, told.DropEpochs):
            self.outbox.leave_epochs(instruction.before)
        elif isinstance(instruction, told.TellJob):
            progress = events.WorkerProgressReported(self.name, instruction.progress)
            self.world.links.send(self.world.job, self.world.job.handle, progress)
        elif isinstance(instruction, told.EndWork):
            self.outbox.dispatch_soon()

    # --- its life ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to work, unless it has: the job knows that it is ready."""
        if not self._has_started:
            self._has_started = True
            self._keep_telling()
        self.handle(told.WorkStarted())

    def _keep_telling(self) -> None:
        self._pass_time()
        self.world.clock.after(self._beat_s, self, self._keep_telling)

    def _pass_time(self) -> None:
        self.handle(told.WorkerTime(self._condition()))

    def _condition(self) -> WorkerProgress:
        if self._hangs is None:
            return WorkerProgress(threads=1, sigterm_received=self._told_to_end)
        since, origin = self._hangs
        at = AtWork("map", origin if self.world.scenario.names_element else None)
        seconds = self.world.clock.now - since
        stuck = "map works on it for {seconds}"
        return WorkerProgress(threads=1, sigterm_received=self._told_to_end, stuck=stuck, stuck_s=seconds, at=at)

    def ask_to_end(self) -> None:
        """Let its process be asked to end, which it leaves to the job."""
        self._told_to_end = True
        if self._has_started:
            self._pass_time()

    def _hang_at(self, origin: Origin | None) -> None:
        self._hangs = self.world.clock.now, origin
        self.world.deaths += origin is not None
        self.world.clock.after(HUNG_AFTER_S + 0.1, self, self._pass_time)

    def die(self) -> None:
        """The process is gone."""
        if self.alive:
            self.alive = False
            for stream in self.streams:
                if not stream.over:
                    stream.break_off()

    # --- questions -----------------------------------------------------------------------------------------

    def _ask(self, asked: told.AskJob) -> None:
        if asked.channel == RUN and self.outbox.without_room:
            self._held = asked
        else:
            self._requested[asked.channel] = asked
            self._send(asked)

    def _send(self, asked: told.AskJob) -> None:
        """Ask again and again until there is an answer: messages get lost."""
        if self._requested.get(asked.channel) is asked:
            world = self.world
            request = events.WorkerRequestReceived(self.name, asked.channel, asked.number, asked.request)
            world.links.send(world.job, world.job.handle, request)
            world.clock.after(REPEAT_S, self, self._send, asked)

    def response(self, channel: str, number: int, reply: Reply) -> None:
        """Take an answer of the job, perhaps for the second time."""
        asked = self._requested.get(channel)
        if asked is not None and asked.number == number:
            del self._requested[channel]
        self.handle(told.ReplyReceived(channel, number, reply))
        self.go_on()

    # --- work ----------------------------------------------------------------------------------------------

    def _feed(self, branch: int, lease: Lease | None) -> None:
        """Give the engine a lease, or tell the job that it cannot be read here."""
        if self._engine is None:
            return
        self._busy = False
        if lease is None:
            self._engine.end(branch)
        elif self._sees(lease):
            self._engine.feed(lease)
            self._tell_lengths(self._engine)
        else:
            self.handle(told.SplitOpenFailed(SplitOpenFailure(lease.key, lease.spans, unreadable(lease))))
        self.go_on()

    def _tell_lengths(self, engine: EngineModel) -> None:
        lengths, engine.lengths = engine.lengths, []
        for key, elements in lengths:
            self.handle(told.SplitRead(key, elements))

    def _sees(self, lease: Lease) -> bool:
        """Tell whether a split's file is on this worker's node."""
        unseen = self.world.scenario.unseen if self.placement == "remote" else 0.0
        return Random(f"{self.world.scenario.seed} {lease.branch} {lease.split.index}").random() >= unseen

    def go_on(self) -> None:
        """Work on, unless it is at work, or waits: for a lease, an answer, or room for a batch."""
        if self.outbox.without_room:
            return
        if self._held is not None:
            held, self._held = self._held, None
            self._ask(held)
        if self._engine is None or self._busy or RUN in self._requested:
            return
        self._busy = True
        engine = self._engine
        engine.works.clear()
        step, work_done = engine.step()
        self._work_done += work_done
        leaks_after = self.world.scenario.leaks_after
        if leaks_after is not None and self._work_done > leaks_after:
            step = Fatal()
        if self.world.scenario.threads > 1:
            self._work_side_by_side(engine, step)
            return
        seconds = work_done * self.world.scenario.element_s * self.time_factor
        seconds *= 0.5 + self.world.clock.random.random()
        self.world.clock.after(seconds, self, self._stepped, self._engine, step)

    def _work_side_by_side(self, engine: EngineModel, step: Step) -> None:
        """Let several threads work on what a step takes: they go on while rows before theirs are not made."""
        clock, scenario = self.world.clock, self.world.scenario
        started = clock.now
        for work in engine.works:
            started = max(clock.now, heappop(self._free))
            ended = started + work * scenario.element_s * self.time_factor * (0.5 + clock.random.random())
            heappush(self._free, ended)
            self._placed = max(self._placed, ended)
        if isinstance(step, NeedsLease):
            clock.after(started - clock.now, self, self._stepped, engine, step)
            return
        clock.after(max(0.0, self._placed - clock.now), self, self._stepped, engine, step)
        if step is not None:
            clock.after(started - clock.now, self, self._read_on, engine)

    def _read_on(self, engine: EngineModel) -> None:
        if engine is self._engine:
            self._busy = False
            self.go_on()

    def _stepped(self, engine: EngineModel, step: Step) -> None:
        """Tell what the engine has come to, unless it hangs for a while, or was stopped."""
        if engine is not self._engine:
            return
        if self.hang_for is not None:
            seconds, self.hang_for = self.hang_for, None
            self._hang_at(None)
            if seconds < math.inf:
                self.world.clock.after(seconds, self, self._hung, engine, step)
            return
        self._tell_lengths(engine)
        if isinstance(step, NeedsLease):
            side = SideBySide(self.world.scenario.streams, step.reading)
            scenario = self.world.scenario
            told_of = told.LeaseRequested(step.branch, side, threads=scenario.threads, ends_runs=scenario.ends_runs)
            self.handle(told_of)
        elif isinstance(step, Fatal):
            self._meet(step)
        else:
            alone = self.world.scenario.threads == 1
            self._busy = self._busy and not alone
            if step is None:
                self._busy = True  # until there is another stretch
                self.handle(told.AssignmentFinished({}))
            else:
                self.handle(told.BatchProduced(step, tuple(step.left_out)))
            self.go_on()

    def _hung(self, engine: EngineModel, step: Step) -> None:
        self._hangs = None
        self._stepped(engine, step)

    def _meet(self, fatal: Fatal) -> None:
        if fatal.hangs_at is not None:
            self._hang_at(fatal.hangs_at)
        else:
            self.world.deaths += 1
            self.world.job.process_gone(self, "process")

    def __str__(self) -> str:
        asked = [f"{one.channel}: {one.request}" for one in self._requested.values()]
        return (
            f"{self.name}: over {self.state.over}, hangs {self._hangs}, busy {self._busy}, asks {asked}, {self.outbox}"
        )
