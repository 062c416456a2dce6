"""The AutoPlacement actor of a job: hands out splits, starts and drains workers, keeps the ledger.

It is off the data path: batches go from workers to clients.  All state is touched on one event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import threading
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import ray

from pecan_ray.engines.contract import BadElement, SpansByKey
from pecan_ray.errors import ClusterError, PecanError, SourceError, WorkerStartError
from pecan_ray.job.placing import TRIES_BOTH_SIDES, Placing, begin
from pecan_ray.options import Workers
from pecan_ray.placement import spread_by_power
from pecan_ray.plan.splits import Lease, Source, Split
from pecan_ray.plan.windows import Deployment
from pecan_ray.runtime.cluster import local_selector, remote_selector, room_for, why_unplaced
from pecan_ray.runtime.leases import Lengths
from pecan_ray.runtime.messages import Acknowledgement, ClientReport, Event, Job, Orders, WorkerInfo, WorkerStats
from pecan_ray.runtime.metrics import JobMetrics
from pecan_ray.runtime.notices import Notices
from pecan_ray.runtime.worker import worker_actor
from pecan_ray.sampling.budget import over_budget
from pecan_ray.sampling.ledger import JobShape, Ledger, Stretch

logger = logging.getLogger("pecan_ray.controller")

LISTING_PAGE = 256
PUBLISH_S = 0.002
"""Changes within this time reach the clients together;"""
PUBLISH_PER_CLIENT_S = 0.0005
"""with many clients within a longer one: each of them is answered.  Many idle workers are woken together likewise."""
METRICS_S = 1.0
"""A worker's metrics are set this often while trainers tell of it: they may be many."""
MOST_LOST_IN_A_ROW = 5
LEAST_POWER = 1e-3
"""CPUs of a trainer's node that has none for Ray: it gets local workers last."""


@dataclass
class Member:
    """A worker as the controller sees it."""

    name: str
    placement: str
    handle: Any
    host: str
    """The trainer's node that it was started for; empty for remote workers."""
    asked: float = field(default_factory=time.monotonic)
    placed: bool = False
    """It has found a place; what is left is to set it up."""
    info: WorkerInfo | None = None
    said: WorkerStats = field(default_factory=WorkerStats)
    """What it told itself, now and then;"""
    delivered: WorkerStats = field(default_factory=WorkerStats)
    """and what trainers have received from it."""
    shown: float = 0.0
    """When its metrics were set last."""
    draining: bool = False

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far, as far as is known."""
        said, delivered = self.said, self.delivered
        return replace(
            said,
            elements=max(said.elements, delivered.elements),
            batches=max(said.batches, delivered.batches),
            bytes=max(said.bytes, delivered.bytes),
        )


class AutoPlacementController:
    """Controller of one job; run as a named Ray actor in the namespace `pecan`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sources: list[Source] = pickle.loads(job.sources)
        options = job.options
        self._ledger = Ledger(
            JobShape(
                branches=len(self._sources),
                epochs=options.epochs,
                repetitions=job.shape.repetitions,
                sharding=options.sharding,
                visitation=options.visitation,
                world_size=options.world_size,
                batch_size=job.shape.batch_size,
                shuffle_seed=job.seed if job.shape.shuffled else None,
                serial=job.shape.serial,
            )
        )
        self._ordered = job.ordered
        self._plans = [job.plan]
        """The plan's versions; a later one has its operators in another order."""
        self._versions: dict[int, int] = {}
        """The version that each epoch runs, once it has begun."""
        self._members: dict[str, Member] = {}
        self._past: dict[str, Member] = {}
        self._made = {"local": 0, "remote": 0}
        self._wanted = {"local": 0, "remote": 0}
        self._clients: dict[int, str] = {}
        self._hosts: dict[str, float] = {}
        """The trainers' nodes and their CPUs."""
        self._shares: dict[str, int] = {}
        """Local workers that are wanted on each of them."""
        self._reports: dict[int, ClientReport] = {}
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._published = asyncio.Event()
        self._publishing = False
        self._given: dict[int, Orders] = {}
        self._waking = False
        self._waiting = 0
        """Calls of idle workers that wait for work."""
        self._leaving = False
        """A worker is draining."""
        self._fixed: Workers | None = None
        self._placing: Placing | None = None
        self._fast_removal = False
        self._deployments: list[tuple[float, Deployment]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()
        self._events: list[Event] = []
        self._rows = 0
        self._bytes = 0
        self._bad = 0
        self._lost = 0
        self._lost_in_a_row = 0
        self._started = False
        self._static_dealt = False
        self._metrics = JobMetrics(job.name)
        self._notices = Notices()
        self._renew()

    # --- clients -------------------------------------------------------------------------------------------

    async def register(self, rank: int, node_id: str) -> None:
        """Add a trainer; with the last one the job begins."""
        if rank in self._clients:
            raise PecanError(
                f"job {self._job.name}: rank {rank} is already served. Another run of the same name is active on "
                "this cluster: pass iter_batches(job=...) with a name of its own."
            )
        self._clients[rank] = node_id
        if len(self._clients) == self._job.options.world_size and not self._started:
            self._started = True
            loop = asyncio.get_running_loop()
            for branch, source in enumerate(self._sources):
                threading.Thread(target=self._list, args=(loop, branch, source), daemon=True).start()
            await self._begin_workers()

    async def _begin_workers(self) -> None:
        options, config = self._job.options, self._job.config
        workers = self._fixed or options.workers
        nodes = list(dict.fromkeys(self._clients.values()))
        room = await asyncio.to_thread(room_for, nodes, remote_selector(nodes, config.remote_labels))
        self._hosts = dict(zip(nodes, room.host_cpus, strict=True))
        if self._job.shape.serial and not isinstance(workers, Workers):
            workers = Workers(0, 1) if workers.max_local == 0 else Workers(1, 0)
            self._tell("placement", "one worker at a time can run this pipeline: AutoPlacement has nothing to decide")
        if isinstance(workers, Workers):
            self._scale(workers.local, workers.remote)
            return
        self._placing = begin(workers, room, config.cpus_per_worker, options.visitation, options.world_size)
        start = self._placing.policy.start
        self._scale(start.local, start.remote)

    async def sync(self, pickled: bytes) -> None:
        """Take a client's news, a pickled `ClientReport`."""
        report: ClientReport = pickle.loads(pickled)
        ledger, rank = self._ledger, report.rank
        for ack in report.acks:
            ledger.acked(rank, ack.worker, ack.spans, ack.batches)
            self._delivers(ack)
            self._rows += ack.rows
            self._lost_in_a_row = 0
            self._bytes += ack.bytes
        if report.given_back is not None:
            ledger.given_back(rank, report.given_back, report.given_back_batches)
        for worker in report.broken:
            self._on_lost(worker, "its stream to a trainer broke")
        for worker in report.settled:
            ledger.settled(rank, worker)
        self._note_bad(report.bad)
        for note in report.notes:
            self._tell("transport", note)
        self._reports[rank] = report
        self._metrics.synced(report)
        if self._placing is not None and not ledger.finished and self._error is None:
            self._placing.report(rank, report.steps)
            self._place(self._placing)
        if report.acks or report.settled or report.given_back is not None:
            self._notify()

    def _place(self, placing: Placing) -> None:
        """Ask the policy whenever a window has ended, and do what it says."""
        if self._leaving:
            placing.meter.drain()
        if self._ledger.closing():
            placing.meter.disturb()
        if not placing.due():
            return
        running = self._running_now()
        step = placing.decide(running, time.monotonic() - self._began, self._awaited(placing))
        if step is None:
            return
        decision = step.decision
        self._metrics.decided(step)
        target = decision.target
        if (target.local, target.remote) == (self._wanted["local"], self._wanted["remote"]):
            return
        logger.info("%s: %s -> %s: %s", decision.phase, running, target, decision.reason)
        self._tell("placement", f"{decision.phase}: {running} -> {target}: {decision.reason}")
        self._fast_removal = decision.removal == "fast"
        self._scale(target.local, target.remote)

    def _running_now(self, *, draining: bool = False) -> Deployment:
        """Count the workers that run; `draining`: with those that are about to go."""
        here = [m.placement for m in self._members.values() if m.info is not None and (draining or not m.draining)]
        return Deployment(here.count("local"), here.count("remote"))

    def _awaited(self, placing: Placing) -> int:
        """Count the workers that were asked for and may still come."""
        coming = [member for member in self._members.values() if member.info is None and not member.draining]
        now = time.monotonic()
        return sum(member.placed or now - member.asked < placing.patience(member.placement) for member in coming)

    def _changed_workers(self) -> None:
        """Note that workers came or went: what is measured now belongs to no deployment."""
        self._leaving = any(member.draining for member in self._members.values())
        self._deployments.append((time.monotonic() - self._began, self._running_now(draining=True)))
        self._metrics.deployed(self._running_now(), self._wanted)
        if self._placing is not None:
            self._placing.meter.touch()

    def _delivers(self, ack: Acknowledgement) -> None:
        """Note what a worker has done; with its first batch it can be measured."""
        member = self._members.get(ack.worker) or self._past.get(ack.worker)
        if member is None:
            return
        if not member.delivered.batches and self._placing is not None:
            self._placing.meter.touch()
        before = member.delivered
        member.delivered = WorkerStats(
            before.elements + ack.rows, before.batches + ack.batches, before.bytes + ack.bytes
        )
        if time.monotonic() - member.shown > METRICS_S:
            self._show(member)

    def _show(self, member: Member) -> None:
        member.shown = time.monotonic()
        self._metrics.beat(member.name, member.placement, member.stats)

    async def orders(self, rank: int, met: int) -> bytes:
        """Return a client's orders, pickled, as soon as they differ from the last ones that it was given.

        `met`: so many workers it was told of.
        """
        while (news := self._notices.orders(rank)) == self._given.get(rank) and rank in self._clients:
            await self._published.wait()
        self._given[rank] = news
        return self._notices.pickled(rank, met)

    def _note_bad(self, bad: tuple[BadElement, ...]) -> None:
        if not bad:
            return
        self._bad += len(bad)
        for one in bad:
            logger.warning("left out %s in %s: %s", one.where, one.op, one.error)
        last = f"{bad[-1].where} in {bad[-1].op}: {bad[-1].error}"
        over = over_budget(self._job.name, self._bad, self._rows, self._job.config.error_budget, last)
        if over is not None and self._error is None:
            self._fail(over)

    # --- workers -------------------------------------------------------------------------------------------

    async def next_stretch(self, worker: str, stats: WorkerStats) -> tuple[Stretch | Literal["stop"], int]:
        """Answer an idle worker as soon as there is work, or none any more, with the version of the plan to run."""
        self._beat(worker, stats)
        while True:
            dealt = self._static_dealt or self._job.options.sharding != "static"
            if self._error:
                answer: Stretch | str = "stop"
            else:
                answer = self._ledger.next_stretch(worker) if self._ordered and dealt else "wait"
            if isinstance(answer, Stretch):
                return answer, self._versions.setdefault(answer.epoch, len(self._plans) - 1)
            if answer == "stop":
                return "stop", 0
            await self._change()

    async def plan(self, version: int) -> bytes:
        """Return a version of the plan, pickled."""
        return self._plans[version]

    async def begin(self, plan: bytes | None) -> None:
        """Let work begin, with the operators in that order (None: as they are written); the first trainer decides."""
        if not self._ordered:
            self._ordered = True
            self._plans += [plan] if plan is not None else []
            self._notify()

    async def replan(self, plan: bytes, said: str) -> None:
        """Run another order of the operators from the next epoch on that has not begun."""
        self._plans.append(plan)
        self._tell("reorder", said)

    async def take(self, worker: str, branch: int, most: int, lengths: Lengths) -> list[Lease]:
        """Give a worker its next leases, up to `most`; none ends the branch for its stretch.

        `lengths`: of the splits that it has read to their ends since its last call.
        """
        await self.ended(worker, lengths)
        most = min(most, self._ledger.share(worker, branch))
        leases: list[Lease] = []
        while self._error is None and len(leases) < most:
            answer = self._ledger.take(worker, branch)
            if isinstance(answer, Lease):
                leases.append(answer)
            elif leases or answer != "wait":
                break
            else:
                await self._change()
        return leases

    async def ended(self, worker: str, lengths: Lengths) -> None:
        """Note the lengths of splits."""
        for key, elements in lengths:
            self._ledger.ended(worker, key, elements)
        if lengths:
            self._notify()

    async def stretch_ended(self, worker: str, spans: SpansByKey, batches: int) -> Literal["flush", "surrendered"]:
        """Decide what a worker does with elements that fill no batch; `batches`: so many it made, these included."""
        if worker not in self._ledger.workers or self._ledger.workers[worker].unsettled is not None:
            return "surrendered"
        decision = self._ledger.stretch_ended(worker, spans, batches)
        self._notify()
        return decision

    async def consumed(self, worker: str, spans: SpansByKey, left_out: int, bad: list[BadElement]) -> None:
        """Note data that ends at a worker: a dropped remainder, or elements that were all filtered out."""
        self._ledger.consumed(worker, spans, left_out=left_out)
        self._note_bad(tuple(bad))
        self._notify()

    async def heartbeat(self, worker: str, stats: WorkerStats) -> None:
        """Note what a worker has done so far."""
        self._beat(worker, stats)

    def _beat(self, worker: str, stats: WorkerStats) -> None:
        if worker in self._members:
            self._members[worker].said = stats
            self._show(self._members[worker])

    async def failed(self, worker: str, error: PecanError) -> None:
        """End the job with a worker's error: the trainers raise it."""
        logger.error("%s: %s", worker, error)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self._tell("error", f"{type(error).__name__}: {error}")
        self._notify()

    async def scale(self, local: int, remote: int) -> None:
        """Fix the numbers of workers, as a trainer asks: from now on nothing else changes them."""
        if self._placing is not None and not self._placing.stopped:
            self._placing.stopped = True
            self._fast_removal = False
            self._tell("placement", "AutoPlacement decides no more: the numbers of workers were fixed by scale()")
        self._fixed = Workers(local, remote)
        if self._hosts:
            self._scale(local, remote)

    def _scale(self, local: int, remote: int) -> None:
        """Set the numbers of workers: start what lacks, and drain what is too many once that has come."""
        self._wanted = {"local": local, "remote": remote}
        self._tell("scale", f"{local} local and {remote} remote workers wanted")
        power = [max(cpus, LEAST_POWER) for cpus in self._hosts.values()]
        self._shares = dict(zip(self._hosts, spread_by_power(local, power), strict=True))
        staying = self._staying()
        for host, count in (*self._shares.items(), ("", remote)):
            self._start(host, count - len(staying.get(host, ())))
        self._shed()
        self._metrics.deployed(self._running_now(), self._wanted)
        self._notify()

    def _staying(self) -> dict[str, list[Member]]:
        """Return the workers of each trainer's node, and the remote ones (host ""): first those that run."""
        staying: dict[str, list[Member]] = {}
        for member in sorted(self._members.values(), key=lambda member: member.info is None):
            if not member.draining:
                staying.setdefault(member.host, []).append(member)
        return staying

    def _shed(self) -> None:
        """Drain the workers that are too many; those that run only when none is awaited, or a job might have none."""
        wanted = {**self._shares, "": self._wanted["remote"]}
        staying = self._staying()
        too_many = [member for host, count in wanted.items() for member in staying.get(host, [])[count:]]
        for member in too_many:
            if member.info is None:
                self._drain(member)
        if all(member.info or member.draining for member in self._members.values()):
            for member in too_many:
                if member.info is not None:
                    self._drain(member)

    def _start(self, host: str, count: int = 1) -> None:
        """Ask for workers on a trainer's node, or for remote ones (host "")."""
        if count > 0:
            nodes, labels = list(dict.fromkeys(self._clients.values())), self._job.config.remote_labels
            selector = local_selector(host) if host else remote_selector(nodes, labels)
            for _ in range(count):
                self._ask_for(host, selector)

    def _ask_for(self, host: str, selector: Mapping[str, str]) -> None:
        placement = "local" if host else "remote"
        number = self._made[placement]
        self._made[placement] += 1
        job, config = self._job, self._job.config
        name = f"pecan:{job.name}:{placement}-{number}"
        sharing = max(1, self._shares.get(host, 1))
        handle = worker_actor.options(
            name=name,
            num_cpus=config.cpus_per_worker,
            label_selector=selector,
        ).remote(name, job, ray.get_runtime_context().current_actor, sharing)
        member = Member(name, placement, handle, host)
        self._members[name] = member
        self._spawn(self._look_after(member, selector))

    async def _look_after(self, member: Member, selector: Mapping[str, str]) -> None:
        """Follow a worker from its placement to its end."""
        placed = asyncio.ensure_future(member.handle.placed.remote())
        placed.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            while True:
                done, _ = await asyncio.wait([placed], timeout=self._job.config.placement_warning_s)
                if done or member.draining:
                    break
                reason = await asyncio.to_thread(why_unplaced, selector, self._job.config.cpus_per_worker)
                if self._made_known(f"{member.name} waits for a place: {reason}"):
                    logger.warning("%s waits for a place: %s", member.name, reason)
                self._try_other_side(member)
            node_id, pid = await placed
            member.placed = True
            await member.handle.set_up.remote()
            member.info = WorkerInfo(member.name, node_id, pid, member.placement, member.handle)
            self._ledger.join(member.name)
            self._notices.meet(member.info)
            self._tell("worker", f"{member.name} runs as process {pid}")
            self._changed_workers()
            self._shed()
            self._deal_static()
            self._notify()
            await member.handle.run.remote()
        except ray.exceptions.RayActorError as error:
            self._on_worker_error(member, error)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, PecanError) else error
            self._fail(cause)
        finally:
            if member.info is None:
                self._members.pop(member.name, None)

    def _try_other_side(self, waiting: Member) -> None:
        """Where a job that may place its workers itself has not a single one, ask for one elsewhere as well."""
        placing = self._placing
        others = any(m.info or m.host != waiting.host for m in self._members.values() if not m.draining)
        if placing is None or placing.stopped or others or placing.policy.mode not in TRIES_BOTH_SIDES:
            return
        host = "" if waiting.host else next(iter(self._hosts))
        limits = placing.policy.limits
        if (limits.max_local if host else limits.max_remote) > 0:
            self._tell("placement", f"no worker runs yet: ask for a {'local' if host else 'remote'} one as well")
            self._start(host)

    def _on_worker_error(self, member: Member, error: ray.exceptions.RayActorError) -> None:
        if member.draining:
            return
        if error.actor_init_failed:
            self._fail(WorkerStartError(f"{member.name} could not be set up: {error}"))
            return
        self._on_lost(member.name, "its process died")

    def _on_lost(self, worker: str, why: str) -> None:
        """Take a dead worker's data back and start another one in its place."""
        member = self._members.get(worker)
        if member is None or self._ledger.finished:
            return
        self._ledger.lost(worker)
        if member.draining:
            self._gone(member)
            return
        self._past[worker] = self._members.pop(worker)
        self._notices.part(worker)
        self._lost += 1
        self._lost_in_a_row += 1
        if self._lost_in_a_row > MOST_LOST_IN_A_ROW:
            self._fail(
                ClusterError(
                    f"job {self._job.name}: {self._lost_in_a_row} workers in a row died before a trainer received "
                    f"a batch; the last one, {worker}, since {why}. Look at its log for a crash in native code, and "
                    "at the memory of its node."
                )
            )
            return
        self._changed_workers()
        self._tell("lost", f"{worker} is lost: {why}; what it held is given out again")
        logger.warning("%s is lost: %s; what it held is given out again", worker, why)
        wanted = self._shares[member.host] if member.host else self._wanted["remote"]
        if len(self._staying().get(member.host, ())) < wanted and self._error is None:
            self._start(member.host)
        self._notify()

    def _drain(self, member: Member) -> None:
        member.draining = True
        self._tell("drain", f"{member.name} drains")
        if member.info is None:
            ray.kill(member.handle)
            self._members.pop(member.name, None)
            return
        self._notices.part(member.name)
        self._changed_workers()
        self._ledger.lost(member.name)
        if self._fast_removal:
            ray.kill(member.handle)
            self._gone(member)
            return
        self._spawn(self._finish_drain(member))

    async def _finish_drain(self, member: Member) -> None:
        try:
            await member.handle.drain.remote()
            while member.name in self._ledger.workers and self._error is None:
                await self._change()
        except ray.exceptions.RayActorError:
            logger.info("%s ended while it drained", member.name)
        ray.kill(member.handle)
        self._gone(member)

    def _gone(self, member: Member) -> None:
        """Take a worker that has drained off the job."""
        if self._members.pop(member.name, None) is not None:
            self._past[member.name] = member
            self._changed_workers()
        self._notify()

    def _deal_static(self) -> None:
        """With static sharding, deal the splits once all workers have joined."""
        if self._static_dealt:
            return
        here = [m.name for m in self._members.values() if m.info is not None]
        if len(here) == sum(self._wanted.values()):
            self._static_dealt = True
            self._ledger.assign_static(here)

    # --- listing -------------------------------------------------------------------------------------------

    def _list(self, loop: asyncio.AbstractEventLoop, branch: int, source: Source) -> None:
        """List a source page by page, in a thread of its own: work begins with the first page."""
        try:
            splits: Iterator[Split] = iter(source.splits())
            size = 1
            while page := list(islice(splits, size)):
                loop.call_soon_threadsafe(self._on_page, branch, page)
                size = LISTING_PAGE
            loop.call_soon_threadsafe(self._on_listed, branch)
        except PecanError as error:
            loop.call_soon_threadsafe(self._fail, error)
        except Exception as error:
            wrapped = SourceError(f"listing {type(source).__name__} failed: {type(error).__name__}: {error}")
            loop.call_soon_threadsafe(self._fail, wrapped)

    def _on_page(self, branch: int, page: list[Split]) -> None:
        self._ledger.add_splits(branch, page)
        self._notify()

    def _on_listed(self, branch: int) -> None:
        self._ledger.end_listing(branch)
        self._notify()

    # --- everything else -----------------------------------------------------------------------------------

    async def leave(self, rank: int) -> dict[str, Any]:
        """Take a trainer off the job and return the report; the last one ends it, the first one ends the others."""
        self._clients.pop(rank, None)
        self._notify()
        last = not self._clients
        if last:
            await self.stop()
        elif not self._ledger.finished:
            self._fail(ClusterError(f"job {self._job.name}: rank {rank} has left before the end, so the others stop."))
        return {**await self.report(), "last": last}

    async def stop(self) -> dict[str, Any]:
        """End the job: kill the workers and return what there is to report."""
        self._wanted = {"local": 0, "remote": 0}
        for member in list(self._members.values()):
            member.draining = True
            ray.kill(member.handle)
        for task in self._tasks:
            task.cancel()
        return await self.report()

    async def process_id(self) -> int:
        """Return the process id, for those who want to look at it from outside."""
        return os.getpid()

    async def report(self) -> dict[str, Any]:
        """Return the facts of the job so far."""
        return {
            "job": self._job.name,
            "seconds": time.monotonic() - self._began,
            "epochs": self._ledger.epoch,
            "elements": self._rows,
            "bytes": self._bytes,
            "bad_elements": self._bad,
            "left_out_elements": self._ledger.left_out_elements,
            "dropped": [(lease.key, lease.spans) for lease in self._ledger.dropped],
            "workers_lost": self._lost,
            "workers": {m.name: (m.placement, m.stats) for m in (*self._past.values(), *self._members.values())},
            "events": list(self._events),
            "timeline": list(self._placing.timeline) if self._placing is not None else [],
            "deployments": list(self._deployments),
            "prices": self._placing.policy.prices if self._placing is not None else None,
            "hosts": max(1, len(self._hosts)),
        }

    def _tell(self, kind: str, text: str) -> None:
        self._events.append(Event(time.monotonic() - self._began, kind, text))

    def _made_known(self, text: str) -> bool:
        """Note an event unless the same was said before; tell whether it is new."""
        if any(event.text == text for event in self._events):
            return False
        self._tell("waiting", text)
        return True

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _notify(self) -> None:
        """Wake workers that wait for work, at once if they are few, and clients that wait for orders soon: in lots."""
        loop = asyncio.get_running_loop()
        if not self._waking:
            delay = PUBLISH_PER_CLIENT_S * self._waiting
            if delay < PUBLISH_S:
                self._wake()
            else:
                self._waking = True
                loop.call_later(delay, self._wake)
        if not self._publishing:
            self._publishing = True
            loop.call_later(max(PUBLISH_S, PUBLISH_PER_CLIENT_S * len(self._clients)), self._publish)

    def _wake(self) -> None:
        self._waking = False
        self._changed.set()
        self._changed = asyncio.Event()

    def _publish(self) -> None:
        self._publishing = False
        if self._renew():
            self._published.set()
            self._published = asyncio.Event()

    def _renew(self) -> bool:
        return self._notices.renew(self._ledger, self._clients, self._error, self._wanted)

    async def _change(self) -> None:
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1
