"""How many elements this process took out of a cache, and how many it computed although there is one."""

from __future__ import annotations

import threading


class KeptAccumulator:
    """Two sums; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards both."""
        self._kept = self._computed = 0

    def add(self, kept: int = 0, computed: int = 0) -> None:
        """Add elements."""
        with self._lock:
            self._kept += kept
            self._computed += computed

    @property
    def sums(self) -> tuple[int, int]:
        """Elements out of a cache, and others."""
        with self._lock:
            return self._kept, self._computed


# One for the process, because engines come and go with plans and reports ask for the sum of a worker.
kept_tally = KeptAccumulator()
"""Of this process."""
