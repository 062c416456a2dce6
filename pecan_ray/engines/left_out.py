"""What is left out of a split that cannot be read whole: all behind a break, or single elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pecan_ray.engines.contract import BadElement, Leases, SharedLeases
from pecan_ray.engines.positions import Part, SkippedPositions, elements_in
from pecan_ray.errors import SourceError
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Source, Split, as_written, origin_of

# docs/decisions/faults-and-silence.md#98-splits-that-a-worker-cannot-open
CANNOT_OPEN = (FileNotFoundError, PermissionError)
"""What a file may be for one node and not for another one."""
MAX_HELD = 1024
"""Errors that wait for the first element of their split: then the worker gives the split to another one, or goes on."""


class LeaseReadErrors:
    """The elements of one lease that cannot be read, of a source in which they are independent.

    While no element of the lease could be opened, another worker may see the files: the errors are held back until one
    is read, or until no other worker takes the lease.
    """

    def __init__(self, source: Source, lease: Lease, leases: Leases, skipped_positions: SkippedPositions) -> None:
        self._source, self._lease, self.leases, self.skipped_positions = source, lease, leases, skipped_positions
        self._held: list[tuple[BadElement, list[Part], SourceError]] = []
        self._any_read = False

    def add(self, number: int, error: SourceError, parts: list[Part]) -> bool:
        """Leave elements from `number` on out; False: another worker takes the whole lease."""
        if not parts:
            return True
        bad = BadElement(
            f"read {type(as_written(self._source)).__name__}",
            self._lease.split.where(number),
            str(error),
            first=origin_of(self._lease, number),
            elements_left_out=elements_in(parts),
        )
        # Decision 98: a file that is not there may be there on other nodes, so its errors are not bad data yet.
        if self._any_read or not _cannot_open(error):
            self.element_read()
            self.skipped_positions.add(parts, bad)
            return True
        self._held.append((bad, parts, error))
        # A split of a million missing files must not collect a million errors before somebody decides.
        return len(self._held) < MAX_HELD or self.ended()

    def element_read(self) -> None:
        """Tell the errors that were held back: this worker can read the split."""
        self._any_read = True
        for bad, parts, _ in self._held:
            self.skipped_positions.add(parts, bad)
        self._held = []

    def ended(self) -> bool:
        """Give the lease to another worker if no element could be opened; False: one has taken it."""
        if self._held:
            spans, (first, _, error) = self._lease.spans, self._held[0]
            assert first.first is not None
            bad = _left_out(self._source, self._lease, first.first.element, spans, error, self.skipped_positions)
            if isinstance(self.leases, SharedLeases) and self.leases.elsewhere(self._lease, bad):
                return False
        self.element_read()
        return True


def elements_of_error(error: SourceError) -> int:
    """Return how many consecutive elements an error in their place stands for."""
    return int(error.fields.get("elements", 1))


def _cannot_open(error: SourceError) -> bool:
    return isinstance(error, CANNOT_OPEN) or isinstance(error.__cause__, CANNOT_OPEN)


def leave_out(
    source: Source,
    lease: Lease,
    number: int,
    missing: Iterable[tuple[int, int]],
    error: SourceError,
    leases: Leases,
    skipped_positions: SkippedPositions,
) -> None:
    """End a split at its element `number`, which cannot be read, and say why: the rest of it is dealt with.

    One that cannot even be opened is left to other workers, on whose nodes its file may be.
    """
    split_open_failures = _cannot_open(error) and number == lease.spans[0][0] >> OUTPUT_BITS
    bad = _left_out(source, lease, number, tuple(missing), error, skipped_positions)
    if split_open_failures and isinstance(leases, SharedLeases) and leases.elsewhere(lease, bad):
        return
    skipped_positions.add([], bad)
    # Cut off here, so that the job does not wait for positions behind the break.
    leases.ended(lease, number)


def _left_out(
    source: Source,
    lease: Lease,
    number: int,
    spans: Sequence[tuple[int, int]],
    error: SourceError,
    skipped_positions: SkippedPositions,
) -> BadElement:
    """Return what is left out of a split that breaks at its element `number`."""
    length, estimate = lease.split.counted, ""
    open_end = length is None and any(stop == END for _, stop in spans)
    if open_end and (found := _estimated_length(lease, number, error, skipped_positions)):
        length, estimate = found
    left_out = _elements_behind(length, number, spans)
    how_many = ""
    if estimate:
        how_many = f" About {left_out} elements are left out, estimated by {estimate}."
    elif open_end:
        how_many = f" At least {left_out} left out: nothing tells how many elements the rest of the split holds."
    return BadElement(
        f"read {type(as_written(source)).__name__}",
        lease.split.where(number),
        f"{error}{how_many}",
        first=origin_of(lease, number),
        elements_left_out=left_out,
        estimated=bool(estimate),
        open_end=open_end and not estimate,
    )


def _estimated_length(
    lease: Lease, number: int, error: SourceError, skipped_positions: SkippedPositions
) -> tuple[int, str] | None:
    """Return about how many elements a broken split holds, and by what that is known; None if by nothing."""
    # The nearest evidence first: this split's own beginning, then bytes of other splits, then their mean length.
    share = error.fields.get("share_read")
    if share and number:
        return max(number + 1, round(number / share)), f"the {number} before, {share:.0%} of its bytes"
    nbytes, offset = nbytes_of(lease.split), error.fields.get("offset")
    if nbytes and number and isinstance(offset, int) and 0 < (read := offset - lease.split.start) <= nbytes:
        return max(number + 1, round(number * nbytes / read)), f"the {number} before, in {read} of its {nbytes} bytes"
    by_bytes = None if nbytes is None else skipped_positions.length_of_bytes(lease.branch, nbytes)
    if by_bytes is not None:
        return max(number + 1, round(by_bytes)), f"its {nbytes} bytes, by those of other splits"
    if nbytes is not None and lease.split.about is not None:
        return max(number + 1, lease.split.about), f"its {nbytes} bytes, by the beginning of the first file"
    mean = skipped_positions.mean_length(lease.branch)
    return None if mean is None else (max(number + 1, round(mean)), "the mean length of other splits")


def nbytes_of(split: Split) -> int | None:
    """Return the size of a split, in bytes or whatever its source counts; None where it is not known."""
    return None if split.stop is None else split.stop - split.start


def _elements_behind(length: int | None, number: int, missing: Iterable[tuple[int, int]]) -> int:
    """Return how many elements of a split are missing from `number` on; 1 where its length is not known."""
    count, at = 0, number
    for start, stop in missing:
        end = length if stop == END else ((stop - 1) >> OUTPUT_BITS) + 1
        if end is None:
            continue
        first = max(at, start >> OUTPUT_BITS)
        count += max(0, end - first)
        at = max(at, end)
    return max(1, count)
