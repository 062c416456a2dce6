"""What a job wants done; the actor around it performs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pecan_ray.errors import PecanError
from pecan_ray.job.messages import DatasetRooms, LogLevel, Placement, Reply
from pecan_ray.job.start_worker import StartWorker


@dataclass(frozen=True)
class FindRoom:
    """Find out what the nodes of the trainers, and other ones, offer: answered by `RoomFound`."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class RejectTrainer:
    """Tell a trainer that it cannot take part."""

    incarnation: str
    error: PecanError


@dataclass(frozen=True)
class TrainerProcess:
    """A trainer that says nothing."""

    rank: int
    incarnation: str
    node: str
    process: str


@dataclass(frozen=True)
class LookForTrainers:
    """Find out whether the processes of trainers exist: answered by `TrainerChecked`, where that can be known."""

    trainers: tuple[TrainerProcess, ...]


@dataclass(frozen=True)
class SilentWorker:
    """A worker that is late to speak."""

    worker: str
    node: str
    pid: int
    again: bool
    """Whether it was looked at before in this silence."""


@dataclass(frozen=True)
class LookForWorkers:
    """Find out whether workers stand in line for CPUs: answered by `WorkerChecked`, where that can be known."""

    workers: tuple[SilentWorker, ...]


@dataclass(frozen=True)
class BeginListing:
    """List the sources: answered by `SplitPageReceived` and `ListingEnded`."""

    known: tuple[int | None, ...] = ()
    """Splits of each that are known from before, and told of by `ListingResumed`; None: all of them."""


@dataclass(frozen=True)
class ReattachWorker:
    """Follow a worker to its end that runs since before the controller was lost.

    Answered by `WorkerRestored`, or by `WorkerLost` where it is gone.
    """

    worker: str
    placement: Placement
    node: str
    pid: int


@dataclass(frozen=True)
class EndUnknownWorkers:
    """End the processes of all workers of the job that are neither started nor adopted."""


@dataclass(frozen=True)
class DrainWorker:
    """Let a worker finish what it has begun to send."""

    worker: str


@dataclass(frozen=True)
class KillWorker:
    """End a worker's process, wherever it is."""

    worker: str


@dataclass(frozen=True)
class UseUsersOrder:
    """Let a worker run the operators in the user's order from now on, also on what it has begun."""

    worker: str


@dataclass(frozen=True)
class LeaveEpochs:
    """Let a worker drop what it has of epochs before one: nobody wants it any more."""

    worker: str
    before: int


@dataclass(frozen=True)
class LimitRemoteIo:
    """Let a worker read no more than so many bytes a second of object stores from now on; None: as many as it can."""

    worker: str
    bytes_per_s: float | None
    cache_limits: DatasetRooms = ()
    """What its node may keep of each dataset; empty: nobody bounds that."""


@dataclass(frozen=True)
class Response:
    """Answer a worker's question."""

    worker: str
    channel: str
    number: int
    reply: Reply


@dataclass(frozen=True)
class TellTrainers:
    """Orders have changed for these ranks: answer those of them that listen."""

    ranks: tuple[int, ...]
    only_limit_raised: bool = False
    """They may use more batches, and that is all: it will do to tell them a little later, and of more."""


@dataclass(frozen=True)
class Log:
    """Say something."""

    level: LogLevel
    text: str


@dataclass(frozen=True)
class EndJob:
    """All trainers have left, or none can be heard: end all workers, and then the job itself."""

    orphaned: bool


# `JobHost` has a handler for each member, and so has the protocol simulation of the tests.
Instruction: TypeAlias = (
    FindRoom
    | RejectTrainer
    | LookForTrainers
    | LookForWorkers
    | BeginListing
    | StartWorker
    | ReattachWorker
    | EndUnknownWorkers
    | DrainWorker
    | KillWorker
    | UseUsersOrder
    | LeaveEpochs
    | LimitRemoteIo
    | Response
    | TellTrainers
    | Log
    | EndJob
)
Instructions: TypeAlias = list[Instruction]
