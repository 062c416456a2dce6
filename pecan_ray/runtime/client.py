"""The trainer's side: fetches batches from every worker, acknowledges them, and hands them to the loop.

One thread per worker fetches; one reports to the controller, one waits for its orders.  What a client has
received it alone knows: it acknowledges, and it says when it will take no more from a lost worker.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ray

from pecan_ray.engines.contract import BadElement, SpansByKey
from pecan_ray.errors import ClusterError
from pecan_ray.job.windows import StepTotals
from pecan_ray.plan.splits import Element
from pecan_ray.runtime.messages import Acknowledgement, ClientReport, Orders, WorkerInfo
from pecan_ray.transport.choice import FlightAddress, Offer
from pecan_ray.transport.message_pipe import MessageReader, PipeAddress
from pecan_ray.transport.messages import BatchReader, Message

if TYPE_CHECKING:
    from pecan_ray.transport.flight_client import FlightReader

logger = logging.getLogger("pecan_ray.client")

REPORT_S = 0.25
"""Shortest time between two reports while batches flow."""
IDLE_REPORT_S = 1.0
"""Longest time without a report;"""
IDLE_REPORT_PER_TRAINER_S = 0.005
"""with more than 200 trainers a longer one: the controller hears of no more than 200 that have nothing to say."""
GRANTED_AT_FIRST = 4
"""Messages that a worker may send before one was received: they keep the trainer busy until it is woken."""
WARM_UP = 3
"""Steps of a trainer are measured after so many batches: the first ones compile and allocate."""


@dataclass(frozen=True)
class Provenance:
    """Which data a batch holds: for checks, logs and exact accounting."""

    epoch: int
    worker: str
    spans: SpansByKey
    rows: int


@dataclass(frozen=True)
class Received:
    """A batch in the client's queue."""

    columns: Element
    provenance: Provenance
    nbytes: int
    message: Message


class BatchClient:
    """Feeds one trainer (rank) of a job."""

    def __init__(self, controller: Any, rank: int, world_size: int, node_id: str, prefetch_bytes: int) -> None:
        self._controller = controller
        self._rank = rank
        self._world_size = world_size
        self._node_id = node_id
        self._prefetch_bytes = prefetch_bytes
        self._reader = BatchReader()
        self._state = threading.Condition()
        self._queue: deque[Received] = deque()
        self._queued_bytes = 0
        self._acks: dict[str, list[tuple[Provenance, int]]] = {}
        self._bad: list[BadElement] = []
        self._quarantined: list[BadElement] = []
        self._broken: set[str] = set()
        self._notes: list[str] = []
        self._ways: dict[str, MessageReader | FlightReader] = {}
        """What reads from each worker."""
        self._fetchers: dict[str, threading.Thread] = {}
        self._told: set[str] = set()
        self._given_back: tuple[SpansByKey, int] | None = None
        self._epoch = 0
        self._in_epoch = 0
        self._allowed = 0
        self._finished = False
        self._error: BaseException | None = None
        self._closed = False
        self._began = time.monotonic()
        self._steps = StepTotals()
        self._last_taken: float | None = None
        self.yielded = 0
        self.rows = 0
        self.waited_s = 0.0
        self.first_batch_s: float | None = None
        self.orders: Orders | None = None
        self._reporter = threading.Thread(target=self._guarded, args=(self._keep_reporting,), name="pecan-report")
        self._obeyer = threading.Thread(target=self._guarded, args=(self._keep_obeying,), name="pecan-orders")

    def start(self) -> None:
        """Begin to fetch; what was before is no waiting of the trainer's."""
        self._began = time.monotonic()
        for thread in (self._reporter, self._obeyer):
            thread.daemon = True
            thread.start()

    # --- the trainer's thread ------------------------------------------------------------------------------

    def next(self) -> Received | None:
        """Return the next batch, waiting for it; None when the job is over.  Raises the job's error."""
        began = time.monotonic()
        with self._state:
            ready = len(self._queue)
            while not self._ready():
                if self._error is not None:
                    raise self._error
                if self._closed or (self._finished and not self._queue):
                    return None
                self._state.wait()
            batch = self._queue.popleft()
            self._queued_bytes -= batch.nbytes
            if batch.provenance.epoch != self._epoch:
                self._epoch, self._in_epoch = batch.provenance.epoch, 0
            self._in_epoch += 1
            self.yielded += 1
            self.rows += batch.provenance.rows
            now = time.monotonic()
            self.waited_s += now - began
            if self.yielded > WARM_UP:
                assert self._last_taken is not None
                self._steps = self._steps.step(now - self._last_taken, now - began, ready)
            self._last_taken = now
            if self.first_batch_s is None:
                self.first_batch_s = time.monotonic() - self._began
            self._state.notify_all()
        self._reader.taken(batch.message)
        return batch

    def _ready(self) -> bool:
        if not self._queue or self._error is not None:
            return False
        if self._world_size == 1 or self.orders is None:
            return self._world_size == 1
        epoch = self._queue[0].provenance.epoch
        if epoch < self.orders.epoch:
            return True
        used = self._in_epoch if epoch == self._epoch else 0
        return used < self.orders.allowed

    def take_quarantined(self) -> list[BadElement]:
        """Return the bad elements received since the last call."""
        with self._state:
            taken, self._quarantined = self._quarantined, []
        return taken

    @property
    def elapsed_s(self) -> float:
        """Seconds since the client began."""
        return time.monotonic() - self._began

    @property
    def queued(self) -> int:
        """Batches that wait for the trainer."""
        return len(self._queue)

    def close(self) -> None:
        """Stop fetching; batches that are still held stay valid."""
        with self._state:
            self._closed = True
            self._queue.clear()
            ways = list(self._ways.values())
            self._state.notify_all()
        for way in ways:
            way.stop()
        if self._reporter.is_alive():
            self._reporter.join(timeout=10)

    # --- the threads that fetch ----------------------------------------------------------------------------

    def _fetch(self, worker: WorkerInfo) -> None:
        """Fetch from one worker until its stream ends or breaks."""
        try:
            sees_process = os.access(f"/proc/{worker.pid}/fd", os.R_OK | os.X_OK)
            offer: Offer = ray.get(worker.handle.offer.remote(self._rank, self._node_id, sees_process))
            self._note(f"{worker.name} -> rank {self._rank} by {offer.transport}: {offer.reason}")
            if offer.pipe is not None:
                self._fetch_by_pipe(worker, offer.pipe)
            elif offer.flight is None:
                self._fetch_by_ray(worker)
            elif received := self._fetch_by_flight(worker, offer.flight):
                self._fetch_by_ray(worker, received)
        except (ray.exceptions.RayError, FileNotFoundError, ProcessLookupError) as error:
            logger.info("stream of %s broke: %s", worker.name, type(error).__name__)
            self._broke(worker.name)
        finally:
            with self._state:
                self._state.notify_all()

    def _fetch_by_pipe(self, worker: WorkerInfo, address: PipeAddress) -> None:
        """Fetch messages about batches in the worker's shared memory; raises what Ray raises if it is gone."""
        tokens: set[str] = set()
        with closing(MessageReader(address)) as reader:
            if not self._stops_at_close(worker, reader):
                return
            sending = worker.handle.send.remote(self._rank)
            sending.future().add_done_callback(lambda _: reader.stop())
            try:
                reader.grant(GRANTED_AT_FIRST)
                for data in reader:
                    for message in pickle.loads(data):
                        if message.address is not None:
                            tokens.add(message.address.token)
                        if not self._receive(worker, message):
                            return
                    if not self._room():
                        return
                    reader.grant(1)
            finally:
                for token in tokens:
                    self._reader.forget(token)
                with self._state:
                    del self._ways[worker.name]
            if not reader.ended and not self._closed:
                ray.get(sending)

    def _stops_at_close(self, worker: WorkerInfo, way: MessageReader | FlightReader) -> bool:
        """Have what reads from a worker stopped when the client is closed; False if it is already."""
        with self._state:
            if not self._closed:
                self._ways[worker.name] = way
            return not self._closed

    def _fetch_by_ray(self, worker: WorkerInfo, received: dict[int, int] | None = None) -> None:
        """Fetch messages that Ray carries, with the batches; `received`: by Flight, before it failed."""
        stream = worker.handle.stream.options(num_returns="streaming", _generator_backpressure_num_objects=4).remote(
            self._rank, received
        )
        worker.handle.grant.remote(self._rank, GRANTED_AT_FIRST)
        for reference in stream:
            for message in ray.get(reference):
                if not self._receive(worker, message):
                    return
            del reference
            if not self._room():
                return
            worker.handle.grant.remote(self._rank, 1)

    def _fetch_by_flight(self, worker: WorkerInfo, address: FlightAddress) -> dict[int, int] | None:
        """Fetch by Flight; return None at the end, else what was received before Flight failed.

        Raises what Ray raises if the worker is gone.
        """
        from pecan_ray.transport.flight_client import FlightReader

        def deliver(messages: list[Message]) -> bool:
            if not all(self._receive(worker, message) for message in messages) or not self._room():
                return False
            reader.grant(1)
            return True

        def tell(text: str) -> None:
            self._note(f"{worker.name} -> rank {self._rank}: {text}")

        reader = FlightReader(address, self._rank, deliver=deliver, tell=tell)
        if not self._stops_at_close(worker, reader):
            return None
        reader.grant(GRANTED_AT_FIRST)
        alive = worker.handle.attend.remote(self._rank)
        alive.future().add_done_callback(lambda future: reader.stop() if future.exception() else None)
        trouble = reader.run()
        with self._state:
            del self._ways[worker.name]
            if reader.ended or self._closed:
                return None
        ray.get(alive if trouble is None else worker.handle.placed.remote())  # raises if the worker is gone
        tell(f"by object_store from now on, since {address.host}:{address.port} cannot be read: {trouble}")
        logger.warning(
            "batches of %s come by Ray's object store, since %s:%d cannot be read: %s. Open the ports of the nodes to "
            "each other for more speed, or set Config(transport='object_store').",
            *(worker.name, address.host, address.port, trouble),
        )
        return reader.received

    def _room(self) -> bool:
        """Wait until another batch may be fetched; False if none is wanted any more."""
        with self._state:
            while self._queued_bytes >= self._prefetch_bytes and not self._closed:
                self._state.wait()
            return not self._closed

    def _note(self, text: str) -> None:
        with self._state:
            self._notes.append(text)
            self._state.notify_all()

    def _receive(self, worker: WorkerInfo, message: Message) -> bool:
        """Put a batch into the queue and note its acknowledgement; False if it can no longer be read."""
        columns = self._reader.open(message)
        if columns is None:
            self._broke(worker.name)
            return False
        nbytes = sum(int(getattr(column, "nbytes", 0)) for column in columns.values())
        provenance = Provenance(message.epoch, worker.name, message.spans, message.rows)
        received = Received(columns, provenance, nbytes, message)
        with self._state:
            if self._closed:
                return False
            self._queue.append(received)
            self._queued_bytes += nbytes
            self._acks.setdefault(worker.name, []).append((provenance, nbytes))
            self._bad.extend(message.bad)
            self._quarantined.extend(message.bad)
            self._state.notify_all()
        return True

    def _broke(self, worker: str) -> None:
        with self._state:
            self._broken.add(worker)

    # --- the threads that talk with the controller ---------------------------------------------------------

    def _guarded(self, talk: Callable[[], None]) -> None:
        """Talk with the controller; its loss is an error of the job."""
        try:
            talk()
        except ray.exceptions.RayError as error:
            with self._state:
                if not self._closed and not self._finished and self._error is None:
                    self._error = ClusterError(
                        f"the controller of the job is gone ({type(error).__name__}): {error}. Its node or process "
                        "was lost; start the run again."
                    )
                self._state.notify_all()

    def _over(self) -> bool:
        return self._closed or self._finished or self._error is not None

    def _keep_obeying(self) -> None:
        """Wait for orders: the controller answers when they have changed."""
        while not self._over():
            met = 0 if self.orders is None else self.orders.met
            self._obey(pickle.loads(ray.get(self._controller.orders.remote(self._rank, met))))

    def _keep_reporting(self) -> None:
        """Report what there is, in lots, but at once near the end of an epoch, when others wait for it."""
        idle = max(IDLE_REPORT_S, IDLE_REPORT_PER_TRAINER_S * self._world_size)
        while not self._over():
            with self._state:
                self._state.wait_for(lambda: self._over() or self._news(), timeout=idle)
                report = self._report()
            # Ray passes bytes on as they are, which costs the controller less than an object.
            ray.get(self._controller.sync.remote(pickle.dumps(report)))
            with self._state:
                self._state.wait_for(lambda: self._over() or (self._pressing() and self._news()), timeout=REPORT_S)

    def _news(self) -> bool:
        return bool(self._acks or self._broken or self._notes or self._given_back or self._settled())

    def _pressing(self) -> bool:
        """Tell whether others wait for what this client has to say."""
        return self._world_size > 1 or (self.orders is not None and (self.orders.closing or bool(self.orders.settle)))

    def _settled(self) -> tuple[str, ...]:
        """Return the lost workers about which everything is known here: their streams have ended."""
        gone = () if self.orders is None else self.orders.settle
        return tuple(name for name in gone if name not in self._told and not self._still_fetching(name))

    def _report(self) -> ClientReport:
        acks = tuple(self._acknowledge(worker, batches) for worker, batches in self._acks.items())
        settled = self._settled()
        self._told.update(settled)
        spans, count = self._given_back or (None, 0)
        bad = tuple(replace(one, element=None) for one in self._bad)
        broken, notes = tuple(self._broken), tuple(self._notes)
        self._acks, self._given_back, self._bad, self._broken, self._notes = {}, None, [], set(), []
        return ClientReport(
            rank=self._rank,
            acks=acks,
            settled=settled,
            given_back=spans,
            given_back_batches=count,
            bad=bad,
            broken=broken,
            notes=notes,
            yielded=self.yielded,
            waited_s=self.waited_s,
            elapsed_s=self.elapsed_s,
            queued=len(self._queue),
            steps=self._steps,
        )

    def _acknowledge(self, worker: str, batches: list[tuple[Provenance, int]]) -> Acknowledgement:
        spans: SpansByKey = {}
        for provenance, _ in batches:
            for key, intervals in provenance.spans.items():
                spans.setdefault(key, []).extend(intervals)
        rows = sum(provenance.rows for provenance, _ in batches)
        return Acknowledgement(worker, spans, len(batches), rows, sum(nbytes for _, nbytes in batches))

    def _still_fetching(self, worker: str) -> bool:
        thread = self._fetchers.get(worker)
        return thread is not None and thread.is_alive()

    def _obey(self, orders: Orders) -> None:
        newcomers: list[WorkerInfo] = [pickle.loads(worker) for worker in orders.newcomers]
        with self._state:
            self.orders = orders
            self._finished = orders.finished
            self._error = orders.error
            if orders.keep is not None:
                self._give_back(orders.keep, orders.epoch)
            for worker in newcomers:
                if worker.name not in self._fetchers:
                    thread = threading.Thread(
                        target=self._fetch, args=(worker,), name=f"pecan-fetch-{worker.name}", daemon=True
                    )
                    self._fetchers[worker.name] = thread
                    thread.start()
            self._state.notify_all()

    def _give_back(self, keep: int, epoch: int) -> None:
        """Return the batches of this epoch beyond `keep`: none of them was used, since `keep` bounds use."""
        used = self._in_epoch if self._epoch == epoch else 0
        spans: SpansByKey = {}
        count = 0
        while used + len(self._queue) > keep:
            batch = self._queue.pop()
            self._queued_bytes -= batch.nbytes
            count += 1
            for key, intervals in batch.provenance.spans.items():
                spans.setdefault(key, []).extend(intervals)
            self._reader.taken(batch.message)
        if count:
            self._given_back = (spans, count)
