"""How fast the link to other nodes is, by how long it took to send batches."""

from __future__ import annotations

import threading

SMALLEST_BYTES = 1 << 20
"""A smaller lot fits into the buffers of the connection, whatever the link does with it."""
ENOUGH_BYTES = 64 << 20
"""Bytes that tell a speed: the buffers of a connection, up to 16 MiB, hide less than a quarter of them."""


class LinkSpeed:
    """The bytes a second that streams of a worker were sent with; any thread may add to them.

    What holds a stream up may be the reader as well as the link, so the link is at least as fast.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards both sums."""
        self._bytes, self._seconds = 0, 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        """Note how long it took until the network had taken a lot."""
        if nbytes >= SMALLEST_BYTES:
            with self._lock:
                self._bytes, self._seconds = self._bytes + nbytes, self._seconds + seconds

    @property
    def bytes_per_s(self) -> float | None:
        """The speed; None: too little was sent."""
        with self._lock:
            return self._bytes / self._seconds if self._bytes >= ENOUGH_BYTES and self._seconds > 0 else None
