"""Which Ray cluster a program would join, and whether that cluster answers."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import closing
from typing import Any

import ray

from pecan_ray.errors import ClusterError

logger = logging.getLogger(__name__)

LOCAL = "local"
"""What `ray.init` calls a cluster that it is to start on this machine."""
KNOCK_S = 5.0
"""A cluster has so long to accept a connection, and so long again to answer. Ray itself would try for a minute."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""What a client of gRPC says first: the preface of HTTP/2 and empty settings (RFC 9113, 3.4). It carries no token."""
FRAME_HEAD_BYTES = 9
"""Length, type, flags and stream of a frame of HTTP/2 (RFC 9113, 4.1)."""
SETTINGS_FRAME = 4
"""The type of the frame that a server of HTTP/2 answers with, in the fourth byte of the frame's head."""


def probe_address(address: str) -> None:
    """Raise OSError if no Ray cluster answers at an address (host and port; other addresses are left to Ray)."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "1":
            return  # this server would answer only after a handshake with Ray's certificates
        # Decision 102: the system accepts connections for a frozen process too, and another server may have the port.
        connection.sendall(GREETING)
        with closing(connection.makefile("rb")) as answer:
            head = answer.read(FRAME_HEAD_BYTES)
    if len(head) < FRAME_HEAD_BYTES or head[3] != SETTINGS_FRAME:
        raise ConnectionError(f"the process that listens at {address} is no Ray cluster")


def recorded_cluster() -> str | None:
    """Return the address of the last cluster that was started on this machine, as `ray start` has written it down.

    The file is left behind where that cluster was killed.
    """
    found: Any = ray._private.utils.read_ray_address()
    return str(found) if found else None


def reject_ray_client(address: str | None) -> None:
    """Raise `ClusterError` if this program uses Ray Client, or `address` (RAY_ADDRESS) says so."""
    client: Any = ray.util.client.ray
    if client.is_connected() or (address and "://" in address):
        raise ClusterError(
            "Ray Client (an address such as ray://...) is not supported, because the trainer maps its workers' memory "
            "and has to run on a node of the cluster: submit the program with `ray job submit -- python train.py`, "
            "or run it on a node and call ray.init() without an address."
        )


# Why the address is tried before Ray does:
# docs/decisions/running-on-ray.md#102-a-cluster-that-does-not-answer
def resolve_cluster(address: str | None) -> str:
    """Return the address of the cluster to join, `LOCAL` to start one; raises OSError if a named one does not answer.

    `address`: RAY_ADDRESS, which names the cluster, or is empty, or leaves the choice to Ray ("auto").
    """
    recorded = recorded_cluster() if address in (None, "", "auto") else None
    # "auto" is no address: Ray would take the recorded cluster.
    if address:
        probe_address(recorded or address)
        return address
    if recorded is None:
        return LOCAL
    try:
        probe_address(recorded)
    except OSError as error:
        logger.warning(
            "The file ray_current_cluster in Ray's folder for temporary files names a cluster at %s that does not "
            "answer (%s): a Ray of this program's own is started instead. `ray stop` removes the file.",
            *(recorded, error),
        )
        return LOCAL
    return recorded


def show_own_token() -> None:
    """Let this process show the user's token, which a Ray that was started without a word of it asks for."""
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:  # a Ray before 2.60, which asks for none unless it is told to
        return
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
