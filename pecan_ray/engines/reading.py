"""Reading leases: the elements of a split that lie in the lease's spans, and what is told about its end."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from pecan_ray.engines.contract import BadElement, Leases, OnError
from pecan_ray.engines.python.items import Loose, Part
from pecan_ray.errors import PecanError, SourceError
from pecan_ray.plan.splits import END, OUTPUT_BITS, Element, Lease, Source


def read_lease(
    source: Source, lease: Lease, leases: Leases, loose: Loose, on_error: OnError
) -> Iterator[tuple[int, Element, list[Part]]]:
    """Yield (number in the split, value, positions to deliver) for each element that a lease asks for.

    A split read to its end is reported to `leases`.  Data that cannot be read raises `SourceError`, or goes to
    `loose` under ``on_error="skip"`` and ``"quarantine"``.
    """
    number = lease.spans[0][0] >> OUTPUT_BITS
    missing = deque(lease.spans)
    try:
        for value in _values(source, lease, number):
            begin, end = number << OUTPUT_BITS, (number + 1) << OUTPUT_BITS
            parts = [(lease.key, max(a, begin), min(b, end)) for a, b in _until(missing, end)]
            if parts:
                yield number, value, parts
            while missing and missing[0][1] <= end:
                missing.popleft()
            number += 1
            if not missing:
                return
    except SourceError as error:
        if on_error == "raise":
            raise
        rest = [(lease.key, max(a, number << OUTPUT_BITS), b) for a, b in missing]
        loose.add(rest, BadElement(f"read {type(source).__name__}", lease.split.where(number), str(error)))
        return
    if lease.spans[-1][1] == END:
        leases.ended(lease, number)


def _until(spans: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    return itertools.takewhile(lambda span: span[0] < end, spans)


def _values(source: Source, lease: Lease, start: int) -> Iterator[Element]:
    """Read a split; whatever a source raises becomes a `SourceError` that says where."""
    number = start
    try:
        for value in source.read(lease.split, start):
            yield value
            number += 1
    except PecanError:
        raise
    except Exception as error:
        raise SourceError(
            f"{type(source).__name__} cannot read {lease.split.where(number)}: {type(error).__name__}: {error}",
            file=lease.split.file_of(number),
            element=number,
        ) from error
