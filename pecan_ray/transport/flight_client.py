"""The trainer's end of Arrow Flight: reads one worker, opens a broken stream again, or says why not."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from pecan_ray.errors import ClusterError
from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.flight_wire import ANSWER, HELLO, received_items, unwrap
from pecan_ray.transport.messages import Message
from pecan_ray.transport.tls_credentials import cluster_tls_credentials

logger = logging.getLogger("pecan_ray.client")

CONNECT_S = 3.0
"""A server that has not answered after so long counts as unreachable: TCP sends its first packet again after 1 s and 3
s."""
ATTEMPTS = 4
"""Times in a row that a stream may fail to bring anything before the worker is read another way: with their pauses,
within a second."""
PAUSE_S = 0.1
"""Before the second attempt; doubled for each further one, so that four take 0.7 s beside their own time."""
FAILURES = (flight.FlightError, pa.ArrowException, OSError)
CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
"""A connection of its own for each worker, and never through a proxy for web pages."""


class _ReplyStream:
    """What is said to the worker on one stream, by whichever thread."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        """Guards the stream: Arrow lets one thread write at a time."""
        self._over = False

    def say(self, received: int, granted: int) -> bool:
        """Write an answer; False if the stream is over."""
        with self._lock:
            if not self._over:
                self._writer.write_metadata(ANSWER.pack(received, granted))
            return not self._over

    def end(self) -> None:
        """Tell the worker that nothing more is said."""
        with self._lock:
            self._over = True
            self._writer.done_writing()

    def close(self) -> None:
        """End the stream, also one that has broken."""
        with self._lock, contextlib.suppress(*FAILURES):
            self._over = True
            self._writer.close()  # else Arrow complains on the standard error about calls that were cancelled


class FlightReader:
    """Reads one worker's batches; a broken stream is opened again without losing or repeating a batch."""

    def __init__(self, address: FlightAddress, rank: int, deliver: Callable[[list[Message]], bool]) -> None:
        """Prepare to read.

        `deliver` takes the batches that one credit has brought, without waiting for anything, and returns False when
        no more are wanted.
        """
        self._address, self._rank, self._deliver = address, rank, deliver
        self.received = 0
        """Lots that were received."""
        self.ended = False
        """The stream was read to its end."""
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        """Guards what is below."""
        self._call: Any = None
        self._answers: _ReplyStream | None = None
        """Of the stream that is open."""
        self._granted = 0
        """Lots, since the beginning: a sum, since a stream that breaks may have lost what was said."""
        self._delivering: int | None = None
        """The thread that will say what was granted when it confirms what it delivers."""
        self._reached = False

    @property
    def unused(self) -> int:
        """Credits that were granted and have brought nothing yet."""
        with self._lock:
            return self._granted - self.received

    def run(self) -> str | None:
        """Read to the end, or until `stop`, opening the stream again when it breaks.

        Returns None, or why the rest must come another way.
        """
        failures = 0
        while not self._stopped.is_set():
            before = self.received
            try:
                self._read()
                return None
            except Exception as error:  # whatever it is, another stream or another way may do
                failures = 1 if self.received > before else failures + 1
                if self._stopped.is_set():
                    return None
                logger.info("the stream of %s:%d broke: %s", self._address.host, self._address.port, error)
                # A port that has never answered is given up at once: each further try would take CONNECT_S.
                if failures >= ATTEMPTS or not self._reached:
                    self.stop()
                    return f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self._stopped.wait(PAUSE_S * 2 ** (failures - 1))
        return None

    def grant(self, count: int) -> None:
        """Let the worker send so many more messages; never blocks for long, and does no harm after the end."""
        with self._lock:
            self._granted += count
            answers = self._answers
            if answers is None or threading.get_ident() == self._delivering:
                return
        # What a stream that breaks does not say is said again when the next one is opened.
        with contextlib.suppress(*FAILURES):
            answers.say(self.received, self._granted)

    def stop(self) -> None:
        """End the stream at once."""
        self._stopped.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def _read(self) -> None:
        """Read one stream to its end; raises when it breaks."""
        options = self._options()
        with contextlib.closing(self._connect()) as client:
            granted = self._granted
            wish = {"rank": self._rank, "received": self.received, "granted": granted}
            command = flight.FlightDescriptor.for_command(json.dumps(wish).encode())
            writer, reader = client.do_exchange(command, options)
            answers = _ReplyStream(writer)
            with self._lock:
                self._call, self._answers = reader, answers
                missed = self._granted > granted
            try:
                if missed:  # meanwhile, and no other stream may have been there to say it
                    answers.say(self.received, self._granted)
                if not self._stopped.is_set() and self._take(answers, reader):
                    self.ended = True
                    with contextlib.suppress(StopIteration, *FAILURES):
                        # This side ends first and waits for the worker: gRPC drops what is under way otherwise.
                        answers.end()
                        reader.read_chunk()
            finally:
                with self._lock:
                    self._call = self._answers = None
                reader.cancel()
                answers.close()

    def _take(self, answers: _ReplyStream, reader: Any) -> bool:
        """Deliver and confirm what comes; True at the end, False if no more is wanted."""
        stream = received_items(reader, self._address.key)
        while (arrival := next(stream, None)) is not None:
            label, memory = arrival
            # The next stream goes on where this one should have: so no lot is lost, and none counts twice.
            if label.number != self.received:
                raise ConnectionError(f"lot {label.number} came where {self.received} was due")
            messages = unwrap(label, memory)
            # They would keep this lot's memory while the next one is awaited.
            del arrival, label, memory
            if not self._deliver_all(messages):
                self.stop()
                return False
            del messages
            self.received += 1
            answers.say(self.received, self._granted)
        return True

    def _deliver_all(self, messages: list[Message]) -> bool:
        """Deliver batches; what is granted meanwhile goes with their confirmation."""
        self._delivering = threading.get_ident()
        try:
            return self._deliver(messages)
        finally:
            self._delivering = None

    def _connect(self) -> Any:
        """Return a connection that has been answered; raises what Flight raises if there is no answer in time."""
        address, tls = self._address, {}
        if address.tls:
            certificates = cluster_tls_credentials()
            if certificates is None:
                raise ClusterError("the worker encrypts its batches, but RAY_USE_TLS is not set here: set it as there")
            tls = {
                "tls_root_certs": certificates.root_cert,
                "cert_chain": certificates.chain,
                "private_key": certificates.key,
            }
        client = flight.FlightClient(address.location, generic_options=CHANNEL, **tls)
        # HELLO has a deadline: the stream behind it, which may be silent for long, can have none.
        list(client.do_action(flight.Action(HELLO, b""), self._options(CONNECT_S)))
        self._reached = True
        return client

    def _options(self, timeout_s: float | None = None) -> Any:
        headers = [(b"authorization", f"Bearer {self._address.token}".encode())]
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)
