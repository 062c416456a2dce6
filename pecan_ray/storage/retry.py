"""Trying again after errors that pass: exponential backoff with full jitter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Backoff:
    """How often to try, and how long to wait between tries."""

    attempts: int = 7
    first_s: float = 0.1
    """Upper bound of the first pause; it doubles from one pause to the next."""
    longest_s: float = 10.0

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the pause after so many failures: `chance` in [0, 1) of the bound.

        The whole range is drawn from, so that workers that were throttled together do not come back together.
        """
        return chance * min(self.longest_s, self.first_s * 2.0 ** (failures - 1))


def retry(
    call: Callable[[], Result],
    *,
    passes: Callable[[Exception], bool],
    backoff: Backoff = Backoff(),
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Return what `call` returns, trying again while it raises errors for which `passes` is true."""
    for failures in range(1, backoff.attempts):
        try:
            return call()
        except Exception as error:
            if not passes(error):
                raise
            sleep(backoff.pause_s(failures, random.random()))
    return call()
