"""Which way batches travel from a worker to a trainer, and where that way begins.

On one node through shared memory (ring), between nodes by Arrow Flight (flight), and where neither can be used
through Ray's object store (object_store).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, TypeAlias

from pecan_ray.options import TransportChoice
from pecan_ray.transport.message_pipe import PipeAddress
from pecan_ray.transport.ring import ring_supported

Transport: TypeAlias = Literal["ring", "flight", "object_store"]


@dataclass(frozen=True)
class FlightAddress:
    """Where a worker's Flight server listens, and the word that it asks for."""

    host: str
    port: int
    token: str = field(repr=False)
    tls: bool = False
    key: bytes = field(default=b"", repr=False)
    """Signs what the worker says of its batches; both have it from Ray, and it is never sent on a stream."""

    @property
    def location(self) -> str:
        """The address as Flight spells it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc+{'tls' if self.tls else 'tcp'}://{host}:{self.port}"


@dataclass(frozen=True)
class SelectedTransport:
    """How a worker will send batches to a client, and why so."""

    transport: Transport
    reason: str
    flight: FlightAddress | None = None
    pipe: PipeAddress | None = None
    """Where messages about batches in shared memory come from."""


def choose_transport(
    writer_node: str, reader_node: str, sees_process: bool, wanted: TransportChoice = "auto"
) -> tuple[Transport, str]:
    """Return the fastest way between two nodes, and why it was chosen.

    `sees_process`: whether the reader may open the writer's files; it may not from another container.
    `wanted`: the one that the user asks for, which is taken where it works.
    """
    apart = writer_node != reader_node
    if wanted != "auto":
        rejected = _unsupported_reason(wanted, apart, sees_process)
        # A wish that cannot be followed ends no job: the reason tells.
        if not rejected:
            return wanted, f"Config(transport={wanted!r}) asks for it"
    # The object store needs no second copy on one node, where Flight would.
    ranking: tuple[Transport, ...] = ("ring", "flight") if apart else ("ring",)
    obstacles = {way: _unsupported_reason(way, apart, sees_process) for way in ranking}
    chosen: Transport = next((way for way in ranking if not obstacles[way]), "object_store")
    if wanted != "auto":
        return chosen, f"Config(transport={wanted!r}) cannot be followed: {rejected}"
    if chosen == "ring":
        return chosen, "worker and trainer share a node"
    return chosen, "; ".join(filter(None, obstacles.values()))


def _unsupported_reason(way: Transport, apart: bool, sees_process: bool) -> str:
    """Say why a way cannot be used; nothing if it can."""
    if way == "flight":
        return "" if find_spec("pyarrow._flight") else "this pyarrow was built without Flight"
    if way == "object_store":
        return ""
    if apart:
        return "worker and trainer are on different nodes"
    supported, reason = ring_supported()
    if not supported:
        return f"shared memory is not available: {reason}"
    return "" if sees_process else "the trainer may not open the worker's memory files (another container or user?)"
