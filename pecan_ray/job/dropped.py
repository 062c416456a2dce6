"""What is dropped where data is visited at most once: what lost workers held, and those that were removed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease


@dataclass(frozen=True)
class Drop:
    """What went with one worker."""

    worker: str
    elements: int
    """Elements that no trainer gets, or not all outputs of."""
    open_ends: int
    """Splits whose rest is dropped beside them, and whose length nobody knows."""

    def __str__(self) -> str:
        parts = [f"{self.elements} element{'s' * (self.elements != 1)}"] * bool(self.elements or not self.open_ends)
        parts += [f"the rest of {self.open_ends} splits of unknown length"] * bool(self.open_ends)
        return f'{self.worker} is gone, and with it {" and ".join(parts)}: dropped, as visitation="at_most_once" says'


class DroppedData:
    """All that a job has dropped."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.elements = self.open_ends = 0
        self._pending_drops: list[Drop] = []

    def add(self, worker: str, leases: Sequence[Lease]) -> None:
        """Note what a worker held that nobody gets."""
        elements = sum(map(_elements, leases))
        open_ends = sum(map(_is_open, leases))
        if elements or open_ends:
            self.leases += leases
            self.elements += elements
            self.open_ends += open_ends
            self._pending_drops.append(Drop(worker, elements, open_ends))

    def take_pending_drops(self) -> Sequence[Drop]:
        """Return what was dropped since the last call."""
        not_reported, self._pending_drops = self._pending_drops, []
        return not_reported


def _elements(lease: Lease) -> int:
    """Count the elements that a lease touches, as far as its end is known."""
    count = at = 0
    for start, stop in lease.spans:
        known = lease.split.elements if stop == END else ((stop - 1) >> OUTPUT_BITS) + 1
        # Two spans may lie within one element, which counts once.
        first = max(at, start >> OUTPUT_BITS)
        at = max(first, first if known is None else known)
        count += at - first
    return count


def _is_open(lease: Lease) -> bool:
    """Tell whether a lease goes on to the end of a split of unknown length."""
    return lease.split.elements is None and any(stop == END for _, stop in lease.spans)
