"""A worker: an actor that runs the plan on leases and streams batches to clients."""

from __future__ import annotations

import itertools
import logging
import math
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from pecan_ray.engines.contract import EngineOptions, Produced, SpansByKey
from pecan_ray.engines.freed_memory import keep_freed_memory
from pecan_ray.engines.registry import build_engine, load_framework
from pecan_ray.engines.tuning import MOST_PER_CPU
from pecan_ray.errors import ClusterError, PecanError, WorkerStartError
from pecan_ray.options import AutoWorkers
from pecan_ray.runtime.certificates import cluster_certificates
from pecan_ray.runtime.leases import WorkerLeases
from pecan_ray.runtime.message_pipe import MessageWriter
from pecan_ray.runtime.messages import Job, WorkerStats
from pecan_ray.runtime.ring import RingSlots
from pecan_ray.runtime.transports import (
    FlightAddress,
    Message,
    Offer,
    choose_transport,
    encode_ring,
    encode_store,
    pickled,
)
from pecan_ray.sampling.ledger import Stretch

if TYPE_CHECKING:
    from pecan_ray.runtime.flight_server import FlightEndpoint

logger = logging.getLogger(__name__)

COALESCE = 32
"""Most batches in one message to a client: small batches are sent together, large ones are rarely waiting."""
GATHER_S, SMALL_BYTES = 0.005, 1 << 20
"""After a small batch the next message begins this much later, unless it is full: what is finished meanwhile travels
together."""
MOST_WAITING = 512
"""Batches without arrays take no slot: their number is bounded instead."""
HEARTBEAT_S = 60.0
"""Longest time that a busy worker says nothing: Ray tells of its death, and the trainers of the batches it made;"""
NEWS_S = 1.0
"""what they cannot tell, it says itself, after this time: with how many threads it works."""
QUIET_CPU_PROCESS = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Accelerators belong to the trainer; and a worker's log is for what it has to say itself."""


class Outbox:
    """Finished batches until a client fetches them; some are addressed to one rank."""

    def __init__(self) -> None:
        self._items: deque[tuple[int | None, Produced]] = deque()
        self._changed = threading.Condition()
        self._hungry = 0
        """Takers that wait for any batch; others wait for many, or for their time."""
        self._closed = False

    def put(self, produced: Produced, rank: int | None) -> None:
        """Add a batch, for one rank or for whoever comes first; waits while very many are there."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < MOST_WAITING or self._closed)
            self._items.append((rank, produced))
            if self._hungry or len(self._items) >= COALESCE:
                self._changed.notify_all()

    def take(
        self,
        rank: int,
        most: int,
        most_bytes: float = math.inf,
        wanted: Callable[[], bool] = lambda: True,
        not_before: float = 0.0,
    ) -> list[Produced]:
        """Wait for batches that a rank may have; an empty list means that there will be none, or none is wanted.

        `most_bytes` bounds their sum, unless the first one alone is larger.  `not_before`: the monotonic time until
        which fewer than `most` are left to become more.
        """
        with self._changed:
            while wanted():
                mine = [item for item in self._items if item[0] in (None, rank)][:most]
                early = not_before - time.monotonic()
                if early > 0 and len(mine) < most and not self._closed:
                    self._changed.wait(early)
                    continue
                if mine:
                    if most_bytes < math.inf:
                        sums = itertools.accumulate(_weight(produced) for _, produced in mine)
                        mine = mine[: max(1, sum(total <= most_bytes for total in sums))]
                    taken = {id(item) for item in mine}
                    self._items = deque(item for item in self._items if id(item) not in taken)
                    self._changed.notify_all()
                    return [produced for _, produced in mine]
                if self._closed:
                    return []
                self._hungry += 1
                self._changed.wait()
                self._hungry -= 1
            return []

    def put_back(self, rank: int, batches: list[Produced]) -> None:
        """Let batches be the next that a rank is given: another way to it has failed."""
        with self._changed:
            self._items.extendleft((rank, produced) for produced in reversed(batches))
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait see whether they still want batches."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """No more batches come: takers get what is left, then nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)


class PreprocessingWorker:
    """Runs a job's plan; one process on one node."""

    def __init__(self, name: str, job: Job, controller: Any, sharing: int) -> None:
        self._name = name
        self._job = job
        self._controller = controller
        self._sharing = sharing
        self._outbox = Outbox()
        self._slots = RingSlots(job.config.ring_bytes)
        # `take` and `zip` may leave some of a whole plan's splits unread.
        self._leases = WorkerLeases(name, controller, ahead=not job.shape.serial)
        self._stats = WorkerStats()
        self._version = 0
        """Of the plan that the engine was built for."""
        self._draining = threading.Event()
        self._flight: FlightEndpoint | None = None
        self._pipes: dict[int, MessageWriter] = {}
        """To clients that are about to fetch."""
        self._starting = threading.Lock()
        os.environ.update({name: value for name, value in QUIET_CPU_PROCESS.items() if name not in os.environ})
        keep_freed_memory()

    @ray.method(concurrency_group="control")
    def placed(self) -> tuple[str, int]:
        """Return the node id and the process id, as soon as the process runs."""
        return str(ray.get_runtime_context().get_node_id()), os.getpid()

    @ray.method(concurrency_group="run")
    def set_up(self) -> None:
        """Load the plan and build its engine, which may import a framework."""
        self._load(self._job.plan)

    def _load(self, payload: bytes) -> None:
        """Unpickle a plan and build its engine."""
        job = self._job
        load_framework(job.engine)
        try:
            plan = pickle.loads(payload)
        except Exception as error:
            raise WorkerStartError(
                f"worker {self._name} cannot load the pipeline: {type(error).__name__}: {error}. Modules that its "
                "functions come from must be importable on every node: send them by `--working-dir` or a runtime "
                "environment."
            ) from error
        fixed = job.config.threads_per_worker
        threads = fixed or self._usual_threads()
        options = EngineOptions(
            seed=job.seed,
            threads=threads,
            most_threads=None if fixed else MOST_PER_CPU * threads,
            memory_bytes=job.config.ring_bytes,
            order="strict" if job.shape.serial else job.options.order,
            on_error=job.options.on_error,
            count_epoch=0 if job.look_again else None,
        )
        self._engine = build_engine(job.engine, plan, options, self._slots)

    def _usual_threads(self) -> int:
        """Return the threads of a worker: as Ray reserves where workers come and go, else all CPUs that it can have."""
        if isinstance(self._job.options.workers, AutoWorkers):
            return max(1, round(self._job.config.cpus_per_worker))
        return max(1, len(os.sched_getaffinity(0)) // self._sharing)

    @ray.method(concurrency_group="run")
    def run(self) -> None:
        """Work until the controller says stop; errors of the pipeline go to the controller."""
        try:
            while not self._draining.is_set():
                counts = self._engine.counts() or self._stats.counts
                self._stats = replace(self._stats, counts=counts, threads=self._engine.threads)
                answer, version = ray.get(self._controller.next_stretch.remote(self._name, self._stats))
                if not isinstance(answer, Stretch):
                    break
                if version != self._version:
                    self._engine.close()
                    self._load(ray.get(self._controller.plan.remote(version)))
                    self._version = version
                self._work(answer)
        except PecanError as error:
            ray.get(self._controller.failed.remote(self._name, error))
        finally:
            self._outbox.close()

    def _work(self, stretch: Stretch) -> None:
        leftovers: list[Produced] = []
        last_beat, told = time.monotonic(), self._stats.threads
        number = 0
        batches = self._engine.batches(self._leases)
        for produced in batches:
            if self._draining.is_set():
                batches.close()
                return
            if produced.partial:
                leftovers.append(produced)
            elif not produced.rows:
                self._consume(produced)
            else:
                self._deal(produced, stretch, number)
                number += 1
            if time.monotonic() - last_beat > (HEARTBEAT_S if self._stats.threads == told else NEWS_S):
                last_beat, told = time.monotonic(), self._stats.threads
                self._controller.heartbeat.remote(self._name, self._stats)
        spans: SpansByKey = {}
        for leftover in leftovers:
            for key, intervals in leftover.spans.items():
                spans.setdefault(key, []).extend(intervals)
        keeps = not self._job.shape.drop_remainder
        made = number + sum(leftover.rows > 0 for leftover in leftovers if keeps)
        flush = ray.get(self._controller.stretch_ended.remote(self._name, spans, made)) == "flush"
        for leftover in leftovers:
            if not flush:
                _release(leftover)
            elif leftover.rows and keeps:
                self._deal(leftover, stretch, number)
                number += 1
            else:
                self._consume(leftover)

    def _consume(self, produced: Produced) -> None:
        """Tell the controller about data that yields no batch."""
        _release(produced)
        ray.get(self._controller.consumed.remote(self._name, produced.spans, produced.rows, produced.bad))

    def _deal(self, produced: Produced, stretch: Stretch, number: int) -> None:
        """Put a batch out for the rank that it is for, unless that has it from a worker before this one."""
        rank = stretch.rank
        if stretch.dealt:
            turn, rank = divmod(number, len(stretch.dealt))
            if turn < stretch.dealt[rank]:
                _release(produced)
                return
        self._outbox.put(produced, rank)
        self._count(produced)

    def _count(self, produced: Produced) -> None:
        stats = self._stats
        size = _nbytes(produced)
        self._stats = replace(
            stats,
            elements=stats.elements + produced.rows,
            batches=stats.batches + 1,
            bytes=stats.bytes + size,
            threads=self._engine.threads,
        )

    @ray.method(concurrency_group="control")
    def offer(self, rank: int, node_id: str, sees_process: bool) -> Offer:
        """Say how batches will travel to a client; the first one that needs it starts the Flight server."""
        mine = str(ray.get_runtime_context().get_node_id())
        transport, reason = choose_transport(mine, node_id, sees_process, self._job.config.transport)
        address = None
        if transport == "flight":
            try:
                address = self._flight_address(rank)
            except ClusterError as error:
                transport, reason = "object_store", str(error)
        logger.info("%s -> rank %d by %s: %s", self._name, rank, transport, reason)
        if transport == "ring":
            pipe = self._pipes[rank] = MessageWriter()
            return Offer(transport, reason, pipe=pipe.address)
        return Offer(transport, reason, address)

    def _flight_address(self, rank: int) -> FlightAddress:
        from pecan_ray.runtime.flight_server import FlightEndpoint

        job = self._job
        node_ip: Any = ray.util.get_node_ip_address
        with self._starting:
            if self._flight is None:
                in_order = job.shape.serial or job.options.order == "strict"
                self._flight = FlightEndpoint(
                    str(node_ip()),
                    self._outbox,
                    certificates=cluster_certificates(),
                    streams=1 if in_order else job.config.flight_streams,
                    compression=job.config.compression,
                )
        return self._flight.welcome(rank)

    @ray.method(concurrency_group="stream")
    def attend(self, rank: int) -> None:
        """Wait until a client has received everything by Flight; its caller learns of this process's death."""
        if self._flight is not None:
            self._flight.attend(rank)

    @ray.method(concurrency_group="stream")
    def send(self, rank: int) -> None:
        """Write messages with batches in shared memory into a client's pipe, until there are no more."""
        with closing(self._pipes.pop(rank)) as pipe:
            pipe.opened()
            not_before = 0.0
            while produced := self._outbox.take(rank, COALESCE, not_before=not_before):
                if not pipe.send(pickled([encode_ring(one) for one in produced])):
                    return
                not_before = time.monotonic() + GATHER_S if _nbytes(produced[-1]) < SMALL_BYTES else 0.0
            pipe.end()

    @ray.method(concurrency_group="stream")
    def stream(self, rank: int, received: dict[int, int] | None = None) -> Iterator[list[Message]]:
        """Yield messages with batches by value for a client, until there are no more.

        `received`: what it has received by Flight, which has failed.
        """
        if received is not None and self._flight is not None:
            self._flight.give_up(rank, received)
        while produced := self._outbox.take(rank, 1):
            yield [encode_store(one) for one in produced]
            # Ray has copied the message when the generator goes on.
            for one in produced:
                _release(one)

    @ray.method(concurrency_group="control")
    def drain(self) -> None:
        """Stop taking work; what is finished can still be fetched, what is not goes back to the controller."""
        self._draining.set()
        self._leases.stopped.set()


def _nbytes(produced: Produced) -> int:
    return sum(getattr(column, "nbytes", 0) for column in produced.columns.values())


def _weight(produced: Produced) -> int:
    """Estimate the bytes of a batch, those of its strings included."""
    weight = 0
    for column in produced.columns.values():
        weight += getattr(column, "nbytes", 0)
        if isinstance(column, np.ndarray) and column.dtype.hasobject:
            weight += sum(len(value) for value in column.flat if isinstance(value, (bytes, str)))
    return weight


def _release(produced: Produced) -> None:
    if produced.slot is not None:
        produced.slot.release()


remote: Any = ray.remote
worker_actor: Any = remote(num_cpus=1, concurrency_groups={"run": 1, "stream": 64, "control": 2})(PreprocessingWorker)
"""The actor class; its groups keep long runs and streams from delaying control messages."""
