"""A clock that stands still while this process does: a closed laptop, a paused container, a blocked loop.

Nobody can be heard meanwhile, so silence of that time says nothing about who lives.
"""

from __future__ import annotations

from collections.abc import Callable

TICK_S = 1.0
"""Seconds after which a job is told that time has passed."""
# The clock is read at each event and each tick, so a gap of three ticks means that the process did not run.
LONGEST_GAP_S = 3 * TICK_S
"""A controller that was asleep for longer has not heard those who called meanwhile."""


class ActiveClock:
    """Monotonic seconds, less those in which nobody asked for them."""

    def __init__(self, longest_gap_s: float, read: Callable[[], float], begin: float | None = None) -> None:
        """`longest_gap_s`: the clock is asked at least as often, while the process runs; `read`: a monotonic clock.

        `begin`: the time that it is now; None: what `read` says.
        """
        self._longest_gap_s, self._read = longest_gap_s, read
        self._last_read = read()
        # Decision 37: a controller that is started again goes on at the time of its journal's last event.
        self._skipped_s = 0.0 if begin is None else self._last_read - begin

    def now(self) -> float:
        """Return the time; of a longer gap since the last call only `longest_gap_s` has passed."""
        at = self._read()
        self._skipped_s += max(0.0, at - self._last_read - self._longest_gap_s)
        self._last_read = at
        return at - self._skipped_s
