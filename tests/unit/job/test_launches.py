"""A program that is killed and started again under its job's name: the new launch takes the place of the old one.

Launches, controllers and the cluster's table of names run on a virtual clock; what registers, and what it registers
with, is the code that runs live.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pecan_ray.errors import PecanError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.active_clock import TICK_S
from pecan_ray.job.instructions import EndJob, FindRoom, RejectTrainer
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.registration import NoResponse, Registration, Rejected, StopWithError
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.state import JobState
from pecan_ray.options import Workers
from tests.long_form import some_later
from tests.protocol.clock import Clock

LOOK_AGAIN_S = 0.2
MESSAGE_S = 0.3
"""A message takes up to so long,"""
NAME_FREE_S = 1.0
"""and the name of an actor that has ended is free within so long."""
HISTORIES = 400
SOON_S = 5.0 + 3.0 + 2.0
"""The processes of an old launch are known to be gone so long after the last of them has ended."""


class Cluster(Clock):
    """The clock, and the controller that has the job's name."""

    controller: Controller | None = None

    def message(self, act: Callable[..., None], *arguments: Any) -> None:
        self.after(MESSAGE_S * self.random.random(), None, act, *arguments)

    def run(self, until: float) -> None:
        self.after(until - self.now, None, lambda: None)
        while self.now < until:
            self.step()


class Controller:
    """An actor with the job's name: a job that its first trainer has brought."""

    def __init__(self, cluster: Cluster, world_size: int) -> None:
        self.cluster, self.world_size, self.alive = cluster, world_size, True
        shape = LedgerShape(world_size=world_size, epochs=1)
        self.job = JobState(JobSpec("job", shape, Workers(1)), cluster.now)
        cluster.controller = self
        self._tick()

    def _tick(self) -> None:
        if self.alive:
            self.handle(events.TimePassed())
            self.cluster.after(TICK_S, None, self._tick)

    def handle(self, event: events.Event) -> PecanError | None:
        """Let the job take an event; return why somebody is refused."""
        refused: PecanError | None = None
        for one in self.job.handle(event, self.cluster.now) if self.alive else ():
            if isinstance(one, RejectTrainer):
                refused = one.error
            elif isinstance(one, FindRoom):
                found = events.RoomFound(tuple((node, 4.0) for node in one.nodes), ())
                self.cluster.message(self.take, found)
            elif isinstance(one, StartWorker):
                self.cluster.message(self.take, events.WorkerPlaced(one.worker, one.host, 1))
                self.cluster.after(MESSAGE_S, None, self.take, events.WorkerReady(one.worker))
            elif isinstance(one, EndJob):
                self.end()
        return refused

    def take(self, event: events.Event) -> None:
        self.handle(event)

    def end(self) -> None:
        self.alive = False
        self.cluster.after(NAME_FREE_S * self.cluster.random.random(), None, self._free_name)

    def _free_name(self) -> None:
        if self.cluster.controller is self:
            self.cluster.controller = None


@dataclass
class Process:
    """A rank of a launch."""

    cluster: Cluster
    launch: str
    rank: int
    world_size: int
    options: str = ""
    """What else its ranks agree on."""
    alive: bool = True
    joined: Controller | None = None
    joined_at: float = math.inf
    error: BaseException | None = None
    registration: Registration = field(init=False)

    def begin(self) -> None:
        self.registration = Registration("job", self.world_size, self.cluster.now)
        self._try()

    def _try(self) -> None:
        if self.alive:
            self.cluster.message(self._call)

    def _call(self) -> None:
        """Find or start the controller, and register; one that is alone joins nobody else's."""
        controller = self.cluster.controller
        alone = self.world_size == 1
        if controller is None:
            controller = Controller(self.cluster, self.world_size)
        elif alone:
            asked = events.OtherRunRegistered(self._incarnation)
            self._retry(controller, controller.handle(asked), "taken")
            return
        described = (("world_size", str(self.world_size)), ("options", self.options))
        came = events.TrainerRegistered(self.rank, self._incarnation, f"node-{self.rank % 2}", described)
        if (refused := controller.handle(came)) is not None or not controller.alive:
            self._retry(controller, refused, "gone")
        elif self.alive:  # not killed while it was registering
            self.joined, self.joined_at = controller, self.cluster.now
            self._send_heartbeat()

    @property
    def _incarnation(self) -> str:
        return f"{self.launch}-{self.rank}"

    def _retry(self, controller: Controller, refused: PecanError | None, how: Any) -> None:
        if not self.alive:
            return
        hindrance = Rejected(refused) if refused is not None else NoResponse(how, "")
        step = self.registration.decide(hindrance, self.cluster.now)
        if isinstance(step, StopWithError):
            self.error = step.error
        else:
            self.cluster.after(LOOK_AGAIN_S, None, self._try)

    def _send_heartbeat(self) -> None:
        """Be heard once a second; what was said before it was killed may arrive afterwards."""
        if self.alive and self.joined is not None and self.joined.alive:
            met = self.joined.job.trainer_update(self.rank).met
            self.cluster.message(self.joined.take, events.TrainerWaiting(self.rank, self._incarnation, met))
            self.cluster.after(1.0, None, self._send_heartbeat)

    def kill(self) -> None:
        self.alive = False
        if self.world_size == 1 and self.joined is not None:
            self.joined.end()  # Ray ends an actor with the process that owns it


def launched(
    cluster: Cluster, name: str, world_size: int, options: str, begin: float, within_s: float
) -> list[Process]:
    """Let the ranks of a launch begin, in any order, within some seconds."""
    ranks = [Process(cluster, name, rank, world_size, options) for rank in range(world_size)]
    for process in ranks:
        cluster.after(begin + within_s * cluster.random.random(), None, process.begin)
    return ranks


@pytest.mark.parametrize("lot", some_later(range(4), 1, 2, 3))
def test_a_launch_takes_the_place_of_one_that_was_killed_whatever_that_was_doing(lot: int) -> None:
    for seed in range(lot * HISTORIES // 4, (lot + 1) * HISTORIES // 4):
        cluster = Cluster(seed)
        random = cluster.random
        first, second = random.choice((1, 1, 2, 2, 3, 8)), random.choice((1, 1, 2, 2, 3, 8))
        options = random.choice(("", "", "other workers"))
        old = launched(cluster, "old", first, "", 0.0, random.choice((0.1, 5.0)))
        killed = random.choice((0.5, 3.0, 20.0)) * random.random()
        for process in old:
            cluster.after(killed + random.choice((0.0, 1.0)) * random.random(), None, process.kill)
        begins, within_s = killed + random.choice((0.0, 0.0, 4.0, 12.0)), random.choice((0.1, 3.0))
        new = launched(cluster, "new", second, options, begins, within_s)
        cluster.run(begins + within_s + 60.0)
        told = f"seed {seed}: {first} -> {second} ranks, killed after {killed:.1f} s, again after {begins:.1f} s"
        assert [str(process.error) for process in new if process.error] == [], told
        jobs = {id(process.joined) for process in new}
        assert len(jobs) == 1 and new[0].joined is not None, f"{told}: ranks are in several jobs, or in none"
        job = new[0].joined.job
        assert new[0].joined.world_size == second and job.trainers.complete and job.error is None, told
        assert {one.registration.incarnation for one in job.trainers.ranks.values()} == {
            f"new-{r}" for r in range(second)
        }, told
        latest = max(process.joined_at for process in new)
        assert latest < max(killed + 1.0, begins + within_s) + SOON_S, f"{told}: joined after {latest:.1f} s"


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (3, 2)])
def test_a_launch_leaves_one_that_is_heard_alone_and_says_so(first: int, second: int) -> None:
    for seed in range(20):
        cluster = Cluster(seed)
        old = launched(cluster, "old", first, "", 0.0, 2.0)
        new = launched(cluster, "new", second, "other workers", 5.0, 1.0)
        cluster.run(30.0)
        assert all(process.joined is not None and process.joined.alive for process in old)
        assert old[0].joined is not None and old[0].joined.job.error is None
        for process in new:
            assert process.joined is None
            assert isinstance(process.error, PecanError) and not isinstance(process.error, StaleJobError)
            assert "gives way when" in str(process.error) or "5 s gives way" in str(process.error)
