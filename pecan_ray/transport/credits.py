"""How many messages a worker may send to a client: what a client has no room for stays with the worker.

A credit is one message: as many small batches as are ready, at most `outbox.MOST_BATCHES` and at most
`outbox.MESSAGE_BYTES` in sum, unless the first one alone is larger.  Whatever was sent is read at once; so no batch
lies between a worker and a client that another one lacks.  The end needs no credit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Credits:
    """Messages that a client has asked for and was not sent yet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards what is below, and is told of its changes."""
        self._count = 0
        self._closed = False

    def add(self, count: int) -> None:
        """Let so many more messages be sent."""
        with self._changed:
            self._count += count
            # As many as there are credits: all others would look in vain.
            self._changed.notify(count)

    def wait(self, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Take one credit, waiting for it; False if none is wanted any more, or nothing is left to send."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > 0 or self._closed or not wanted())
            if self._closed or not wanted():
                self._changed.notify()  # who was woken for a credit leaves it to another
                return False
            self._count -= 1
            return True

    def wake(self) -> None:
        """Let those who wait see whether they still want a credit."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is left to send: nobody waits any more, and credits that still come do no harm."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
