"""What trainers, workers and the job say to each other: values without handles, which any link can carry.

Every message names its sender and has a number.  A sender repeats what was not answered; the job answers a repetition
as before and changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pecan_ray.job.delivery_log import Delivery
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.left_epochs import NOWHERE, LoopPlace
from pecan_ray.job.pending_leases import LeaseSpans
from pecan_ray.job.room import DatasetRooms as DatasetRooms
from pecan_ray.job.room import HostUse
from pecan_ray.job.room import Placement as Placement
from pecan_ray.job.rounds import Turns
from pecan_ray.job.windows import StepTotals
from pecan_ray.plan.splits import AtWork, Lease, LeaseKey, Origin, Split
from pecan_ray.plan.stage_seconds import StageSeconds

PlacingNow: TypeAlias = Literal["", "keeps", "measures"]
LogLevel: TypeAlias = Literal["info", "warning", "error"]
Lengths: TypeAlias = tuple[tuple[LeaseKey, int], ...]
"""Splits that were read to their ends, and how many elements they hold."""


@dataclass(frozen=True)
class LeftOutElement:
    """An element that was left out under ``on_error="skip"`` or ``"quarantine"``."""

    identity: Hashable
    """The same for the same element and operator, however often it is read."""
    op: str
    where: str
    error: str
    elements: int = 1
    """More than one where a split broke and so many of its elements could not be read."""
    origin: Origin | None = None
    """Its own, or that of the first of them."""
    kept: bytes = b""
    """All that is known of it, pickled, where it shall be kept and no batch takes it to a trainer."""
    estimated: bool = False
    """The number of elements is an estimate."""
    open_end: bool = False
    """There are at least so many elements: nothing tells how long the split was that broke."""


@dataclass(frozen=True)
class SplitOpenFailure:
    """A split of which a worker could not read a single element: its file is not there, or not allowed."""

    key: LeaseKey
    spans: tuple[tuple[int, int], ...]
    """Of the lease."""
    error: LeftOutElement
    """What is left out if no other worker can open it."""


@dataclass(frozen=True)
class WorkerTotals:
    """What a worker has done since it started."""

    elements: int = 0
    batches: int = 0
    threads: int = 0
    """At work now, or at the end; 0: it has not said."""
    remote_bytes: int = 0
    """Bytes that its process has read of object stores."""
    node_bytes: int = 0
    """Bytes that it has read of its node's disk in place of object stores."""
    hedged: int = 0
    """Reads of object stores that it has asked for twice."""
    hedges_won: int = 0
    """Reads of which the second request was answered first."""
    stages: StageSeconds = field(default_factory=StageSeconds)
    """What its threads have done with their time."""
    peak_memory_bytes: int = 0
    """Most memory that its process has had, batches in shared memory included, and processes of functions not;
    0: not known."""


@dataclass(frozen=True)
class WorkerProgress(WorkerTotals):
    """What a worker tells of itself."""

    stuck: str = ""
    """What it has been doing for long, in words, with `{seconds}` for how long; empty if nothing is out of the way."""
    stuck_s: float = 0.0
    """For how long, when it was told."""
    fallback_reason: str = ""
    """Why it runs the user's order of operators instead of another one; empty as long as it need not."""
    at: AtWork | None = None
    """With what it has been busy for long; None: with nothing, or it waits for a storage that fails."""
    sigterm_received: bool = False
    """Its process was asked to end (SIGTERM), and is about to be killed."""
    in_line_share: float = 0.0
    """Share of the time since its last report in which the thread that speaks for it stood in line for a CPU."""


# --- what a worker asks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AskAssignment:
    """An idle worker asks for work; answered with an `Assignment` and a version of the plan, or "stop"."""

    progress: WorkerProgress = field(default_factory=WorkerProgress)


@dataclass(frozen=True)
class AskLeases:
    """A worker asks for its next leases, up to `most`; an empty answer ends the branch for its assignment.

    Where rows are numbered it asks for about so many rows.
    """

    epoch: int
    branch: int
    most: int = 1
    lengths: Lengths = ()
    look: int = 0
    """Number of next splits that it would look at, to say which of them it has at hand: answered with `Lookahead`."""
    local_splits: tuple[int, ...] = ()
    """Of the splits that it was offered last, the indices of those at hand: they go first."""
    split_open_failures: tuple[SplitOpenFailure, ...] = ()
    """What it cannot open of the leases that it has."""
    streams: int = 1
    """Leases that it reads at a time."""
    reading: int = 0
    """Leases that it has: with some it is answered at once, and an empty answer ends nothing."""
    holds_nothing: bool = False
    """It will give up all that it has made of its leases, and may be answered when there is room for more."""


@dataclass(frozen=True)
class EndAssignment:
    """A worker has taken all leases and asks what becomes of elements that fill no batch: "flush" or "return"."""

    epoch: int
    remainder_part: LeaseSpans = field(default_factory=dict)
    batches: int = 0
    """Batches that a whole plan makes, one of these elements included."""
    lengths: Lengths = ()
    rows: int = 0
    """Elements that fill no batch: with a whole plan they are left out where no smaller batch is wanted."""
    split_open_failures: tuple[SplitOpenFailure, ...] = ()


@dataclass(frozen=True)
class EndData:
    """A worker tells of data that ends with it: filtered, skipped, or a remainder that the user wants dropped."""

    epoch: int
    spans: LeaseSpans
    rows: int = 0
    left_out: tuple[LeftOutElement, ...] = ()


WorkerQuestion: TypeAlias = AskAssignment | AskLeases | EndAssignment | EndData


@dataclass(frozen=True)
class WorkerRequestReceived:
    """A worker asks or tells something; perhaps not for the first time."""

    worker: str
    channel: str
    """Questions of one channel come one after the other."""
    number: int
    request: WorkerQuestion


@dataclass(frozen=True)
class Assigned:
    """The answer to `AskAssignment`."""

    assignment: Assignment
    plan_version: int = 0
    lot_s: float = 0.5
    """Leases are to be asked for in lots of about so many seconds of work."""


@dataclass(frozen=True)
class Lookahead:
    """The answer to `AskLeases` of a worker that would look at what comes next."""

    leases: tuple[Lease, ...]
    splits: tuple[Split, ...]
    """Some of the next ones: nobody has them, and anybody may take them meanwhile."""


@dataclass(frozen=True)
class NoMoreLeases:
    """The answer to `AskLeases` that ends a branch for an assignment, where it is known what comes after it."""

    next_epoch: tuple[Split, ...]
    """The splits with which the worker will begin the next epoch, if nobody else comes."""


Reply: TypeAlias = Assigned | tuple[Lease, ...] | Lookahead | NoMoreLeases | Literal["stop", "flush", "return", "noted"]


# --- what a trainer says ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReceivedBatches:
    """Batches of one epoch that a trainer has received from one worker since its last report."""

    worker: str
    epoch: int
    spans: LeaseSpans
    batches: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class GivenBack:
    """Batches that a trainer has received and will not use, since other ranks have fewer."""

    epoch: int
    spans: LeaseSpans
    batches: int
    rows: int
    ids: tuple[int, ...] = ()
    """The numbers by which the trainer reported these batches."""


@dataclass(frozen=True)
class TrainerProgress:
    """How a trainer is doing."""

    yielded: int = 0
    """Batches handed to the training loop since the job began."""
    rows: int = 0
    waited_s: float = 0.0
    """Seconds in which the loop waited for a batch since the job began."""
    elapsed_s: float = 0.0
    queued: int = 0
    steps: StepTotals = field(default_factory=StepTotals)
    passed: int = 0
    """Batches that it had received of epochs that the loop has left, which the loop does not get."""
    passed_rows: int = 0
    host: HostUse | None = None
    """What its process uses; None: it was not measured."""

    @property
    def used(self) -> int:
        """Batches that nobody else can get any more: that the loop has, or has left."""
        return self.yielded + self.passed


@dataclass(frozen=True)
class Receipts:
    """What has come to a trainer since its last report."""

    batches: tuple[ReceivedBatches, ...] = ()
    sent_bytes: tuple[tuple[str, int], ...] = ()
    """By worker, bytes that have come from it, as they travelled."""
    kept: int = 0
    """Batches that it has received in all and not given back."""
    delivery_records: tuple[Delivery, ...] = ()
    """The batches that have come, in their order, as far as a state might be taken before them."""
    rest: Delivery | None = None
    """Where it joins rows: what it has received of that no batch is made yet."""


@dataclass(frozen=True)
class TrainerReport:
    """What a trainer tells the job, several times a second at most; one at a time, repeated until it is answered."""

    rank: int
    incarnation: str
    """Names the process: another one that has the same rank is another trainer."""
    number: int
    received: Receipts = field(default_factory=Receipts)
    settled: tuple[str, ...] = ()
    """Lost workers from which nothing more will be accepted."""
    given_back: GivenBack | None = None
    broken: tuple[str, ...] = ()
    """Workers whose stream broke."""
    left_out: tuple[LeftOutElement, ...] = ()
    notes: tuple[str, ...] = ()
    """How batches travel: for the job's events."""
    progress: TrainerProgress = field(default_factory=TrainerProgress)
    met: int = 0
    """Number of workers that it knows, of those that have come up."""
    held: bool = False
    """It has a batch that it may not use before other ranks have as many."""
    full: bool = False
    """Whether it can take no more meanwhile."""
    quarantined: int = 0
    """Elements that it has taken of those that its orders told it to keep."""
    place: LoopPlace = NOWHERE
    """Which epochs its loop has left."""


@dataclass(frozen=True)
class NextMakers:
    """The workers that make the rows that come next, or others that are not many."""

    split: int
    """The number in the epoch of the split that comes next, as far as the job knows."""
    workers: tuple[str, ...]


@dataclass(frozen=True)
class TrainerUpdate:
    """What holds for a trainer now: not a difference to what it knew, so that none of them must arrive."""

    number: int = 0
    """Later orders have a larger one."""
    epoch: int = 0
    allowed: int = 0
    """Batches of this epoch that every rank may use."""
    finished: bool = False
    met: int = 0
    """Number of workers that have come up since the job began."""
    # By number, because an update may be lost (decision 22): those behind `met` come again.
    new_workers: tuple[str, ...] = ()
    """Workers that run and that the trainer did not know."""
    settle: tuple[str, ...] = ()
    """Lost workers about which this trainer must settle."""
    closing: bool = False
    """The epoch may end with the next acknowledgement: send it at once."""
    merge_leftovers: bool = False
    """Leftovers are made into batches for certain ranks: take them also without room."""
    keep: int | None = None
    """Keep only so many batches of this epoch, and give back the rest."""
    level: int | None = None
    """All ranks have left this epoch: keep so many batches of it, give back the rest, and take no more."""
    error: BaseException | None = None
    running: int = 0
    """Workers that run."""
    target: tuple[int, int] = (0, 0)
    """Local and remote workers that are aimed at."""
    placement_note: PlacingNow = ""
    """What AutoPlacement does about the numbers of workers: empty where they are fixed."""
    waiting_for: tuple[str, ...] = ()
    """What the job has been waiting for, for long."""
    coordinated: bool = False
    """Batches come in rounds, and are used when these have their turn."""
    addressed: bool = False
    """Batches are for certain ranks: nobody else can have one that is for this rank."""
    first_turn: int = 0
    """Number of the first turn of `schedule`."""
    schedule: Turns = ()
    """Turns of complete rounds, in the order in which their batches are used."""
    lost_workers: tuple[str, ...] = ()
    """Workers that are gone, of which batches without a turn must be given back."""
    next_makers: NextMakers | None = None
    """Where whole splits are under way, whose batches are taken without room; None: those of all workers."""
    unordered: bool = False
    """Batches that tell their rows come in no order any more: none waits for another one."""
    quarantine: tuple[LeftOutElement, ...] = ()
    """Bad elements that no batch brings and that this trainer shall keep, without those that it has said to have."""
    quarantined: int = 0
    """Bad elements that came before those of `quarantine`."""
