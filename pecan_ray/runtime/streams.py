"""The trainer's end of the ways from workers: one thread reads from each, and hands on what comes at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import ray

from pecan_ray.runtime.calls import Calls, CallsClosedError
from pecan_ray.runtime.messages import WorkerInfo
from pecan_ray.transport.choice import FlightAddress, SelectedTransport
from pecan_ray.transport.message_pipe import MessageReader, PipeAddress
from pecan_ray.transport.messages import BatchReader, Message

if TYPE_CHECKING:
    from pecan_ray.transport.flight_client import FlightReader

logger = logging.getLogger("pecan_ray.client")


class Way(Protocol):
    """What reads from a worker."""

    def grant(self, count: int) -> None:
        """Let the worker send so many more messages."""
        ...

    def stop(self) -> None:
        """Read no more."""
        ...


class _StoreWay:
    """Messages that Ray carries; the thread that reads them waits in an event loop of its own, not in Ray."""

    def __init__(self, worker: WorkerInfo, rank: int, calls: Calls) -> None:
        self._worker, self._rank, self._calls = worker, rank, calls
        self._loop = asyncio.new_event_loop()
        self._reading: asyncio.Task[bool] | None = None

    def grant(self, count: int) -> None:
        self._calls.tell(self._worker.handle.grant, self._rank, count)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: all was read
            self._loop.call_soon_threadsafe(lambda: self._reading is not None and self._reading.cancel())

    def read(self, stream: Any, deliver: Callable[[list[Message]], bool]) -> bool:
        """Read to the end; False if a message cannot be read."""
        self._reading = self._loop.create_task(self._read(stream, deliver))
        try:
            return self._loop.run_until_complete(self._reading)
        except asyncio.CancelledError:
            # `stop` has ended it: that breaks no stream.
            return True

    def close(self) -> None:
        """Close the event loop."""
        self._loop.close()

    async def _read(self, stream: Any, deliver: Callable[[list[Message]], bool]) -> bool:
        async for reference in stream:
            if not deliver(await reference):
                return False
            # Otherwise Ray would keep this batch in its store while the next one is awaited.
            del reference
        return True


@dataclass(frozen=True)
class TrainerIdentity:
    """Who a trainer is, to its job and its workers."""

    job: str
    incarnation: str
    """Names the process: another one that has the same rank is another trainer."""
    node: str
    rank: int = 0
    world_size: int = 1


class WorkerStream:
    """Reads one worker's batches until there are no more, or the worker is gone."""

    def __init__(
        self,
        worker: WorkerInfo,
        trainer: TrainerIdentity,
        reader: BatchReader,
        calls: Calls,
        *,
        deliver: Callable[[str, list[Message]], bool],
        tell: Callable[[str], None],
        ended: Callable[[str, bool, BaseException | None], None],
    ) -> None:
        """`deliver` takes the messages that one credit has brought, and returns False if they cannot be read.

        `tell` takes what is worth telling; `ended` is called once, with whether the stream broke and, where it is
        neither the worker's end nor the trainer's, with what went wrong.
        """
        self._worker, self._trainer, self._rank, self._reader = worker, trainer, trainer.rank, reader
        self._calls = calls
        self._deliver, self._tell, self._ended = deliver, tell, ended
        self._lock = threading.Lock()
        """Guards what is below."""
        self._way: Way | None = None
        self._granted = 0
        """Credits that were granted before there was a way."""
        self._stopped = False
        self.thread = threading.Thread(target=self._run, name=f"pecan-fetch-{worker.name}", daemon=True)

    def grant(self, count: int) -> None:
        """Let the worker send so many more messages; never blocks."""
        with self._lock:
            way = self._way
            if way is None:
                self._granted += count
                return
        way.grant(count)

    def stop(self) -> None:
        """Read no more."""
        with self._lock:
            self._stopped = True
            way = self._way
        if way is not None:
            way.stop()

    def _run(self) -> None:
        stream_failed, trouble = True, None
        try:
            stream_failed = not self._fetch()
        except CallsClosedError:
            stream_failed = False
        # The worker's files below /proc go with its process.
        except (ray.exceptions.RayError, FileNotFoundError, ProcessLookupError) as error:
            logger.info("stream of %s broke: %s", self._worker.name, type(error).__name__)
        except BaseException as error:  # whatever it is, the training loop must know
            trouble = error
        self._ended(self._worker.name, stream_failed and not self._stopped, trouble)

    def _fetch(self) -> bool:
        """Read to the end; False if what came cannot be read."""
        worker = self._worker
        # Decision 2: shared memory is a file of the worker's process, which this one must be
        # allowed to open.
        sees_process = os.access(f"/proc/{worker.pid}/fd", os.R_OK | os.X_OK)
        offer: SelectedTransport = self._calls.ask(
            worker.handle.select_transport, self._rank, self._trainer.node, sees_process
        )
        self._tell(f"{worker.name} -> rank {self._rank} by {offer.transport}: {offer.reason}")
        if offer.pipe is not None:
            return self._fetch_by_pipe(offer.pipe)
        if offer.flight is None:
            return self._fetch_by_ray(None)
        received = self._fetch_by_flight(offer.flight)
        return received is None or self._fetch_by_ray(received)

    def _use(self, way: Way) -> bool:
        """Grant on this way from now on, first what was granted before; False if nothing is wanted any more."""
        with self._lock:
            if self._stopped:
                return False
            self._way, granted, self._granted = way, self._granted, 0
        if granted:
            way.grant(granted)
        return True

    def _fetch_by_pipe(self, address: PipeAddress) -> bool:
        """Read messages about batches in the worker's shared memory; raises what Ray raises if it is gone."""
        tokens: set[str] = set()
        with (
            closing(MessageReader(address)) as reader,
            closing(self._calls.begin(self._worker.handle.send, self._rank)) as sending,
        ):
            # Decision 18: the call ends with the worker, also with one that is killed.
            # `stop` lets the reader have what was written before that, so that nothing that arrived is lost.
            sending.add_callback(lambda _: reader.stop())
            if not self._use(reader):
                return True
            try:
                for data in reader:
                    messages: list[Message] = pickle.loads(data)
                    tokens.update(message.address.token for message in messages if message.address is not None)
                    if not self._deliver(self._worker.name, messages):
                        return False
            finally:
                for token in tokens:
                    self._reader.forget(token)
            # The end of a pipe alone does not tell a worker that has ended from one that died. The call does.
            if not reader.ended and not self._stopped:
                self._calls.result(sending)
        return True

    def _fetch_by_ray(self, received: int | None) -> bool:
        """Read messages that Ray carries, with the batches; `received`: by Flight, before it failed."""
        method = self._worker.handle.stream.options(num_returns="streaming", _generator_backpressure_num_objects=4)
        stream = self._calls.stream(method, self._rank, received)
        with closing(_StoreWay(self._worker, self._rank, self._calls)) as way:
            if not self._use(way):
                return True
            return way.read(stream, lambda messages: self._deliver(self._worker.name, messages))

    def _fetch_by_flight(self, address: FlightAddress) -> int | None:
        """Read by Flight; return None at the end, else how many messages were received before Flight failed.

        Raises what Ray raises if the worker is gone.
        """
        from pecan_ray.transport.flight_client import FlightReader

        name, handle = self._worker.name, self._worker.handle
        reader: FlightReader = FlightReader(address, self._rank, lambda messages: self._deliver(name, messages))
        if not self._use(reader):
            return None
        with closing(self._calls.begin(handle.wait_for_delivery, self._rank)) as alive:
            # `wait_for_delivery` fails at once when the worker is dead: no stream need be opened again.
            alive.add_callback(lambda future: reader.stop() if future.exception() else None)
            trouble = reader.run()
            if reader.ended or self._stopped:
                return None
            # Raises if the worker is gone.
            self._calls.result(alive if trouble is None else self._calls.begin(handle.placed))
        self._tell(
            f"{name} -> rank {self._rank}: by object_store from now on, since {address.host}:{address.port} cannot be "
            f"read: {trouble}"
        )
        logger.warning(
            "batches of %s come by Ray's object store, since %s:%d cannot be read: %s. Open the ports of the nodes to "
            "each other for more speed, or set Config(transport='object_store').",
            *(name, address.host, address.port, trouble),
        )
        with self._lock:
            self._way = None
            self._granted += reader.unused  # what was granted to Flight is granted to the way that follows it
        return reader.received
