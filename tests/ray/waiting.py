"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

ENDS_S = 240.0
"""What a test waits for is there long before, however loaded the machine is; or it does not come."""


def until(condition: Callable[[], object], failure: str | Callable[[], str], timeout_s: float = ENDS_S) -> None:
    """Poll until the condition holds; raises AssertionError at the deadline, and says what `failure` is then."""
    if not wait_at_most(condition, timeout_s):
        raise AssertionError(f"{failure if isinstance(failure, str) else failure()} after {timeout_s:.0f} s")


def wait_at_most(condition: Callable[[], object], timeout_s: float) -> bool:
    """Poll until the condition holds, or the time is over; tell whether it holds."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.001
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return True
