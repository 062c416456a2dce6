"""What is known of why a worker was lost."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.plan.splits import LeaseKey

OP = "a function or the source"
"""What a worker died in: nobody is left to say."""
WHY = (
    "it ended the process of each worker that worked on it alone (a crash in native code, os._exit, or no memory left)"
)


@dataclass(frozen=True)
class Suspicion:
    """What is known of why a worker was lost that may have died of its work."""

    op: str = OP
    why: str = WHY
    """What is said of an element that is to blame."""
    cause: str = ""
    """What it hung at; empty: its process ended."""
    at: tuple[LeaseKey, int] | None = None
    """The element that it hung at, where it has said so."""
    reads: bool = False
    """Whether it was reading this element."""


CRASHED = Suspicion()
SILENT = Suspicion(
    why="each worker that worked on it alone said nothing more (native code that holds the GIL, or a stopped process)"
)
