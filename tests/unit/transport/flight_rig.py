"""A worker's Flight server without a worker, a client without a job, a wire between them that can be cut, batches."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import Produced, Slots
from pecan_ray.engines.slots import into_slot
from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.flight_client import FlightReader
from pecan_ray.transport.flight_guard import reset
from pecan_ray.transport.flight_server import FlightEndpoint
from pecan_ray.transport.messages import Message
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.ring import RingSlots
from tests.ray.waiting import ENDS_S


class Memory:
    """Of a batch; tells how often it was given back."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(64))
        self.released = 0

    def release(self) -> None:
        self.released += 1


@contextlib.contextmanager
def beside(run: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run something in a thread that ends with the block."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(ENDS_S)
    assert not thread.is_alive(), "it still waits"


def batch(number: int, nbytes: int = 8, epoch: int = 0) -> Produced:
    spans = {(0, 0, epoch): [(number, number + 1)]}
    return Produced({"x": np.zeros(nbytes, np.uint8)}, spans, 1, epoch, slot=Memory())


def number_of(produced: Produced) -> int:
    ((span,),) = produced.spans.values()
    return span[0]


def outbox_of(batches: list[Produced]) -> Outbox:
    outbox = Outbox()
    for one in batches:
        outbox.put(one, None)
    outbox.close()
    return outbox


def produce(slots: Slots, number: int, columns: dict[str, Any]) -> Produced:
    """A batch in a slot, as engines make them; its position says which one it is."""
    held, slot, layout = into_slot(columns, slots)
    return Produced(held, {(0, 0, 0): [(number << 32, (number + 1) << 32)]}, 1, 0, slot=slot, layout=layout)


class Worker:
    """Produces in a thread of its own and serves what it has produced."""

    def __init__(self, batches: Iterator[dict[str, Any]], limit: int = 64 << 20, **options: Any) -> None:
        self.outbox, self.slots = Outbox(), RingSlots(limit)
        self.endpoint = FlightEndpoint("127.0.0.1", self.outbox, **options)
        self.produced = 0
        self._batches = batches
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number, columns in enumerate(self._batches):
            self.outbox.put(produce(self.slots, number, columns), None)
            self.produced = number + 1
        self.outbox.close()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the worker still produces"


@contextlib.contextmanager
def working(batches: Iterable[dict[str, Any]], **options: Any) -> Iterator[Worker]:
    worker = Worker(iter(batches), **options)
    yield worker
    worker.endpoint.close()


class Client:
    """Reads one worker and keeps what comes; grants a credit for each message that came, unless it began with none."""

    def __init__(self, address: FlightAddress, ahead: int = 4, rank: int = 0) -> None:
        self.messages: list[Message] = []
        self.lots: list[int] = []
        """Batches of each message."""
        self._prefetched = ahead
        self._lock = threading.Lock()
        self.reader = FlightReader(address, rank, self._deliver)
        if ahead:
            self.reader.grant(ahead)

    def _deliver(self, messages: list[Message]) -> bool:
        with self._lock:
            self.messages += messages
            self.lots.append(len(messages))
        if self._prefetched:
            self.reader.grant(1)
        return True

    @contextlib.contextmanager
    def reading(self) -> Iterator[list[str | None]]:
        """Read in a thread of its own, which ends with the block; what it returned is in the list then."""
        result: list[str | None] = []
        with beside(lambda: result.append(self.reader.run())):
            yield result

    def numbers(self) -> list[int]:
        return [start >> 32 for message in self.messages for start, _ in message.spans[0, 0, 0]]


class Wire:
    """Forwards a port of its own to a server's; one connection after the other is cut after so many bytes.

    `silent`: nobody is told when a connection ends, as when a node loses its power.  `before`: is called with the
    bytes that a connection has brought to the server, before they are.
    """

    def __init__(
        self,
        address: FlightAddress,
        cut_after: list[int],
        silent: bool = False,
        before: Callable[[int], object] = lambda passed: None,
    ) -> None:
        self._target = (address.host, address.port)
        self._silent, self._before = silent, before
        self._open: list[socket.socket] = []
        self._cuts = cut_after
        self._cutting = threading.Lock()
        self.cuts = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = replace(address, host="127.0.0.1", port=self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open += [client, server]
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, cut: bool) -> None:
        passed, end = 0, shut
        try:
            while data := source.recv(1 << 16):
                passed += len(data)
                if cut and self._is_cut(passed):
                    break
                if not cut:
                    self._before(passed)
                target.sendall(data)
        except OSError:  # one side was reset: the other one, which may have more to send, does not end by less
            end = reset_all
        if not self._silent:
            end(source, target)

    def _is_cut(self, passed: int) -> bool:
        with self._cutting:
            if not self._cuts or passed <= self._cuts[0]:
                return False
            self._cuts.pop(0)
            self.cuts += 1
            return True

    def close(self) -> None:
        self._socket.close()
        shut(*self._open)


def shut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def reset_all(*ends: socket.socket) -> None:
    """End connections as a reset does, also where more waits to be sent."""
    for end in ends:
        with contextlib.suppress(OSError):
            reset(end)


def numbered(count: int, shape: tuple[int, ...] = (64, 64)) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"x": np.full(shape, number, np.int32), "y": np.full(3, number, np.float64)}


def received(batches: Iterable[dict[str, Any]], **options: Any) -> Client:
    with working(batches, **options) as worker:
        client = Client(worker.endpoint.prepare_client(0))
        assert client.reader.run() is None and client.reader.ended
    return client


def check_numbered(client: Client, count: int) -> None:
    """Check that so many batches of `numbered` came, in order, whole, and in memory that is the client's own."""
    assert client.numbers() == list(range(count))
    for number, message in enumerate(client.messages):
        for name, column in message.columns.items():
            assert (column == number).all() and column.flags.aligned and column.flags.writeable, (number, name)
