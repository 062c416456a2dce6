"""What can happen to a trainer's side of a job, and what it wants done: see `pecan_ray.job.trainer`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pecan_ray.job.blocks import RowRange
from pecan_ray.job.messages import LeftOutElement, LogLevel, TrainerReport, TrainerUpdate
from pecan_ray.job.pending_leases import LeaseSpans


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A batch that has reached the trainer's process."""

    id: int
    """Its own; names it in what is to be done."""
    worker: str
    epoch: int
    spans: LeaseSpans
    rows: int
    nbytes: int
    without_data: LeaseSpans = field(default_factory=dict)
    """Of `spans`, what yields nothing: it is not given back with the batch."""
    row_range: RowRange | None = None
    """Which part of the epoch its rows are, where these come in order."""
    skip: int = 0
    """Rows at the beginning of a block that have come in other blocks."""
    since: int = 0
    """All that lies before this place has come with them."""
    # Not compared, because comparing arrays gives arrays.
    payload: Any = field(default=None, compare=False, repr=False)
    """Of a block: its rows, for those who join them."""
    slices: tuple[BlockSlice, ...] = ()
    """Of what it is joined; empty for one that has come as a whole."""

    @property
    def without_rows(self) -> ReceivedBatch:
        """What the job is told of, which keeps no rows in memory."""
        return self if self.payload is None and not self.slices else replace(self, payload=None, slices=())


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """Rows of a block that belong to one batch."""

    block: ReceivedBatch
    start: int
    stop: int


@dataclass(frozen=True)
class UpdateReceived:
    """The job has told what holds now, perhaps late."""

    update: TrainerUpdate


@dataclass(frozen=True)
class BatchesReceived:
    """A message of a worker has come; it has used up a credit."""

    worker: str
    batches: tuple[ReceivedBatch, ...]
    left_out: tuple[LeftOutElement, ...] = ()
    sent_bytes: int = 0
    """As they travelled: before the operators that were left to this side."""


@dataclass(frozen=True)
class StreamEnded:
    """A worker's stream is over: nothing more will be read from it."""

    worker: str
    stream_failed: bool = False
    """It was not the worker that ended it."""


@dataclass(frozen=True)
class RecordedInfo:
    """Something worth telling in the report."""

    text: str


@dataclass(frozen=True)
class BatchRequested:
    """The training loop asks for its next batch."""

    within: int | None = None
    """Only if it is of this epoch, or of one before it; None: of whichever it is."""


@dataclass(frozen=True)
class EpochLeft:
    """The training loop wants nothing more of an epoch, or of one before it."""

    epoch: int


@dataclass(frozen=True)
class ReportAccepted:
    """The job has taken a report, and says what holds now."""

    number: int
    update: TrainerUpdate | None = None


@dataclass(frozen=True)
class ReportRequested:
    """Somebody waits until the job knows of all that was received."""


@dataclass(frozen=True)
class TrainerFailed:
    """Something in the trainer's process went wrong that the training loop must raise."""

    error: BaseException


@dataclass(frozen=True)
class TrainerClosed:
    """The iterator was closed."""


@dataclass(frozen=True)
class TrainerTime:
    """Nothing happened but the time."""


TrainerEvent: TypeAlias = (
    UpdateReceived
    | BatchesReceived
    | StreamEnded
    | RecordedInfo
    | BatchRequested
    | EpochLeft
    | ReportAccepted
    | ReportRequested
    | TrainerFailed
    | TrainerClosed
    | TrainerTime
)


@dataclass(frozen=True)
class OpenStream:
    """Begin to read from a worker; it sends nothing without credits."""

    worker: str


@dataclass(frozen=True)
class CloseStream:
    """Read no more from a worker that goes: what it has left others will make again."""

    worker: str


@dataclass(frozen=True)
class Grant:
    """Let a worker send so many more messages."""

    worker: str
    credits: int


@dataclass(frozen=True)
class DeliverBatch:
    """Give the training loop the batch that it asked for."""

    batch: ReceivedBatch


@dataclass(frozen=True)
class TransferMemory:
    """Let the memory of a batch that waits, for other ranks or for rows before it, count as the trainer's.

    Its worker may fill other memory.
    """

    batch: ReceivedBatch


@dataclass(frozen=True)
class Discard:
    """Give back the memory of a batch that will not be used."""

    batch: ReceivedBatch


@dataclass(frozen=True)
class EndOfEpoch:
    """Tell the training loop that the epoch has no more batches which it has asked for one of."""


@dataclass(frozen=True)
class EndOfData:
    """Tell the training loop that there are no more batches."""


@dataclass(frozen=True)
class RaiseError:
    """Let the training loop raise an error."""

    error: BaseException


@dataclass(frozen=True)
class SendReport:
    """Tell the job; answered by `ReportAccepted`."""

    report: TrainerReport


@dataclass(frozen=True)
class TrainerLog:
    """Say something to the user."""

    level: LogLevel
    text: str


@dataclass(frozen=True)
class Quarantine:
    """Keep bad elements that no batch has brought."""

    elements: tuple[LeftOutElement, ...]


TrainerInstruction: TypeAlias = (
    OpenStream
    | CloseStream
    | Grant
    | DeliverBatch
    | TransferMemory
    | Discard
    | EndOfEpoch
    | EndOfData
    | RaiseError
    | SendReport
    | TrainerLog
    | Quarantine
)
