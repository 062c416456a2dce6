"""What can happen to a worker, and what it wants done: see `pecan_ray.job.worker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pecan_ray.job.blocks import RowRange
from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.messages import LeftOutElement, Reply, SplitOpenFailure, WorkerProgress, WorkerQuestion
from pecan_ray.job.pending_leases import LeaseSpans, RowParts
from pecan_ray.plan.splits import Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Span


class EngineBatch(Protocol):
    """What an engine makes: a batch, elements that fill none, or positions that yield nothing."""

    @property
    def spans(self) -> LeaseSpans:
        """The positions that it stands for."""
        ...

    @property
    def without_data(self) -> LeaseSpans:
        """Return the positions among `spans` that yield nothing."""
        ...

    @property
    def row_parts(self) -> RowParts:
        """Of each row its last positions, where rows are joined to batches."""
        ...

    @property
    def rows(self) -> int:
        """Its number of elements; 0: it only says that positions yield nothing."""
        ...

    @property
    def partial(self) -> bool:
        """Return whether it fills no batch, at the end of an assignment."""
        ...

    @property
    def ends_run(self) -> bool:
        """Return whether all of a run is made with it."""
        ...

    @property
    def rank(self) -> int | None:
        """The trainer that it is for, as a batch of a round."""
        ...


# --- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkStarted:
    """The process is ready to work; perhaps not said for the first time."""


@dataclass(frozen=True)
class ReplyReceived:
    """The job has answered a question; perhaps not for the first time."""

    channel: str
    number: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class LeaseRequested:
    """The engine wants the next lease of a source; answered by `ProvideLease`, and not asked again before that."""

    branch: int
    side: SideBySide = ONE_BY_ONE
    """How it reads leases.  To an engine that reads others no lease means that there is none now."""
    maybe_unused: bool = False
    """It is likely not to be read: a plan begins behind it."""
    threads: int = 1
    """Threads of the engine that make elements side by side."""
    ends_runs: bool = False
    """It gives up rows that fill no batch behind a lease that ends a run, and goes on meanwhile."""


@dataclass(frozen=True)
class LocalSplitsFound:
    """The answer to `FindLocalSplits`."""

    branch: int
    indices: tuple[int, ...] | None
    """Of the splits that are at hand; None: it does not matter which ones are."""


@dataclass(frozen=True)
class SplitRead:
    """A split was read to its end: it has so many elements."""

    key: LeaseKey
    elements: int


@dataclass(frozen=True)
class SplitOpenFailed:
    """This worker cannot open the split of a lease: the job gives it to others."""

    split: SplitOpenFailure


@dataclass(frozen=True, slots=True)
class BatchProduced:
    """The engine has made something of the leases of the assignment."""

    batch: EngineBatch
    left_out: tuple[LeftOutElement, ...] = ()
    """Bad elements that no batch takes to a trainer, if this one becomes none."""


@dataclass(frozen=True)
class AssignmentFinished:
    """The engine has made everything that it makes of the leases of the assignment."""

    unresolved_spans: LeaseSpans
    """Positions behind the ends of splits, about which it has said nothing."""


@dataclass(frozen=True)
class EpochsLeft:
    """All training loops have left the epochs before one."""

    before: int


@dataclass(frozen=True)
class DrainRequested:
    """The job takes this worker away: it finishes nothing more, and what is finished can still be fetched."""


@dataclass(frozen=True)
class WorkerTime:
    """Some time has passed; `condition` is what only the process itself knows of its progress."""

    condition: WorkerProgress


WorkerEvent: TypeAlias = (
    WorkStarted
    | ReplyReceived
    | LeaseRequested
    | LocalSplitsFound
    | SplitRead
    | SplitOpenFailed
    | BatchProduced
    | AssignmentFinished
    | EpochsLeft
    | DrainRequested
    | WorkerTime
)


# --- instructions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AskJob:
    """Ask the job, again and again until it has answered; `ReplyReceived` brings the answer."""

    channel: str
    number: int
    request: WorkerQuestion
    prefetch: bool = False
    """The engine does not wait for the answer: what it brings may be fetched as soon as it comes."""


@dataclass(frozen=True)
class FindLocalSplits:
    """Find out which of some splits are on this node, before leases are asked for; answered by `LocalSplitsFound`."""

    branch: int
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class FetchSplits:
    """Begin to fetch what will be read of splits."""

    branch: int
    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class ProvideLease:
    """Give the engine the lease that it wants; None: there is none now, or no more in this assignment."""

    branch: int
    lease: Lease | None


@dataclass(frozen=True)
class LoadPlan:
    """Build the engine of a version of the plan, which begins behind so many of its batches."""

    version: int
    behind: int


@dataclass(frozen=True)
class RunAssignment:
    """Let the engine run on the leases of an assignment."""

    assignment: Assignment


@dataclass(frozen=True)
class StopAssignment:
    """Let the engine stop, whatever it has under way: nobody wants that."""

    for_good: bool
    """The worker ends with it; else no thread of the stretch may want a lease any more when this is done."""


@dataclass(frozen=True, slots=True)
class PutOut:
    """Let a trainer fetch a batch, and make no other one before there is room for it."""

    batch: EngineBatch | None
    """None: it has no rows, and only says that positions yield nothing."""
    epoch: int
    rank: int | None
    """The trainer that it is for; None: whichever has room."""
    row_range: RowRange | None
    """Which part of the epoch its rows are, where these come in order and no others come between them."""
    spans: LeaseSpans | None = None
    """What it stands for, where rows are joined to batches; None: as the batch says."""
    rows: Span | None = None
    """The rows of the batch that it has: a copy of them, since the others are put out apart; None: all."""


@dataclass(frozen=True)
class Release:
    """Give back the memory of what becomes no batch."""

    batch: EngineBatch


@dataclass(frozen=True)
class DropEpochs:
    """Drop the finished batches of epochs before one."""

    before: int


@dataclass(frozen=True)
class TellJob:
    """Tell the job how this worker gets on; nothing depends on whether that arrives."""

    progress: WorkerProgress


@dataclass(frozen=True)
class EndWork:
    """Make nothing more: streams end when what is finished was fetched."""


# `WorkerProcess` has a handler for each member. The protocol simulation performs the same ones
# (decision 157).
WorkerInstruction: TypeAlias = (
    AskJob
    | FindLocalSplits
    | FetchSplits
    | ProvideLease
    | LoadPlan
    | RunAssignment
    | StopAssignment
    | PutOut
    | Release
    | DropEpochs
    | TellJob
    | EndWork
)
