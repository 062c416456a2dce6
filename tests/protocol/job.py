"""The actor of a job: the real `JobState`, and what performs its instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan_ray.job import events, instructions, trainer_events, worker_events
from pecan_ray.job.active_clock import LONGEST_GAP_S, TICK_S, ActiveClock
from pecan_ray.job.journal import entries, handled, journal_header, packed, pages, replay, snapshot
from pecan_ray.job.lost_events import lost_before
from pecan_ray.job.messages import EndData, TrainerReport
from pecan_ray.job.notification_schedule import NotificationSchedule
from pecan_ray.job.sharing import ROUND_S
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.state import JobState
from pecan_ray.plan.splits import Split
from tests.ledger_check import check_ledger
from tests.protocol.audit import must
from tests.protocol.clock import Party
from tests.protocol.surroundings import check_shares, heard_bids
from tests.protocol.trainer import TrainerModel
from tests.protocol.worker import WorkerModel

if TYPE_CHECKING:
    from tests.protocol.world import World

HOLD_S = 5.0
"""A trainer that waits for orders is answered after so long in any case."""
STARTS_S = 0.3
"""Mean of how long it takes to start a process,"""
KILLS_S = 0.5
"""to kill one,"""
NOTICES_S = 0.5
"""to notice that one is gone,"""
FINDS_S = 0.2
"""and to find one that another process has started."""
ENDED_S = 5.0
"""A worker that the job has done with is gone within so long."""
MANY_SPLITS = 50
"""With so many the ledger is checked now and then only."""
WITHOUT_LEDGER = (events.TimePassed, events.TrainerWaiting, events.WorkerProgressReported, events.WorkerPlaced)
"""Events that do not touch the ledger."""


class JobModel(Party):
    """The controller's process."""

    def __init__(self, world: World, before: JobModel | None = None) -> None:
        """`before`: whose process was killed, and from whose journal this one goes on."""
        super().__init__("job")
        self.world = world
        began = journal_header(world.spec, world.clock.now)
        self.journal = [packed(began)] if any(one.kind == "kill controller" for one in world.scenario.faults) else []
        """Entries as they are written; none where no controller is killed."""
        self.listings: list[bytes] = []
        """Pages of listings likewise."""
        self._clock = ActiveClock(LONGEST_GAP_S, lambda: world.clock.now)
        if before is None:
            self.state = JobState(world.spec, self.now())
        else:
            self.journal, self.listings = before.journal, before.listings
            self.state = self._replayed(before)
        self.processes: dict[str, WorkerModel] = {} if before is None else before.processes
        self._mine: set[str] = set()
        """Workers that this process has started or adopted;"""
        self._followed: set[str] = set()
        """of these, the ones whose end it is told of."""
        self._unsupported_kind: dict[str, float] = {}
        """Living workers that the job does not know, and since when."""
        self.ended_at: float | None = None
        self.dies_in: float | None = None
        """It is killed before it does anything about the next event; another process comes after so many seconds."""
        self._can_continue = before is not None
        """It has yet to hear that it goes on, before anything else."""
        self._handled = 0
        self._check_every = 1 if len(world.scenario.splits) < MANY_SPLITS else 50
        self._polls: dict[int, tuple[TrainerModel, int, int]] = {}
        """Trainers that wait for orders, the numbers of their calls, and of the orders that they know."""
        self._notices = NotificationSchedule()
        self._instruction_handlers: dict[type, Callable[[Any], None]] = {
            instructions.FindRoom: self._find_room,
            instructions.RejectTrainer: self._reject,
            instructions.LookForTrainers: self._look_for_trainers,
            instructions.LookForWorkers: self._look_for_workers,
            instructions.BeginListing: self._begin_listing,
            StartWorker: self._start_worker,
            instructions.ReattachWorker: self._adopt_worker,
            instructions.EndUnknownWorkers: self._stop_unknown_workers,
            instructions.DrainWorker: self._drain_worker,
            instructions.KillWorker: self._kill_worker,
            instructions.LeaveEpochs: self._leave_epochs,
            instructions.Response: self._response,
            instructions.TellTrainers: self._tell_trainers,
            instructions.EndJob: self._end,
            # What a worker makes of an element, and how fast it reads, are none of the protocol.
            **dict.fromkeys((instructions.UseUsersOrder, instructions.LimitRemoteIo, instructions.Log), lambda _: None),
        }

    def now(self) -> float:
        """Return the job's time, which stands still while its process does."""
        return self._clock.now()

    def begin(self) -> None:
        """Let time pass."""
        self.world.clock.after(TICK_S, self, self._tick)

    def _tick(self) -> None:
        self.handle(events.TimePassed())
        self._look_for_strangers()
        self.world.clock.after(TICK_S, self, self._tick)

    def _look_for_strangers(self) -> None:
        """Whoever the job does not know, or no more, is soon ended."""
        now = self.world.clock.now
        if self.stands_still(now):
            self._unsupported_kind.clear()
            return
        strangers = [
            one for name, one in self.processes.items() if one.alive and name not in self.state.worker_table.workers
        ]
        self._unsupported_kind = {one.name: self._unsupported_kind.get(one.name, now) for one in strangers}
        for name, since in self._unsupported_kind.items():
            must(now - since < ENDED_S, f"{name} has lived on for {now - since:.0f} s, and the job does not know it")

    def handle(self, event: events.Event) -> None:
        """Let the state machine take an event, check it, and do what it says; later, while the process stands still."""
        if not self.alive:
            return
        if self.stands_still(self.world.clock.now):
            self.world.clock.after(0.0, self, self.handle, event)
            return
        self.go_on()
        if not self.alive:
            return  # it was killed by then, and the message with it
        must(not (lost := lost_before(self.state, event)), f"its journal has lost nothing, but {lost}")
        epoch, now = self.state.ledger.epoch, self.now()
        done = self.state.handle(event, now)
        if self.world.scenario.rivals:
            check_shares(self.state)
        if self.journal:
            if isinstance(event, events.SplitPageReceived):
                self.listings.append(packed(event))
            self.journal.append(packed(handled(event, now, done)))
        if not isinstance(event, WITHOUT_LEDGER):
            self._handled += 1
            if not self._handled % self._check_every:
                check_ledger(self.state.ledger)
        if self.state.ledger.epoch != epoch or _brings_on(event):
            self.world.progressed()
        if self.dies_in is not None:
            self.world.replace_controller(self.dies_in)
            return
        for instruction in done:
            self._instruction_handlers[type(instruction)](instruction)

    def _replayed(self, before: JobModel) -> JobState:
        """Return the job as its journal tells of it, which must be as it was; sometimes from a snapshot on."""
        found = [entry for entry, _ in entries(b"".join(self.journal))]
        listed = [page for page, _ in pages(b"".join(self.listings))]
        job = replay(found, self.world.spec, listed)
        now = job.at
        self._clock = ActiveClock(LONGEST_GAP_S, lambda: self.world.clock.now, begin=now)
        must(job.state.stats(now) == before.state.stats(now), "a job is another one after a replay")
        if self.world.clock.random.random() < 0.5:
            first = found[0]
            self.journal = [packed(first), packed(snapshot(job.state, job.plan_versions, job.at, job.pages))]
            again = replay((entry for entry, _ in entries(b"".join(self.journal))), self.world.spec, listed)
            must(again.state.stats(now) == before.state.stats(now), "a job is another one after a snapshot")
            return again.state
        return job.state

    def go_on(self) -> None:
        """Go on, once this process has started, unless it does."""
        if self._can_continue:
            self._can_continue = False
            self.begin()
            self.handle(events.ControllerRestarted())

    # --- trainers ------------------------------------------------------------------------------------------

    def register(self, trainer: TrainerModel, came: events.TrainerRegistered) -> None:
        """Take a trainer's call."""
        self.handle(came)
        if self.alive:
            self.world.links.send(trainer, trainer.welcome)

    def reported(self, trainer: TrainerModel, report: TrainerReport) -> None:
        """Take a report and say what holds then."""
        self.handle(events.TrainerReported(report))
        if self.alive:
            self._notices.mark_sent(trainer.rank)
            answer = trainer_events.ReportAccepted(report.number, self.state.trainer_update(trainer.rank))
            self.world.links.send(trainer, trainer.handle, answer)

    def listened(self, trainer: TrainerModel, event: events.TrainerWaiting, poll: int) -> None:
        """Keep a trainer's call until there are orders for it that are newer than those that it knows."""
        self.handle(event)
        if not self.alive:
            return
        self._polls[trainer.rank] = trainer, poll, event.number
        if not self._give_due_orders(trainer.rank):
            self.world.clock.after(HOLD_S, self, self._give_orders, trainer.rank, poll)

    def _give_due_orders(self, rank: int) -> bool:
        """Answer a rank that listens, if that is due; tell whether it was."""
        _, poll, known = self._polls[rank]
        due = self._notices.is_due(rank, known, self.state.trainer_update(rank).number, self.world.clock.now)
        if due:
            self._give_orders(rank, poll)
        return due

    def _give_orders(self, rank: int, poll: int) -> None:
        waiting = self._polls.get(rank)
        if waiting is not None and waiting[1] == poll:
            del self._polls[rank]
            self._notices.mark_sent(rank)
            trainer = waiting[0]
            self.world.links.send(trainer, trainer.ordered, poll, self.state.trainer_update(rank))

    def _tell_trainers(self, instruction: instructions.TellTrainers) -> None:
        clock, only_limit_raised = self.world.clock, instruction.only_limit_raised
        at = self._notices.changed(instruction.ranks, len(self._polls), clock.now, only_limit_raised=only_limit_raised)
        clock.after(at - clock.now, self, self._send_due)

    def _send_due(self) -> None:
        due, again = self._notices.take_due(self._polls, self.world.clock.now)
        for rank in due:
            self._give_due_orders(rank)
        if again is not None:
            self.world.clock.after(again - self.world.clock.now, self, self._send_due)

    def _reject(self, instruction: instructions.RejectTrainer) -> None:
        raise AssertionError(f"{instruction.incarnation} was refused: {instruction.error}")

    def _look_for_trainers(self, instruction: instructions.LookForTrainers) -> None:
        """Find out whether trainers' processes exist; in some clusters nobody can tell."""
        if self.world.scenario.processes_unknown:
            return
        for one in instruction.trainers:
            state: events.ProcessState = "exists" if self.world.trainers[one.rank].alive else "ended"
            found = events.TrainerChecked(one.rank, one.incarnation, state)
            self.world.clock.after(self._about(NOTICES_S), self, self.handle, found)
            self.world.faults["trainer looked for"] += 1

    def _look_for_workers(self, instruction: instructions.LookForWorkers) -> None:
        """Find out whether workers stand in line for CPUs: none does, since here a process stands still or hangs."""
        if self.world.scenario.processes_unknown:
            return
        for one in instruction.workers:
            # Nothing is drawn for it, so that seeds of before still stand for their histories.
            self.world.clock.after(NOTICES_S, self, self.handle, events.WorkerChecked(one.worker, 0.0, 1.0))

    # --- the cluster ---------------------------------------------------------------------------------------

    def _find_room(self, instruction: instructions.FindRoom) -> None:
        scenario = self.world.scenario
        hosts = tuple((node, float(scenario.cpus)) for node in instruction.nodes)
        remote = (float(scenario.cpus),) * 2
        self.world.links.call(self, self.handle, events.RoomFound(hosts, remote))
        if scenario.rivals:
            self.world.links.call(self, self._hear_rivals, instruction.nodes, ())

    def _hear_rivals(self, hosts: tuple[str, ...], before: tuple[str, ...]) -> None:
        """Hear what other jobs bid, of which some have ended since and others are too busy to tell."""
        heard = heard_bids(self.world, hosts, before)
        self.handle(heard)
        self.world.faults["bids heard"] += 1
        told = tuple(sorted({bid.demand.job for bid in heard.pool_requests} | (set(before) - set(heard.finished_jobs))))
        self.world.clock.after(ROUND_S, self, self._hear_rivals, hosts, told)

    def _begin_listing(self, instruction: instructions.BeginListing) -> None:
        for branch in range(len(self.world.scenario.sources)):
            known = instruction.known[branch] if instruction.known else 0
            if known is not None:
                self._list(branch, known)

    def _list(self, branch: int, begin: int) -> None:
        scenario = self.world.scenario
        splits = scenario.sources[branch]
        page = tuple(
            Split(
                index,
                elements=scenario.told_elements(branch, index),
                about=scenario.about(branch, index),
                whole=scenario.is_whole(branch, index),
            )
            for index in range(begin, min(begin + scenario.page, len(splits)))
        )
        if page:
            self.handle(events.SplitPageReceived(branch, page))
        after = begin + scenario.page
        if after < len(splits):
            self.world.clock.after(self._about(scenario.page_s), self, self._list, branch, after)
        else:
            self.world.clock.after(self._about(scenario.page_s), self, self.handle, events.ListingEnded(branch))

    def _about(self, seconds: float) -> float:
        return seconds * (0.2 + 1.6 * self.world.clock.random.random())

    def _start_worker(self, instruction: StartWorker) -> None:
        name, clock = instruction.worker, self.world.clock
        self._mine.add(name)
        if name not in self.processes:  # no process before this one has come to it
            node = instruction.host or self.world.announced.node_in_place_of(f"node-{clock.random.randrange(2)}")
            placed = clock.now + self._about(self.world.scenario.placing_s) + self._about(STARTS_S)
            self.processes[name] = WorkerModel(self.world, name, instruction.placement, node, placed)
        worker = self.processes[name]
        if not worker.alive:
            self._tell_of_death(worker, worker.died_of)
            return
        self._followed.add(name)
        placing = max(0.0, worker.placed_at - clock.now)
        if placing > 1.0 + STARTS_S:
            clock.after(1.0, worker, self.handle, events.WorkerPending(name, "other jobs have all CPUs"))
        clock.after(placing, worker, self.handle, events.WorkerPlaced(name, worker.node, len(self.processes)))
        clock.after(placing + self._about(STARTS_S), worker, self._ready, worker)

    def _ready(self, worker: WorkerModel) -> None:
        if self.stands_still(self.world.clock.now):
            self.world.clock.after(0.0, self, self._ready, worker)
            return
        self.handle(events.WorkerReady(worker.name))
        self._run(worker)

    def _run(self, worker: WorkerModel) -> None:
        if self.alive:
            self.world.clock.after(self.world.links.delay(), worker, worker.begin)

    def _adopt_worker(self, instruction: instructions.ReattachWorker) -> None:
        self._mine.add(instruction.worker)
        self.world.clock.after(self._about(FINDS_S), self, self._switch_to, self.processes[instruction.worker])

    def _switch_to(self, worker: WorkerModel) -> None:
        if not worker.alive:
            self.handle(events.WorkerLost(worker.name, "restart", "it ended while the job had no controller"))
            return
        self._followed.add(worker.name)
        self.world.clock.after(self.world.links.delay(), worker, self.handle, events.WorkerRestored(worker.name))
        self._run(worker)

    def _stop_unknown_workers(self, instruction: instructions.EndUnknownWorkers) -> None:
        self.world.clock.after(self._about(FINDS_S), self, self._end_those_found)

    def _end_those_found(self) -> None:
        for name, worker in self.processes.items():
            if name not in self._mine:
                self.world.clock.after(self._about(KILLS_S), None, worker.die)

    def _drain_worker(self, instruction: instructions.DrainWorker) -> None:
        worker = self.processes[instruction.worker]
        self.world.links.call(worker, worker.handle, worker_events.DrainRequested())

    def _leave_epochs(self, instruction: instructions.LeaveEpochs) -> None:
        worker = self.processes[instruction.worker]
        self.world.links.send(worker, worker.handle, worker_events.EpochsLeft(instruction.before))

    def _kill_worker(self, instruction: instructions.KillWorker) -> None:
        worker = self.processes.get(instruction.worker)
        if worker is None:
            return  # the process that was to start it was killed
        self.world.clock.after(self._about(KILLS_S), None, self.process_gone, worker, "process", False)

    def process_gone(self, worker: WorkerModel, cause: events.LossCause, told: bool = True) -> None:
        """End a worker's process; the job hears of it a little later, unless it has ended it itself."""
        if worker.alive:
            worker.died_of = cause
            worker.die()
            if told and worker.name in self._followed:
                self._tell_of_death(worker, cause)

    def _tell_of_death(self, worker: WorkerModel, cause: events.LossCause) -> None:
        lost = events.WorkerLost(worker.name, cause, f"its {cause} died")
        self.world.clock.after(self._about(NOTICES_S), self, self.handle, lost)

    def _response(self, instruction: instructions.Response) -> None:
        worker = self.processes[instruction.worker]
        self.world.links.send(worker, worker.response, instruction.channel, instruction.number, instruction.reply)

    def _end(self, instruction: instructions.EndJob) -> None:
        self.alive = False
        self.ended_at = self.world.clock.now
        for worker in self.processes.values():  # what keeps them ends as well
            self.world.clock.after(self._about(KILLS_S), None, worker.die)
        self.world.progressed()


def _brings_on(event: events.Event) -> bool:
    """Tell whether a job comes further with an event though no batch is used.

    A batch was delivered that waits for those of other ranks, elements yield nothing, or more is listed.
    """
    if isinstance(event, events.TrainerReported):
        return bool(event.report.received.batches)
    if isinstance(event, events.WorkerRequestReceived):
        return isinstance(event.request, EndData) and bool(event.request.spans)
    return isinstance(event, (events.SplitPageReceived, events.ListingEnded))
