"""The worker's end of Arrow Flight: one server in a process, one stream for each client.

A stream is a DoExchange call: lots go to the client, and their confirmations and credits for more come back on the same
connection.  (With DoGet a worker would not know what has arrived when a stream breaks.)  It ends with a last message,
after which the client closes its side: gRPC drops what is still under way when the server's side of a call ends first.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import struct
import threading
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from pecan_ray.errors import ClusterError
from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.flight_guard import MOST_AHEAD, ConnectionGuard
from pecan_ray.transport.flight_lanes import Lane
from pecan_ray.transport.flight_wire import ANSWER, END, GONE, HELLO, SCHEMA, send, wrap
from pecan_ray.transport.link_speed import LinkSpeed
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.tls_credentials import TlsCredentials

logger = logging.getLogger(__name__)

FAILURES = (flight.FlightError, pa.ArrowException, OSError)


class FlightEndpoint:
    """A worker's Flight server and the lanes to its clients."""

    def __init__(
        self,
        host: str,
        outbox: Outbox,
        *,
        certificates: TlsCredentials | None = None,
        most_ahead: int = MOST_AHEAD,
    ) -> None:
        """Start the server; a connection that brings more than `most_ahead` bytes more than it takes is cut."""
        self._outbox, self._host, self._tls = outbox, host, certificates is not None
        # Decision 30: a key beside the token, because the token is shown to whoever answers at the port.
        self._token, self.key = secrets.token_hex(32), secrets.token_bytes(32)
        self._lanes: dict[int, Lane] = {}
        """By rank."""
        self._lanes_lock = threading.Lock()
        """Guards them: the lane of a rank ends before it gets another one."""
        self.link_speed = LinkSpeed()
        try:
            self._server = _start(self, host, self._token, certificates)
        except FAILURES as error:
            raise ClusterError(f"no Flight server can be started on {host}: {error}") from error
        self.guard = ConnectionGuard(self._server.port, most_ahead)

    def prepare_client(self, rank: int) -> FlightAddress:
        """Prepare the lane to a client and return what it needs to open a stream."""
        with self._lanes_lock:
            if rank in self._lanes:
                self._lanes[rank].close(0)  # what another client of this rank has not confirmed
            self._lanes[rank] = Lane(rank, self._outbox)
        return FlightAddress(self._host, self._server.port, self._token, self._tls, self.key)

    def wait_for_delivery(self, rank: int) -> None:
        """Wait until a client has everything, or gets the rest another way."""
        self._lanes[rank].finished.wait()

    def close_stream(self, rank: int, received: int) -> None:
        """End the lane to a client that has received so many lots: the rest goes back to the outbox."""
        self._lanes[rank].close(received)

    def close(self) -> None:
        """End all streams and the server, once the clients have closed theirs."""
        # First, because the server's own end waits for the calls that run.
        for rank in list(self._lanes):
            self.close_stream(rank, 0)
        self._server.shutdown()
        self.guard.close()

    def serve(self, command: bytes, reader: Any, writer: Any) -> None:
        """Run one stream to its end."""
        try:
            asked = json.loads(command)
            rank, received, granted = (int(asked[name]) for name in ("rank", "received", "granted"))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise flight.FlightServerError(f"what was asked for is no stream: {error!r}") from None
        lane = self._lanes.get(rank)
        if lane is None:
            raise flight.FlightServerError(f"this worker has no stream to rank {rank}")
        # What a broken stream of this client has lost is known again before this one sends.
        lane.granted(granted)
        try:
            _Stream(lane, received, reader, writer, self.key, self.link_speed).run()
        except FAILURES as error:
            logger.info("the stream to rank %d broke: %s", rank, error)


class _Stream:
    """One DoExchange call: sends the lots of a lane and takes confirmations and credits."""

    def __init__(self, lane: Lane, received: int, reader: Any, writer: Any, key: bytes, link_speed: LinkSpeed) -> None:
        self._lane, self._received, self._key, self._link_speed = lane, received, key, link_speed
        self._reader, self._writer = reader, writer
        self._whole = False

    def run(self) -> None:
        """Send until there is no more or the lane has a newer stream, then wait for the client to close."""
        turn = self._lane.open(self._received)
        self._writer.begin(SCHEMA)
        listener = threading.Thread(target=self._listen, name="pecan-confirm", daemon=True)
        listener.start()
        try:
            self._send_all(turn)
            current = self._lane.current(turn)
            self._writer.write_metadata(END if current else GONE)
        except BaseException:
            # The reader may be what has gone; it waits for this else.
            with contextlib.suppress(*FAILURES):
                self._writer.write_metadata(GONE)
            raise
        finally:
            listener.join()  # it reads from the call, which must not end before
        # Only the client's orderly end says that everything has come: otherwise it opens another stream.
        if current and self._whole:
            self._lane.finished.set()

    def _send_all(self, turn: int) -> None:
        number = self._received
        while lot := self._lane.lot(number, turn):
            label, body = wrap(lot)
            begun = time.monotonic()
            send(self._writer, replace(label, number=number), body, self._key)
            self._link_speed.add(body.size, time.monotonic() - begun)
            number += 1

    def _listen(self) -> None:
        """Take confirmations and credits until the client closes its side."""
        try:
            while True:
                received, granted = ANSWER.unpack(self._reader.read_chunk().app_metadata.to_pybytes())
                self._lane.confirm(received)
                self._lane.granted(granted)
        except StopIteration:
            self._whole = True
        except (*FAILURES, struct.error, AttributeError) as error:  # or what came is no answer
            logger.info("the client's side of a stream broke: %s", error)


def _start(endpoint: FlightEndpoint, host: str, token: str, certificates: TlsCredentials | None) -> Any:
    """Start a server that hands calls with the right token to an endpoint."""

    def start_call(self: Any, info: Any, headers: dict[str, list[str]]) -> None:
        # Before any handler.  What a message brings before even this is asked, the guard bounds.
        shown = "".join(headers.get("authorization", []))
        if not hmac.compare_digest(shown.encode(), f"Bearer {token}".encode()):
            raise flight.FlightUnauthenticatedError("the token of this call is not that of the worker")

    def do_exchange(self: Any, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        endpoint.serve(descriptor.command, reader, writer)

    def do_action(self: Any, context: Any, action: Any) -> list[bytes]:
        if action.type != HELLO:
            raise flight.FlightServerError(f"there is no action {action.type!r}")
        return [b""]

    door: Any = type("TokenCheck", (flight.ServerMiddlewareFactory,), {"start_call": start_call})
    server: Any = type("BatchServer", (flight.FlightServerBase,), {"do_exchange": do_exchange, "do_action": do_action})
    address = FlightAddress(host, 0, token, tls=certificates is not None)
    tls: dict[str, Any] = {}
    if certificates is not None:
        tls = {
            "tls_certificates": [(certificates.chain, certificates.key)],
            "verify_client": True,
            "root_certificates": certificates.root_cert,
        }
    return server(address.location, middleware={"token": door()}, **tls)
