"""Cuts off whoever sends more to a Flight server than its clients ever do.

Arrow lets gRPC take messages of any size, and gRPC reads that of a simple call before anybody can ask for its token:
what a stranger sends would fill the worker's memory.  Clients say little and are sent much: a connection that has
brought a MiB more than it has taken is nobody's.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import stat
import struct
import sys
import threading

logger = logging.getLogger(__name__)

MOST_AHEAD = 1 << 20
"""Bytes by which what a connection has brought may exceed what it has taken."""
# Seconds between two looks at the connections.
TICK_S = 0.1
# Decision 30: with it a stranger brings 5 to 22 MB before it is cut; without a guard 512 MiB took 1.3 GB.
RECEIVE_BUFFER = 64 << 10
"""Of connections: it bounds what one can bring between two looks, and hardly what it takes."""
# Bytes of Linux' `struct tcp_info` up to the counts that are read here.
TCP_INFO_BYTES = 136
TRAFFIC = struct.Struct("=QQ")
SOCKADDR_BYTES = 16
"""Zeros are an address of no family: connecting to it ends a connection with a reset (connect(2))."""
TRAFFIC_AT = 120
"""Where Linux's `tcp_info` has the bytes that were acknowledged, and those that were received."""


def reset(end: socket.socket) -> None:
    """End a connection at once, for every descriptor of it, and let the other side know.

    After an orderly end, one that has more to send waits for room that never comes, for minutes.
    """
    if ctypes.CDLL(None, use_errno=True).connect(end.fileno(), bytes(SOCKADDR_BYTES), SOCKADDR_BYTES):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class ConnectionGuard:
    """Watches the connections to a port of this process, until it is closed."""

    def __init__(self, port: int, most_ahead: int = MOST_AHEAD) -> None:
        self._port, self._max_prefetched = port, most_ahead
        self.cut = 0
        """Connections that were ended."""
        self._others: set[tuple[int, int]] = set()
        """Descriptors and inodes of what was not at the port, when it was looked at."""
        self._stopped = threading.Event()
        if sys.platform == "linux":
            for end in self._ends():
                with end:
                    # At the listening socket, from which connections inherit it.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            threading.Thread(target=self._watch, name="pecan-guard", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(TICK_S):
            for end in self._ends():
                with end, contextlib.suppress(OSError):  # it has just been closed
                    self._look_at(end)

    def _look_at(self, end: socket.socket) -> None:
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        taken, brought = TRAFFIC.unpack_from(info, TRAFFIC_AT)
        if brought > taken + self._max_prefetched:
            self.cut += 1
            logger.warning(
                "a connection from %s to the Flight port %d was cut: it has sent %d bytes and taken %d, as no client "
                "does",
                *(end.getpeername()[0], self._port, brought, taken),
            )
            reset(end)

    def _ends(self) -> list[socket.socket]:
        """Return this process's sockets at the port, as descriptors of their own."""
        found, others = [], set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed since it was listed
                number = int(name)
                # With the inode, since the system gives out the numbers of descriptors again.
                seen = number, os.fstat(number).st_ino
                end = None if seen in self._others else self._end(number)
                if end is None:
                    others.add(seen)
                else:
                    found.append(end)
        self._others = others
        return found

    def _end(self, number: int) -> socket.socket | None:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        end = socket.socket(fileno=os.dup(number))
        internet = end.family in (socket.AF_INET, socket.AF_INET6) and end.type == socket.SOCK_STREAM
        if internet and end.getsockname()[1] == self._port:
            return end
        end.close()
        return None
