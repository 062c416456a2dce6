"""The worker's end of Arrow Flight: one server in a process, one stream for each lane of each client.

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
from pecan_ray.options import Compression
from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.compression import Codec, LinkMeter, choose_compression, measure_compression, pack
from pecan_ray.transport.credits import Credits
from pecan_ray.transport.flight_guard import MOST_AHEAD, ConnectionGuard
from pecan_ray.transport.flight_lanes import Lane
from pecan_ray.transport.flight_wire import ANSWER, END, GONE, HELLO, SCHEMA, send, wrap
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.tls_credentials import TlsCredentials

logger = logging.getLogger(__name__)

LEAST_PACKED = 4096
"""Smaller lots are not worth compressing."""
FAILURES = (flight.FlightError, pa.ArrowException, OSError)


class _Client:
    """A rank's lanes, and the credits that they share."""

    def __init__(self, rank: int, outbox: Outbox, streams: int) -> None:
        self._credits = Credits()
        self._granted = 0
        self._total_lock = threading.Lock()
        """Guards the sum."""
        self.lanes = [Lane(rank, outbox, self._credits) for _ in range(streams)]
        # Lanes that wait for a credit would otherwise never see that there is no more.
        outbox.at_end(rank, self._credits.close)

    def granted(self, total: int) -> None:
        """Note how many lots the client has granted since it began."""
        with self._total_lock:
            # Decision 21: clients tell sums since the beginning, because an answer may be lost with its stream.
            more = total - self._granted
            if more > 0:
                self._granted = total
                self._credits.add(more)

    def close(self, received: dict[int, int]) -> None:
        """End the lanes: what the client has not received of each goes back to the outbox."""
        for number, lane in enumerate(self.lanes):
            lane.close(received.get(number, 0))


class FlightEndpoint:
    """A worker's Flight server and the lanes to its clients."""

    def __init__(
        self,
        host: str,
        outbox: Outbox,
        *,
        certificates: TlsCredentials | None = None,
        streams: int = 1,
        compression: Compression = "auto",
        most_ahead: int = MOST_AHEAD,
    ) -> None:
        """Start the server; a connection that brings more than `most_ahead` bytes more than it takes is cut."""
        self._outbox, self._streams, self._compression = outbox, streams, compression
        self._host, self._tls = host, certificates is not None
        # Decision 30: a key beside the token, because the token is shown to whoever answers at the port.
        self._token, self.key = secrets.token_hex(32), secrets.token_bytes(32)
        self._clients: dict[int, _Client] = {}
        self._clients_lock = threading.Lock()
        """Guards the clients: the lanes of a rank end before it gets others."""
        try:
            self._server = _start(self, host, self._token, certificates)
        except FAILURES as error:
            raise ClusterError(f"no Flight server can be started on {host}: {error}") from error
        self.guard = ConnectionGuard(self._server.port, most_ahead)

    def prepare_client(self, rank: int) -> FlightAddress:
        """Prepare the lanes to a client and return what it needs to open them."""
        with self._clients_lock:
            if rank in self._clients:
                self._clients[rank].close({})  # what another client of this rank has not confirmed
            self._clients[rank] = _Client(rank, self._outbox, self._streams)
        return FlightAddress(self._host, self._server.port, self._token, self._tls, self._streams, self.key)

    def wait_for_delivery(self, rank: int) -> None:
        """Wait until a client has everything, or gets the rest another way."""
        for lane in self._clients[rank].lanes:
            lane.finished.wait()

    def close_streams(self, rank: int, received: dict[int, int]) -> None:
        """End the lanes to a client that has received so many lots of each: the rest goes back to the outbox."""
        self._clients[rank].close(received)

    def close(self) -> None:
        """End all streams and the server, once the clients have closed theirs."""
        # First, because the server's own end waits for the calls that run.
        for rank in list(self._clients):
            self.close_streams(rank, {})
        self._server.shutdown()
        self.guard.close()

    def serve(self, command: bytes, reader: Any, writer: Any) -> None:
        """Run one stream to its end."""
        try:
            asked = json.loads(command)
            rank, number, received, granted = (int(asked[name]) for name in ("rank", "lane", "received", "granted"))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise flight.FlightServerError(f"what was asked for is no stream: {error!r}") from None
        client = self._clients.get(rank)
        if client is None or not 0 <= number < len(client.lanes):
            raise flight.FlightServerError(f"this worker has no lane {number} to rank {rank}")
        # What a broken stream of this client has lost is known again before this one sends.
        client.granted(granted)
        try:
            _Stream(client, number, received, reader, writer, self._compression, self.key).run()
        except FAILURES as error:
            logger.info("the stream to rank %d broke: %s", rank, error)


class _Stream:
    """One DoExchange call: sends the lots of a lane and takes confirmations and credits."""

    def __init__(
        self,
        client: _Client,
        number: int,
        received: int,
        reader: Any,
        writer: Any,
        compression: Compression,
        key: bytes,
    ) -> None:
        self._key = key
        self._client, self._lane, self._received = client, client.lanes[number], received
        # The first lane tells the user, for all of them.
        self._reader, self._writer, self._tell = reader, writer, number == 0
        self._codec: Codec = "none" if compression == "auto" else compression
        self._codec_pending = compression == "auto"
        self._meter = LinkMeter()
        self._meter_lock = threading.Lock()
        """Guards the meter, which is told of lots by one thread and of confirmations by another."""
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
            self._send(number, *wrap(lot))
            number += 1

    def _send(self, number: int, label: Any, body: Any) -> None:
        note = ""
        if self._codec_pending and self._meter.ready and body.size:
            note = self._decide(body)
        codec: Codec = "none"
        if self._codec != "none" and body.size >= LEAST_PACKED:
            packed = pack(body, self._codec)
            if packed.size < body.size:
                codec, body = self._codec, packed
        with self._meter_lock:
            self._meter.note_start(number, body.size, time.monotonic())
        send(self._writer, replace(label, number=number, codec=codec, note=note), body, self._key)

    def _decide(self, body: Any) -> str:
        """Choose the codec; return what to tell the user about it."""
        self._codec_pending = False
        speeds, ratios = measure_compression(body)
        with self._meter_lock:
            bandwidth, wanted = self._meter.bandwidth_bytes_s, self._meter.required_bytes_s
        self._codec, reason = choose_compression(bandwidth, speeds, ratios, wanted_bytes_s=wanted)
        logger.info("compression %s: %s", self._codec, reason)
        how = "uncompressed" if self._codec == "none" else f"compressed with {self._codec}"
        return f"its batches travel {how}: {reason}" if self._tell else ""

    def _listen(self) -> None:
        """Take confirmations and credits until the client closes its side."""
        try:
            while True:
                received, granted = ANSWER.unpack(self._reader.read_chunk().app_metadata.to_pybytes())
                with self._meter_lock:
                    self._meter.confirmed(received - 1, time.monotonic())
                self._lane.confirm(received)
                self._client.granted(granted)
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
