"""What is dropped where data is visited at most once: what lost workers held, and those that were removed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey

SplitPlace: TypeAlias = tuple[int, int]
"""A source, and the number of a split in it."""


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
        self.elements = 0
        self._lengths: dict[SplitPlace, int] = {}
        """Of splits that were read to their ends."""
        self._open_ends: dict[SplitPlace, list[int]] = {}
        """Of splits whose length nobody knows: the first element of each rest that was dropped."""
        self._pending_drops: list[Drop] = []

    @property
    def open_ends(self) -> int:
        """Rests of splits whose length nobody knows: they are not among the elements."""
        return sum(map(len, self._open_ends.values()))

    def ended(self, key: LeaseKey, elements: int) -> None:
        """Note the length of a split: from another pass it may be known how long a rest was that was dropped."""
        branch, _, index = key
        place = branch, index
        self._lengths[place] = elements
        self.elements += sum(max(0, elements - first) for first in self._open_ends.pop(place, ()))

    def add(self, worker: str, leases: Sequence[Lease]) -> None:
        """Note what a worker held that nobody gets."""
        elements = open_ends = 0
        for lease in leases:
            place = lease.branch, lease.split.index
            length = self._lengths.get(place) if lease.split.counted is None else lease.split.counted
            touched, rest = _elements(lease, length)
            elements += touched
            if rest is not None:
                self._open_ends.setdefault(place, []).append(rest)
                open_ends += 1
        if elements or open_ends:
            self.leases += leases
            self.elements += elements
            self._pending_drops.append(Drop(worker, elements, open_ends))

    def take_pending_drops(self) -> Sequence[Drop]:
        """Return what was dropped since the last call."""
        not_reported, self._pending_drops = self._pending_drops, []
        return not_reported


def _elements(lease: Lease, length: int | None) -> tuple[int, int | None]:
    """Count the elements that a lease touches, but for a rest without a known end; return where that begins, too."""
    count = at = 0
    for start, stop in lease.spans:
        # Two spans may lie within one element, which counts once.
        first = max(at, start >> OUTPUT_BITS)
        known = length if stop == END else ((stop - 1) >> OUTPUT_BITS) + 1
        if known is None:
            return count, first
        at = max(first, known)
        count += at - first
    return count, None
