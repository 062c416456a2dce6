"""Where a run stands between two batches, in values: what a state holds of a job, and what another run begins with."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.splits import END, OUTPUT_BITS
from pecan_ray.sampling.spans import Span

WHOLE = ((0, END),)
"""All of a split."""


@dataclass(frozen=True)
class Cursor:
    """How far a pass over a source has come: enough to make its order again, and to go on in it."""

    pass_index: int = 0
    taken: int = 0
    """The number of splits that were begun, in the order of the pass."""
    missing: tuple[tuple[int, int], ...] = ()
    """Intervals of the order: the begun splits of which all is missing."""
    extensions: tuple[tuple[int, int], ...] = ()
    """(begun, listed) at each time when newly listed splits joined a shuffled order."""


@dataclass(frozen=True)
class Rest:
    """What is missing of a split that was begun."""

    index: int
    pass_index: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class BranchPoint:
    """Where a run stands in one source."""

    cursor: Cursor = Cursor()
    remaining_parts: tuple[Rest, ...] = ()
    """What is missing of begun splits; not of those that the cursor tells of."""
    used: tuple[Rest, ...] = ()
    """What was used since the batch that the cursor and the remaining parts are of."""

    def missing_splits(self) -> dict[tuple[int, int], tuple[Span, ...]]:
        """Return what is missing of splits that were begun, by their passes and numbers."""
        missing = {(rest.pass_index, rest.index): rest.spans for rest in self.remaining_parts}
        places = (place for span in self.cursor.missing for place in range(*span))
        return missing | {(self.cursor.pass_index, place): WHOLE for place in places}


def _follows(key: tuple[int, int], behind: tuple[int, int], splits: int) -> bool:
    """Tell whether a split comes right before another place, of a pass over so many splits (0: not known)."""
    pass_index, index = key
    return (pass_index, index + 1) == behind or (index + 1 == splits and (pass_index + 1, 0) == behind)


def _is_rest(spans: tuple[Span, ...]) -> bool:
    """Tell whether it is all of a split from one position on."""
    return len(spans) == 1 and spans[0][1] == END


@dataclass(frozen=True)
class KnownListing:
    """What was known of a source's splits."""

    splits: int = 0
    complete: bool = False
    digests: tuple[str, ...] = ()
    """Of groups of them: `pecan_ray.job.listing_digest`."""
    digest: str = ""
    """A digest of the files, which finds those that have changed."""


@dataclass(frozen=True)
class Step:
    """One of the last batches of all ranks."""

    epoch: int
    ranks: tuple[tuple[tuple[Rest, ...], ...], ...]
    """The parts of splits that the batch of each rank holds, for each source."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run stands between two batches."""

    epoch: int
    branches: tuple[BranchPoint, ...]
    listings: tuple[KnownListing, ...] = ()
    """Empty where it need not be the same data."""
    used_batches: int = 0
    """Batches of this epoch that all ranks together have used. A run of a plan that cannot be cut leaves them out."""
    steps: tuple[Step, ...] = ()
    """The last batches of each of several ranks, the very last one first: states of ranks out of step are merged by
    them."""
    passes: int = 1
    """Over the sources in an epoch; 0: endless ones."""

    bad: tuple[int, ...] = ()
    """Digests of the bad elements of such a plan in this epoch, which are read again and were reported."""
    op_order: OpOrders = ()
    """The order in which the operators of each stretch ran in this epoch."""
    decoders: tuple[str, ...] = ()
    """The operators that also did the work of those behind them."""

    @property
    def is_beginning(self) -> bool:
        """Return whether what is used of this epoch comes before all that is not, in the order of an only source."""
        if len(self.branches) > 1 or self.used_batches:
            return False
        (branch,) = self.branches
        if branch.used or branch.cursor.extensions:
            return False
        splits = self.listings[0].splits if self.listings and self.listings[0].complete else 0
        missing = branch.missing_splits()
        keys = sorted(missing, reverse=True)
        places_behind = [(branch.cursor.pass_index, branch.cursor.taken), *keys]
        if not all(_follows(key, behind, splits) for key, behind in zip(keys, places_behind, strict=False)):
            return False
        # Only the first split may have been begun: nothing of the others is used.
        return all(missing[key] == WHOLE for key in keys[:-1]) and all(_is_rest(missing[key]) for key in keys[-1:])

    @property
    def splits_elements(self) -> bool:
        """Return whether an element has a delivered and a missing output, so that its operators must not change."""
        return any(
            position != END and position % (1 << OUTPUT_BITS)
            for branch in self.branches
            for rest in branch.remaining_parts
            for span in rest.spans
            for position in span
        )
