"""Messages from a worker to a trainer on the same node, by a pipe: Ray takes a millisecond of CPU time on each side.

The trainer opens both ends that it needs through ``/proc/<pid>/fd``, as it opens slots
(`pecan_ray.transport.ring`). One byte goes back for each message that it has room for
(`pecan_ray.transport.credits`), and none is written without.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

LENGTH = struct.Struct("=q")
END = -1
"""Instead of a length: there will be no more messages."""
# Bytes of a read: what a pipe of Linux holds.
CHUNK = 1 << 16


@dataclass(frozen=True)
class PipeAddress:
    """Where a trainer finds the ends of its pipe."""

    pid: int
    messages: int
    """File descriptor for the messages."""
    credits: int
    """File descriptor for what the trainer writes."""
    inodes: tuple[int, int]
    """Of both, so that another process with a reused id is not mistaken for the worker."""


class MessageWriter:
    """The worker's side, used by one thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._credits, self._credits_write = os.pipe()
        # A descriptor, because the one thread must wait for this and for credits at a time.
        self._no_more = os.eventfd(0)
        self._peer_fds = [self._read, self._credits_write]
        self._mine = [self._write, self._credits, self._no_more]
        self._closing = threading.Lock()
        """Guards the descriptors from being closed while another thread calls `no_more`."""
        self._granted = 0
        self._poll = select.poll()
        for end in (self._credits, self._no_more):
            self._poll.register(end, select.POLLIN)

    @property
    def address(self) -> PipeAddress:
        """What the trainer needs to open its ends."""
        inodes = os.fstat(self._read).st_ino, os.fstat(self._credits_write).st_ino
        return PipeAddress(os.getpid(), self._read, self._credits_write, inodes)

    def opened(self) -> None:
        """The trainer has opened its ends, and is the only one that has them from now on."""
        # With these left open here, the trainer's death would not end the pipes.
        while self._peer_fds:
            os.close(self._peer_fds.pop())

    def wait_for_credit(self) -> bool:
        """Take one credit, waiting for it; False if the trainer is gone, or nothing is left to send."""
        while not self._granted:
            ready = {number for number, _ in self._poll.poll()}
            if self._no_more in ready:
                return False
            granted = os.read(self._credits, CHUNK)
            if not granted:
                return False
            self._granted = len(granted)
        self._granted -= 1
        return True

    def connected(self) -> bool:
        """Tell whether the trainer is still there."""
        return not any(number == self._credits and event & select.POLLHUP for number, event in self._poll.poll(0))

    def no_more(self) -> None:
        """Note that nothing is left to send: who waits for a credit waits no longer; called by any thread."""
        with self._closing:
            if self._mine:
                os.eventfd_write(self._no_more, 1)

    def put(self, message: bytes) -> bool:
        """Write a message, for which a credit was taken; False if the trainer is gone."""
        return self._put(LENGTH.pack(len(message)) + message)

    def _put(self, data: bytes) -> bool:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._write, left) :]
        except BrokenPipeError:
            return False
        return True

    def end(self) -> None:
        """Say that there will be no more messages."""
        self._put(LENGTH.pack(END))

    def close(self) -> None:
        """Close the worker's ends, and those that the trainer never opened."""
        self.opened()
        with self._closing:
            while self._mine:
                os.close(self._mine.pop())


class MessageReader:
    """The trainer's side; raises FileNotFoundError or ProcessLookupError if the worker is gone."""

    def __init__(self, address: PipeAddress) -> None:
        self._lock = threading.Lock()
        """Guards the descriptors from being closed while another thread writes."""
        self._pending_write_count = 0
        """Credits for which the pipe had no room."""
        self._woken, self._wake = os.pipe()
        self._open = [self._woken, self._wake]
        try:
            self._messages = self._end(address.pid, address.messages, os.O_RDONLY, address.inodes[0])
            self._credits = self._end(address.pid, address.credits, os.O_WRONLY | os.O_NONBLOCK, address.inodes[1])
        except BaseException:
            self.close()
            raise
        self.ended = False
        """The worker has said that there are no more."""

    def _end(self, pid: int, number: int, flags: int, inode: int) -> int:
        # Decision 18: no Unix socket, whose address exists in one network namespace: containers on a node share none.
        path = f"/proc/{pid}/fd/{number}"
        found = os.stat(path)
        if not stat.S_ISFIFO(found.st_mode) or found.st_ino != inode:
            raise ProcessLookupError(f"{path} belongs to another process than the worker")
        self._open.append(os.open(path, flags))
        return self._open[-1]

    def __iter__(self) -> Iterator[bytes]:
        """Yield messages until there are no more, the worker is gone, or `stop` was called and none is left."""
        poll = select.poll()
        poll.register(self._messages, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        data = bytearray()
        while True:
            ready = {number for number, _ in poll.poll()}
            # Decision 18: what was written before the worker's end is read first, so that nothing that arrived is lost.
            if self._messages not in ready:
                return
            chunk = os.read(self._messages, CHUNK)
            if not chunk:
                return
            data += chunk
            while len(data) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(data)
                if length == END:
                    self.ended = True
                    return
                if len(data) < LENGTH.size + length:
                    break
                # A copy: a bytearray that somebody has a view of cannot be cut.
                yield bytes(memoryview(data)[LENGTH.size : LENGTH.size + length])
                del data[: LENGTH.size + length]

    def grant(self, count: int) -> None:
        """Let the worker send so many more messages; never blocks, and does no harm after the end."""
        with self._lock:
            self._pending_write_count += count
            # A worker that is gone needs none; what a full pipe does not take goes with the next grant.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                if self._open:
                    self._pending_write_count -= os.write(self._credits, bytes(self._pending_write_count))

    def stop(self) -> None:
        """Let the reader go once it has read what there is; called by another thread."""
        with self._lock:
            if self._open:
                os.write(self._wake, b"\0")

    def close(self) -> None:
        """Close all ends."""
        with self._lock:
            while self._open:
                os.close(self._open.pop())
