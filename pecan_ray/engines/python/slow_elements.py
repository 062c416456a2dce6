"""Which elements take many times as long as the others: where rows come in order, all that follow wait for them."""

from __future__ import annotations

import threading

from pecan_ray.engines.items import Item
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.plan.stage_seconds import SlowElements

SLOW_TIMES = 20.0
"""Minimum ratio of a slow element's time to that of most: the times of photographs vary by ten."""
MIN_S = 0.1
"""Minimum seconds of a slow element: threads that wait for a CPU or for Python's lock mostly lose less."""
NEWEST_SHARE = 0.05
"""Weight of the newest chunk that was not slow in the mean time of an element, which so follows the last 20 chunks."""


class SlowElementLog:
    """Takes the time of each chunk of elements; any thread may tell it."""

    def __init__(self) -> None:
        self._usual_s: float | None = None
        """Mean seconds of an element, slow ones left out."""
        self._lock = threading.Lock()
        """Guards `found`."""
        self.found = SlowElements()

    def note(self, seconds: float, chunk: list[Item] | RowBlock, ops: str) -> None:
        """Note how long a chunk has taken in some operators."""
        usual_s, elements = self._usual_s, chunk.rows if isinstance(chunk, RowBlock) else len(chunk)
        # Without a lock, as in `ElementTime`: this is asked for each chunk.
        if usual_s is not None and seconds - usual_s * elements > max(MIN_S, SLOW_TIMES * usual_s):
            more = f" or one of the {elements - 1} behind it" * (elements > 1)
            with self._lock:
                self.found += SlowElements(1, seconds, seconds, f"{_first(chunk)}{more} in {ops}")
            return
        each_s = seconds / elements
        self._usual_s = each_s if usual_s is None else usual_s + NEWEST_SHARE * (each_s - usual_s)


def _first(chunk: list[Item] | RowBlock) -> str:
    """Say which element a chunk begins with."""
    if isinstance(chunk, RowBlock):
        return chunk.leases[int(chunk.lease_of[0])].split.where(int(chunk.elements[0]))
    return chunk[0].where()
