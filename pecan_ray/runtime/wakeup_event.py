"""What wakes a thread that signals may interrupt."""

from __future__ import annotations

import threading


class WakeupEvent:
    """Wakes the one thread that waits for it; rung before, it is heard at once.

    A signal's handler that raises (Ctrl-C, `sys.exit` on SIGTERM) ends the waiting and nothing else.  In the wait of a
    `threading.Condition` it leaves a lock behind that is not held, and "release unlocked lock" in place of its error.
    """

    def __init__(self) -> None:
        self._held = threading.Lock()
        """Guards nothing: it is held until the bell rings."""
        self._held.acquire()

    def ring(self) -> None:
        """Wake the thread; those that ring hold a lock of their own, so that one does so at a time."""
        if self._held.locked():
            self._held.release()

    def wait(self) -> None:
        """Wait until it has been rung since the last time."""
        self._held.acquire()
