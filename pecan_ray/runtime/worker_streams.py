"""A worker's ways to clients: offered once a client asks, fed from the outbox, each message for a credit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import ray

from pecan_ray.engines.counting import element_bytes
from pecan_ray.errors import ClusterError
from pecan_ray.runtime.messages import Job
from pecan_ray.transport.choice import FlightAddress, SelectedTransport, choose_transport
from pecan_ray.transport.credits import Credits
from pecan_ray.transport.message_pipe import MessageWriter
from pecan_ray.transport.messages import Message, encode_ring, encode_store, pickled
from pecan_ray.transport.outbox import MESSAGE_BYTES, MOST_BATCHES, Outbox, release_slot
from pecan_ray.transport.tls_credentials import cluster_tls_credentials

if TYPE_CHECKING:
    from pecan_ray.transport.flight_server import FlightEndpoint

logger = logging.getLogger(__name__)

GATHER_S = 0.005
"""After a small batch the next message begins this much later, unless it is full: what is finished meanwhile travels
together."""


# Why a message needs a credit: docs/decisions/transport.md#21-credits
class WorkerStreams:
    """What sends a worker's batches to clients."""

    def __init__(self, worker: str, job: Job, outbox: Outbox) -> None:
        self._worker, self._job, self._outbox = worker, job, outbox
        self._flight: FlightEndpoint | None = None
        self._pipes: dict[int, MessageWriter] = {}
        """To clients that are about to fetch."""
        self._credits: dict[int, Credits] = {}
        """Of clients that may need Ray's object store."""
        self._starting = threading.Lock()
        """Guards the start of the Flight server."""

    @property
    def may_end(self) -> bool:
        """Return whether nothing of these outlives the job: a Flight server goes with its process alone."""
        return self._flight is None

    @property
    def link_bytes_per_s(self) -> float | None:
        """The speed of the link to other nodes, by what has been sent; None: too little."""
        return None if self._flight is None else self._flight.link_speed.bytes_per_s

    def select_transport(self, rank: int, node_id: str, sees_process: bool) -> SelectedTransport:
        """Say how batches will travel to a client; the first one that needs it starts the Flight server."""
        mine = str(ray.get_runtime_context().get_node_id())
        transport, reason = choose_transport(mine, node_id, sees_process, self._job.config.transport)
        address = None
        if transport == "flight":
            try:
                address = self._flight_address(rank)
            except ClusterError as error:
                transport, reason = "object_store", str(error)
        logger.info("%s -> rank %d by %s: %s", self._worker, rank, transport, reason)
        self._credits[rank] = Credits()
        if transport == "ring":
            pipe = self._pipes[rank] = MessageWriter()
            return SelectedTransport(transport, reason, pipe=pipe.address)
        return SelectedTransport(transport, reason, address)

    def _flight_address(self, rank: int) -> FlightAddress:
        from pecan_ray.transport.flight_server import FlightEndpoint

        node_ip: Any = ray.util.get_node_ip_address
        with self._starting:
            if self._flight is None:
                self._flight = FlightEndpoint(str(node_ip()), self._outbox, certificates=cluster_tls_credentials())
        return self._flight.prepare_client(rank)

    def wait_for_delivery(self, rank: int) -> None:
        """Wait until a client has received everything by Flight; its caller learns of this process's death."""
        if self._flight is not None:
            self._flight.wait_for_delivery(rank)

    def send(self, rank: int) -> None:
        """Write messages with batches in shared memory into a client's pipe, until there are no more."""
        with closing(self._pipes.pop(rank)) as pipe:
            # The client has opened its ends before it has made this call.
            pipe.opened()
            self._outbox.at_end(rank, pipe.no_more)
            not_before = 0.0
            while pipe.wait_for_credit():
                produced = self._outbox.take(rank, MOST_BATCHES, MESSAGE_BYTES, pipe.connected, not_before)
                if not produced:
                    break
                # The client is gone, and has not got this message: other ranks may have its batches.
                if not pipe.put(pickled([encode_ring(one) for one in produced])):
                    self._outbox.put_back(rank, produced)
                    return
                # Decision 18: a message costs as much as many small batches.  A large one travels at once.
                not_before = time.monotonic() + GATHER_S if element_bytes(produced[-1].columns) < MESSAGE_BYTES else 0.0
            pipe.end()

    def stream(self, rank: int, received: int | None = None) -> Iterator[list[Message]]:
        """Yield messages with batches by value for a client, until there are no more.

        `received`: what it has received by Flight, which has failed.
        """
        # What Flight had under way is sent again, but for what has arrived.
        if received is not None and self._flight is not None:
            self._flight.close_stream(rank, received)
        credits = self._credits[rank]
        self._outbox.at_end(rank, credits.close)
        while credits.wait() and (produced := self._outbox.take(rank, MOST_BATCHES, MESSAGE_BYTES)):
            yield [encode_store(one) for one in produced]
            # Ray has copied the message when the generator goes on.
            for one in produced:
                release_slot(one)

    def grant(self, rank: int, count: int) -> None:
        """Let so many more messages go to a client through Ray's object store."""
        self._credits[rank].add(count)
