"""A model of a worker: asks for work, runs the engine's model, and sends batches against credits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from pecan_ray.cache.substitution import LOOK_AHEAD
from pecan_ray.job import events
from pecan_ray.job.events import LossCause
from pecan_ray.job.heartbeat import BEATS, HEARTBEAT_S, Heartbeat
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    EndData,
    NoMoreLeases,
    Offered,
    Placement,
    Reply,
    UnopenedSplit,
    WorkerProgress,
)
from pecan_ray.plan.splits import AtWork, Lease, LeaseKey, Origin
from pecan_ray.sampling.spans import Span
from tests.protocol.asking import AskingModel
from tests.protocol.clock import Party
from tests.protocol.engine import EngineModel, Made, unreadable
from tests.protocol.outbox import OutboxModel
from tests.protocol.stream import Stream

if TYPE_CHECKING:
    from tests.protocol.world import World


class WorkerModel(Party):
    """One worker's process."""

    def __init__(self, world: World, name: str, placement: Placement, node: str, placed_at: float) -> None:
        super().__init__(name)
        self.world, self.placement, self.node, self.placed_at = world, placement, node, placed_at
        self.ready = self._begun = False
        self.died_of: LossCause = "process"
        self.closed = False
        """It makes no more batches: what is in the outbox can still be fetched."""
        self.slowness = 1.0
        self.streams: list[Stream] = []
        self.outbox = OutboxModel(self)
        self._channels: dict[str, AskingModel] = {}
        self._assignment = Assignment(0)
        self._engine: EngineModel | None = None
        self._here: dict[int, deque[Lease]] = {}
        self._ended: set[int] = set()
        self._rows: dict[LeaseKey, int] = {}
        """Of splits, which row of the epoch their first element is, where rows are numbered."""
        self._at_hand: dict[int, tuple[int, ...]] = {}
        """Of what each branch has offered."""
        self._unopened: list[UnopenedSplit] = []
        self._held: Made | None = None
        """Of a whole plan: the last batch, which carries the positions that follow it without data."""
        self._working = self._ending = False
        self._numbers: Iterator[int] = iter(())
        """Of the batches that it makes in the assignment,"""
        self._made = 0
        """and how many it has made."""
        self._elements = self._batches = 0
        self.heartbeat = Heartbeat(min(world.scenario.worker_timeout_s, world.scenario.hung_after_s))
        self._lot_s = 0.0
        self._hangs: tuple[float, Origin | None] | None = None
        """Since when, and at which element."""
        self._hang_for: float | None = None
        """At whatever it does next, for so many seconds."""
        self._told_to_end = False

    # --- its life ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to work, unless it has: the job knows that it is ready."""
        if self._begun:
            return
        self._begun = True
        self._keep_telling()
        self._next_assignment()

    def _tell(self) -> None:
        self.heartbeat.told = self.world.clock.now
        self.world.links.send(self.world.job, self.world.job.handle, events.WorkerTold(self.name, self._progress))

    def _keep_telling(self) -> None:
        if self.heartbeat.due(self.world.clock.now, self._lot_s):
            self._tell()
        self.world.clock.after(min(HEARTBEAT_S, self.heartbeat.timeout_s / BEATS) / 2, self, self._keep_telling)

    @property
    def _progress(self) -> WorkerProgress:
        done = WorkerProgress(self._elements, self._batches, threads=1, told_to_end=self._told_to_end)
        if self._hangs is None:
            return done
        since, origin = self._hangs
        at = AtWork("map", origin if self.world.scenario.names_element else None)
        return replace(done, stuck="map works on it for {seconds}", stuck_s=self.world.clock.now - since, at=at)

    def ask_to_end(self) -> None:
        """Let its process be asked to end, which it leaves to the job."""
        self._told_to_end = True
        if self._begun:
            self._tell()

    def hang(self, seconds: float) -> None:
        """Let it hang at whatever it does next, for so long."""
        self._hang_for = seconds

    def _hang_at(self, origin: Origin | None) -> None:
        self._working, self._hangs = True, (self.world.clock.now, origin)
        self.world.deaths += origin is not None
        self.world.clock.after(self.world.scenario.hung_after_s + 0.1, self, self._tell)

    def _go_on_after_all(self, engine: EngineModel | None, act: Callable[..., None], *args: Any) -> None:
        self._hangs = None
        self._go_on(engine, act, *args)

    def leave_epochs(self, before: int) -> None:
        """Drop what belongs to epochs before one, and ask for other work."""
        self.outbox.leave_epochs(before)
        if self._engine is not None and self._assignment.epoch < before and not self._ending and self._hangs is None:
            self._engine, self._held, self._unopened = None, None, []
            self._next_assignment()
        else:
            self.work_again()

    def drain(self) -> None:
        """Take no more work, drop what is in progress, and keep what is finished until it is fetched."""
        self._close()

    def _close(self) -> None:
        self.closed = True
        self._engine, self._held = None, None
        self.outbox.close()

    def die(self) -> None:
        """The process is gone."""
        if self.alive:
            self.alive = False
            for stream in self.streams:
                if not stream.over:
                    stream.break_off()

    # --- assignments ---------------------------------------------------------------------------------------

    def _channel(self, name: str) -> AskingModel:
        return self._channels.setdefault(name, AskingModel(self, name))

    def answer(self, channel: str, number: int, reply: Reply) -> None:
        """Take an answer of the job."""
        self._channel(channel).answered(number, reply)

    def _next_assignment(self) -> None:
        self._channel("run").ask(AskAssignment(self._progress), self._begin_assignment)

    def _begin_assignment(self, reply: Any) -> None:
        if not isinstance(reply, Assigned):
            self._close()
            return
        self._assignment, self._lot_s = reply.assignment, reply.lot_s
        self.world.audit.began.setdefault(reply.assignment.epoch, set()).add(self.name)
        scenario = self.world.scenario
        self._engine = EngineModel(scenario, reply.assignment.epoch, self.world.clock.random)
        self._here = {branch: deque() for branch in range(len(scenario.sources))}
        self._ended, self._at_hand, self._rows = set(), {}, {}
        self._held, self._working, self._ending = None, False, False
        self._numbers, self._made = reply.assignment.numbers(), 0
        self._work()

    # --- leases --------------------------------------------------------------------------------------------

    def _ask_leases(self, branch: int, reading: int = 0) -> None:
        """Ask for leases of a branch; with some that are `reading`, for others beside them."""
        channel = self._channel(f"take:{branch}")
        if channel.question is None and branch not in self._ended:
            assert self._engine is not None
            lengths, self._engine.lengths = tuple(self._engine.lengths), []
            lot, looks = self.world.scenario.lot, self.world.scenario.at_hand is not None
            at_hand = self._at_hand.pop(branch, ())
            look = LOOK_AHEAD * lot * looks
            streams = self.world.scenario.streams
            about = (self._assignment.epoch, branch, max(lot, streams), lengths, look, at_hand)
            asked = AskLeases(*about, self._took_unopened(), streams, reading)
            engine = self._engine
            channel.ask(asked, lambda reply: self._took(engine, branch, reply, reading))

    def _took(
        self, engine: EngineModel, branch: int, reply: tuple[Lease, ...] | Offered | NoMoreLeases, reading: int
    ) -> None:
        """Take an answer, unless the assignment was left meanwhile."""
        if engine is self._engine:
            self._take(branch, reply, reading)
        else:
            self.work_again()

    def _take(self, branch: int, reply: tuple[Lease, ...] | Offered | NoMoreLeases, reading: int) -> None:
        if isinstance(reply, NoMoreLeases):
            reply = ()
        if isinstance(reply, Offered):
            share, random = self.world.scenario.at_hand or 0.0, self.world.clock.random
            self._at_hand[branch] = tuple(split.index for split in reply.splits if random.random() < share)
        leases = reply.leases if isinstance(reply, Offered) else reply
        if not leases and not reading:
            self._ended.add(branch)
        for lease in leases:
            if lease.row is not None:
                self._rows[lease.key] = lease.row
            if self._sees(lease):
                self._here[branch].append(lease)
            else:
                self._unopened.append(UnopenedSplit(lease.key, lease.spans, unreadable(lease)))
        self.work_again()

    def _sees(self, lease: Lease) -> bool:
        """Tell whether a split's file is on this worker's node."""
        unseen = self.world.scenario.unseen if self.placement == "remote" else 0.0
        return Random(f"{self.world.scenario.seed} {lease.branch} {lease.split.index}").random() >= unseen

    def _took_unopened(self) -> tuple[UnopenedSplit, ...]:
        taken, self._unopened = tuple(self._unopened), []
        return taken

    def work_again(self) -> None:
        """Go on, unless it is at work: there are leases or room again."""
        if not self._working:
            self._work()

    def _work(self) -> None:
        """Make the next batch, as far as there are leases and memory for it."""
        engine = self._engine
        if engine is None or self._ending or self.outbox.without_room:
            return
        self._working = False
        worked = 0
        for branch, here in self._here.items():
            while True:
                made, more = engine.run(ending=False)
                worked += more
                if engine.dead or engine.hangs_at:
                    self._later(worked, self._die_of_work)
                    return
                if made is not None:
                    self._later(worked, self._finished, made)
                    return
                if not here:
                    break
                engine.feed(here.popleft())
                if not here and self.world.scenario.ahead and not self.world.scenario.serial:
                    self._ask_leases(branch, reading=int(self.world.scenario.streams > 1))
            if branch not in self._ended:
                if worked:
                    self._later(worked, self._work)
                else:
                    self._ask_leases(branch)
                return
        made, more = engine.run(ending=True)
        if engine.dead or engine.hangs_at:
            self._later(worked + more, self._die_of_work)
        elif made is not None:
            self._later(worked + more, self._finished, made)
        else:
            self._later(worked + more, self._end_assignment)

    def _die_of_work(self) -> None:
        if self._engine is not None and self._engine.hangs_at is not None:
            self._hang_at(self._engine.hangs_at)
            return
        self.world.deaths += 1
        self.world.job.process_gone(self, "process")

    def _later(self, worked: int, act: Callable[..., None], *args: Any) -> None:
        self._working = True
        self._elements += worked
        leaks_after = self.world.scenario.leaks_after
        if leaks_after is not None and self._elements > leaks_after:
            act, args = self._die_of_work, ()
        seconds = worked * self.world.scenario.element_s * self.slowness
        seconds *= 0.5 + self.world.clock.random.random()
        self.world.clock.after(seconds, self, self._go_on, self._engine, act, *args)

    def _go_on(self, engine: EngineModel | None, act: Callable[..., None], *args: Any) -> None:
        if engine is not self._engine or engine is None:
            return
        if self._hang_for is not None:
            seconds, self._hang_for = self._hang_for, None
            self._hang_at(None)
            if seconds < math.inf:
                self.world.clock.after(seconds, self, self._go_on_after_all, engine, act, *args)
            return
        self._working = False
        act(*args)

    # --- the end of an assignment --------------------------------------------------------------------------

    def _finished(self, made: Made) -> None:
        if self.world.scenario.serial:
            made, self._held = self._held or Made(made.epoch), made
        if made.rows:
            self._deal(made)
        self._work()

    def _end_assignment(self) -> None:
        assert self._engine is not None
        self._ending = True
        if self.world.scenario.coordinated:
            self._end_rounds(self._engine)
            return
        (rest, undelivered), held, self._held = self._engine.rest(), self._held, None
        if held is not None:
            if not rest.rows:
                held.carry(rest)
            self._deal(held)
        if self._assignment.delivered and not rest.rows:
            undelivered.carry(rest)
        if undelivered.spans or undelivered.left_out:
            ending = EndData(undelivered.epoch, undelivered.spans, 0, tuple(undelivered.left_out))
            self._channel("run").ask(ending, lambda _: self._ask_end(rest))
        else:
            self._ask_end(rest)

    def _ask_end(self, rest: Made) -> None:
        assert self._engine is not None
        keeps = not self.world.scenario.drop_remainder
        batches = self._made + (rest.rows > 0 and keeps)
        lengths, self._engine.lengths = tuple(self._engine.lengths), []
        unopened = self._took_unopened()
        asked = EndAssignment(self._assignment.epoch, rest.spans, batches, lengths, rest.rows, unopened)
        self._channel("run").ask(asked, lambda reply: self._leave(rest, reply))

    def _leave(self, rest: Made, reply: Any) -> None:
        self._engine = None
        if reply != "flush" or not (rest.spans or rest.left_out):
            self._next_assignment()
        elif rest.rows and not self.world.scenario.drop_remainder:
            self._deal(rest)
            self._next_assignment()
        else:
            ending = EndData(rest.epoch, rest.spans, rest.rows, tuple(rest.left_out))
            self._channel("run").ask(ending, lambda _: self._next_assignment())

    def _end_rounds(self, engine: EngineModel) -> None:
        """Tell what yields nothing, and ask what becomes of the rounds of what is left."""
        undelivered, tail = engine.rest()[1], engine.tail()
        spans: dict[LeaseKey, list[Span]] = {}
        for made in tail:
            for key, mine in made.spans.items():
                spans.setdefault(key, []).extend(mine)

        def ask_end(_: object = None) -> None:
            lengths, engine.lengths = tuple(engine.lengths), []
            rows = sum(made.rows for made in tail)
            asked = EndAssignment(self._assignment.epoch, spans, self._made, lengths, rows)
            self._channel("run").ask(asked, leave)

        def leave(reply: object) -> None:
            self._engine = None
            for made in tail if reply == "flush" else ():
                if made.rank is not None:
                    self._deal(made)
                elif made.rows:
                    ending = EndData(made.epoch, made.spans, made.rows, tuple(made.left_out))
                    self._channel("run").ask(ending, lambda _: self._next_assignment())
                    return
            self._next_assignment()

        if undelivered.spans or undelivered.left_out:
            told = EndData(undelivered.epoch, undelivered.spans, 0, tuple(undelivered.left_out))
            self._channel("run").ask(told, ask_end)
        else:
            ask_end()

    def _deal(self, made: Made) -> None:
        rank, number = self._assignment.rank, next(self._numbers)
        self._made += 1
        if made.pieces and all(key in self._rows for key, _, _ in made.pieces):
            rows = sorted(self._rows[key] + element for key, element, _ in made.pieces)
            made.row = rows[0] if rows == [*range(rows[0], rows[0] + made.rows)] else None
        if delivered := self._assignment.delivered:
            if self._assignment.has(number):
                return
            rank = number % len(delivered)
        rank = rank if made.rank is None else made.rank
        self._batches += 1
        self.outbox.put(rank, made)

    def describe(self) -> str:
        """Say what it is doing, for whoever looks for what a job waits for."""
        asked = [f"{one.channel}: {one.question}" for one in self._channels.values() if one.question is not None]
        return (
            f"{self.name}: ready {self.ready}, closed {self.closed}, frozen until {self.frozen_until:.0f} s, "
            f"hangs {self._hangs}, "
            f"assignment {self._assignment}, asks {asked}, {self.outbox}"
        )
