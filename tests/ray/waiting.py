"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], failure: str | Callable[[], str], timeout_s: float = 60.0) -> None:
    """Poll until the condition holds; raises AssertionError at the deadline, and says what `failure` is then."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{failure if isinstance(failure, str) else failure()} after {timeout_s:.0f} s")
        time.sleep(0.05)
