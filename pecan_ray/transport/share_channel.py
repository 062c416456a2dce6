"""The pipes between a group and one of its readers on the same node, as the group's event loop uses them.

The reader opens its ends through ``/proc/<pid>/fd``, as it does a worker's (`pecan_ray.transport.message_pipe`), and is
the only one that has them from its first credit on: so its death closes them.  Three ways: messages to the reader, its
credits back, and the numbers of batches that it has let go of, which may come after it has closed the other two.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from pecan_ray.transport.message_pipe import CHUNK, END, LENGTH, PipeAddress
from pecan_ray.transport.ring import RECORD, RELEASED


@dataclass(frozen=True)
class ChannelAddress:
    """Where a reader finds its ends."""

    pipe: PipeAddress
    releases: int
    """File descriptor into which it says what it has let go of."""


class ShareChannel:
    """The group's ends; nothing here blocks."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.credits_fd, credits_write = os.pipe()
        self.releases_fd, releases_write = os.pipe()
        for mine in (self._write, self.credits_fd, self.releases_fd):
            # The group's event loop serves all readers: none of them may hold it up.
            os.set_blocking(mine, False)
        inodes = os.fstat(read).st_ino, os.fstat(credits_write).st_ino
        self.address = ChannelAddress(PipeAddress(os.getpid(), read, credits_write, inodes), releases_write)
        self._peer_fds = [read, credits_write, releases_write]
        self._write_buffer = bytearray()
        self._rest = b""
        self._open = True

    @property
    def write_fd(self) -> int:
        """Where messages go, to be watched while some are unwritten."""
        return self._write

    @property
    def opened(self) -> bool:
        """Return whether the reader has opened its ends, as far as is known."""
        return not self._peer_fds

    def credits(self) -> int | None:
        """Return how many credits have come; None: the reader has closed its ends, or is dead."""
        try:
            granted = os.read(self.credits_fd, CHUNK)
        except BlockingIOError:
            return 0
        self._close_peer_fds()
        # Nothing read is the end: nobody has the reader's end open any more.
        return len(granted) or None

    def released(self) -> list[int] | None:
        """Return the batches that the reader has let go of; None: there is nobody any more who could hold one."""
        try:
            data = os.read(self.releases_fd, CHUNK)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._rest += data
        whole = len(self._rest) - len(self._rest) % RECORD.size
        records, self._rest = self._rest[:whole], self._rest[whole:]
        return [number for kind, number in RECORD.iter_unpack(records) if kind == RELEASED]

    def put(self, message: bytes) -> bool:
        """Write a message; False if some of it must be written by `flush` when there is room."""
        self._write_buffer += LENGTH.pack(len(message)) + message
        return self.flush()

    def end(self) -> bool:
        """Say that there will be no more messages."""
        self._write_buffer += LENGTH.pack(END)
        return self.flush()

    def flush(self) -> bool:
        """Write what is unwritten; tell whether all is."""
        try:
            while self._write_buffer:
                del self._write_buffer[: os.write(self._write, self._write_buffer)]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # the reader is gone, which the end of its credits tells
            self._write_buffer.clear()
        return True

    def close_messages(self) -> None:
        """Close the ways that a reader which wants no more has closed; what it lets go of is still heard."""
        if self._open:
            self._open = False
            os.close(self._write)
            os.close(self.credits_fd)

    def close(self) -> None:
        """Close all of the group's ends."""
        self._close_peer_fds()
        self.close_messages()
        with contextlib.suppress(OSError):
            os.close(self.releases_fd)

    def _close_peer_fds(self) -> None:
        while self._peer_fds:
            os.close(self._peer_fds.pop())
