"""Bytes that flow at a rate: numbers in, a wait out.

Whoever wants bytes takes a place behind those that others have reserved, and may go once all up to there have flowed.
Places are kept when the rate changes, so that nobody waits by an old one.
"""

from __future__ import annotations

# A quarter of a second is 2.5 % of the ten seconds over which a quota must hold within 5 %
# (docs/decisions/shared-cache-and-pipe.md#51-a-quota-before-the-request).
BURST_S = 0.25
"""What flows while nobody wants any is kept for so long, and lost after that."""


class TokenBucket:
    """What has flowed so far, and what was reserved; times are of any clock that does not go back."""

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self._rate, self._at = bytes_per_s, now
        self._reserved = 0.0
        self._allowed_bytes = bytes_per_s * BURST_S

    @property
    def bytes_per_s(self) -> float:
        """The rate."""
        return self._rate

    def set_rate(self, bytes_per_s: float, now: float) -> None:
        """Let bytes flow at another rate from now on, also for those that wait."""
        self._flow(now)
        self._rate = bytes_per_s

    def reserve(self, nbytes: float, now: float) -> float:
        """Reserve bytes behind all that were reserved before; return the place, for `wait_s`."""
        self._flow(now)
        self._reserved += nbytes
        return self._reserved

    def wait_s(self, place: float, now: float) -> float:
        """Return how long it takes until all bytes up to a place have flowed, at the present rate; 0: they have."""
        self._flow(now)
        return max(0.0, (place - self._allowed_bytes) / self._rate)

    def return_unused(self, nbytes: float, now: float) -> None:
        """Note that some of what was reserved is not wanted: those that wait, or come next, may go sooner."""
        self._flow(now)
        # Decision 51: beyond the bound on what is saved up, because a single reader would lose it otherwise.
        self._allowed_bytes = min(self._allowed_bytes + nbytes, self._reserved + max(nbytes, self._rate * BURST_S))

    def _flow(self, now: float) -> None:
        # What was given back may lie above the bound, and stays.
        bound = max(self._allowed_bytes, self._reserved + self._rate * BURST_S)
        self._allowed_bytes = min(self._allowed_bytes + self._rate * max(0.0, now - self._at), bound)
        self._at = max(now, self._at)
