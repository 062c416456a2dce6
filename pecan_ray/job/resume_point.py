"""Where a run stands between two batches, in values: what a state holds of a job, and what another run begins with."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.splits import END, OUTPUT_BITS
from pecan_ray.sampling.spans import Span


@dataclass(frozen=True)
class Cursor:
    """How far a pass over a source has come: enough to make its order again, and to go on in it."""

    pass_index: int = 0
    taken: int = 0
    """So many splits of the order were begun;"""
    missing: tuple[tuple[int, int], ...] = ()
    """of these, the places of those of which all is missing, as intervals."""
    extensions: tuple[tuple[int, int], ...] = ()
    """(begun, listed) whenever what was listed joined a shuffled order."""


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
    """What was used since, whatever cursor and remaining parts say: they are of an earlier batch."""


@dataclass(frozen=True)
class KnownListing:
    """What was known of a source's splits."""

    splits: int = 0
    complete: bool = False
    digests: tuple[str, ...] = ()
    """Of groups of them: `pecan_ray.job.listing_digest`."""
    digest: str = ""
    """By which the files are told that have changed."""


@dataclass(frozen=True)
class Step:
    """One of the last batches of all ranks."""

    epoch: int
    ranks: tuple[tuple[tuple[Rest, ...], ...], ...]
    """Of each rank, and of each source, what it had."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run stands between two batches."""

    epoch: int
    branches: tuple[BranchPoint, ...]
    listings: tuple[KnownListing, ...] = ()
    """Empty where it need not be the same data."""
    used_batches: int = 0
    """Batches of this epoch that all ranks together have used: of a plan that cannot be cut, these are left out."""
    steps: tuple[Step, ...] = ()
    """The last batches of each of several ranks, the very last one first: states of ranks out of step are merged by
    them."""
    passes: int = 1
    """Over the sources in an epoch; 0: endless ones."""

    bad: tuple[int, ...] = ()
    """Digests of the bad elements of such a plan in this epoch: they are read again, and dealt with."""
    op_order: OpOrders = ()
    """In which the operators of each stretch ran in this epoch,"""
    decoders: tuple[str, ...] = ()
    """and those of them that took over the work of what followed them."""

    @property
    def splits_elements(self) -> bool:
        """Whether of some element one output is delivered and another one is not: its operators must not change."""
        return any(
            position != END and position % (1 << OUTPUT_BITS)
            for branch in self.branches
            for rest in branch.remaining_parts
            for span in rest.spans
            for position in span
        )
