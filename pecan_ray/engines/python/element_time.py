"""How many elements a thread is given at a time: as many as are worth handing over, and not more."""

from __future__ import annotations

CHUNK_S = 0.003
"""Elements are handed to threads in chunks of about this much work, so that tiny ones stay cheap."""


class ElementTime:
    """How long an element takes, as far as is known; any thread may add to it."""

    def __init__(self, chunk_s: float = CHUNK_S) -> None:
        self._chunk_s = self._per_element_s = chunk_s
        self.elements = 1.0
        """So many take as long as a chunk shall."""

    def note(self, seconds: float, elements: int) -> None:
        """Note how long some elements have taken."""
        # Without a lock: these are estimates, and a lost update does no harm.
        self._per_element_s += 0.2 * (seconds / elements - self._per_element_s)
        self.elements = self._chunk_s / max(self._per_element_s, 1e-9)
