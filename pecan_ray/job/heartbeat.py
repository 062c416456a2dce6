"""When a worker says that it lives, and how it gets on."""

from __future__ import annotations

import math
from dataclasses import dataclass

HEARTBEAT_S = 10.0
"""Longest time that a worker does not tell how it gets on, but where lots last longer, with many workers."""
BEATS = 3
"""It says something, if only by asking for work, so often within the time after which it is taken for lost."""
NOTICE_S = 30.0
"""Between an announcement that does not say how long it is and the end: what Kubernetes and Slurm give, and Google's
cloud."""


@dataclass
class Heartbeat:
    """What a worker has said so far, and when."""

    timeout_s: float
    """After so long without a word it is taken for lost."""
    every_s: float = HEARTBEAT_S
    """It tells how it gets on so often, but where lots last longer."""
    reported_at: float = -math.inf
    """When it told how it gets on."""
    requested_at: float = -math.inf
    """When it asked for something."""

    def due(self, now: float, lot_s: float) -> bool:
        """Return whether it must tell how it gets on; `lot_s`: how long a lot of leases lasts."""
        return (
            # A question says that the worker lives, and not how it gets on: so there are two deadlines.
            now - self.reported_at >= max(self.every_s, lot_s)
            or now - max(self.reported_at, self.requested_at) >= self.timeout_s / BEATS
        )
