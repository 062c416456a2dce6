"""What can happen to a job; `pecan_ray.job.state` says what then must be done.

All are values: a log of them, replayed, gives the same job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pecan_ray.job.messages import DatasetRooms, Placement, TrainerReport, WorkerProgress
from pecan_ray.job.messages import (
    WorkerRequestReceived as WorkerRequestReceived,  # workers send it, and import no other event
)
from pecan_ray.job.sharing import PoolBid
from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.splits import Split

LossCause: TypeAlias = Literal["process", "node", "stream", "silent", "unheard", "order", "hung", "restart"]
"""Its process ended; its node is gone; it cannot be reached; it said nothing though it had a CPU; it said nothing, and
had no CPU or nobody knows; it could not run another order of operators; it hung; its job could not follow it."""


@dataclass(frozen=True)
class TrainerRegistered:
    """A trainer registers."""

    rank: int
    incarnation: str
    node: str
    description: tuple[tuple[str, str], ...] = ()
    """What it is about to run, part by part: (name of an operator or option, what stands for its value)."""
    process: str = ""
    """Names its process for the cluster, which can tell whether that exists; empty: nobody can."""


@dataclass(frozen=True)
class TrainerReported:
    """A trainer's report has come, perhaps not for the first time."""

    report: TrainerReport


@dataclass(frozen=True)
class TrainerWaiting:
    """A trainer is there and waits for orders."""

    rank: int
    incarnation: str
    met: int = 0
    """Number of workers that it knows, of those that have come up."""
    number: int = 0
    """Of the last orders that it has."""


@dataclass(frozen=True)
class TrainerLeft:
    """A trainer has closed its iterator."""

    rank: int
    incarnation: str
    unused: int = 0
    """Batches that it has received and will not use."""
    finished: bool = False
    """It has had all that it asked for, and the others go on."""


ProcessState: TypeAlias = Literal["exists", "ended"]


@dataclass(frozen=True)
class TrainerChecked:
    """The cluster has answered whether a trainer's process exists; where it cannot tell, nothing is said."""

    rank: int
    incarnation: str
    state: ProcessState


@dataclass(frozen=True)
class OtherRunRegistered:
    """A run of one trainer has come that has this job's name, and is no part of it: answered by `RejectTrainer`."""

    incarnation: str


@dataclass(frozen=True)
class RoomFound:
    """What the cluster offers is known."""

    hosts: tuple[tuple[str, float], ...]
    """The trainers' nodes and their CPUs."""
    remote_cpus: tuple[float, ...]
    """CPUs of each node that remote workers may run on."""


@dataclass(frozen=True)
class OrderKnown:
    """The order of operators is known: work may begin."""

    changed: bool
    """It is another one than as written: the plan has a second version."""
    row_s: float | None = None
    """Seconds of one thread for a row of a batch, by a sample; None: not known, infinite: that takes too long."""
    order: OpOrders = ()
    """The order in which operators run, if it has changed."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds that each operator took of an element in the sample; empty: not all were measured."""
    decoders: tuple[str, ...] = ()
    """Operators that take over the work of those that follow them in that order."""


@dataclass(frozen=True)
class PlanChanged:
    """There is a new version of the plan, for epochs that have not begun."""

    message: str
    order: OpOrders = ()
    decoders: tuple[str, ...] = ()


@dataclass(frozen=True)
class OrderDropped:
    """The order that the job runs gives other results than the user's."""

    message: str


@dataclass(frozen=True)
class SplitPageReceived:
    """A page of a source's splits is known."""

    branch: int
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class ListingResumed:
    """A source is listed again, as far as its splits were known before."""

    branch: int
    digests: tuple[str, ...]
    """The digests of these splits."""


@dataclass(frozen=True)
class ListingRetrying:
    """The listing is asked for again and again, since the storage fails; or it is not any more."""

    text: str
    """What has been tried again, with `{seconds}` for how long; empty if nothing is."""
    seconds: float = 0.0


@dataclass(frozen=True)
class ListingEnded:
    """A source has no more splits."""

    branch: int


@dataclass(frozen=True)
class WorkerPlaced:
    """A worker's process runs."""

    worker: str
    node: str
    pid: int
    price: float | None = None
    """$ per hour of a worker on this node; None: not known."""


PlaceFound: TypeAlias = Literal["no", "perhaps", "yes"]


@dataclass(frozen=True)
class WorkerPending:
    """A worker's process does not run yet, for the reason given."""

    worker: str
    reason: str
    has_place: PlaceFound = "no"
    """Whether it has CPUs, and its process is being started; "perhaps": the CPUs may be held for it, or by others."""


@dataclass(frozen=True)
class WorkerReady:
    """A worker has loaded the plan and can work."""

    worker: str


@dataclass(frozen=True)
class WorkerRestored:
    """A worker that runs since before the controller was lost answers to the process that has taken its place."""

    worker: str


DIED = "its process died"
"""Why a worker is lost of which no more is known."""


@dataclass(frozen=True)
class WorkerLost:
    """A worker's process or node is gone."""

    worker: str
    cause: LossCause
    why: str = DIED


@dataclass(frozen=True)
class WorkerChecked:
    """Somebody has looked at a worker that says nothing; where nobody can tell how it gets on, nothing is said."""

    worker: str
    starved_s: float
    """Seconds for which one of its threads stood in line for a CPU since it was looked at before."""
    of_s: float
    """Seconds since it was looked at before."""


@dataclass(frozen=True)
class NodesLeave:
    """Nodes will be taken away, as was announced to Ray: by the cloud, by an operator, or by Ray's autoscaler."""

    nodes: tuple[tuple[str, float | None], ...]
    """Their ids, and in how many seconds each is gone; None: that was not said."""


@dataclass(frozen=True)
class WorkerProgressReported:
    """A busy worker says what it has done so far."""

    worker: str
    progress: WorkerProgress


@dataclass(frozen=True)
class OrderFailed:
    """A worker has given up: an element failed in an order of operators that the user did not write."""

    worker: str
    message: str


@dataclass(frozen=True)
class CutRefused:
    """A worker has given up: an element came that cannot be sent before the last operators have run on it."""

    worker: str
    message: str


@dataclass(frozen=True)
class WorkerFailed:
    """A worker has given up for good: the pipeline does not run, and trainers must know why."""

    worker: str
    error: BaseException
    row: int | None = None
    """Where rows are numbered, the first one of the epoch that it cannot make, or its place where they are joined: it
    says so again until those before it have come."""


@dataclass(frozen=True)
class ScaleRequested:
    """A trainer fixes the numbers of workers."""

    local: int
    remote: int


@dataclass(frozen=True)
class RemoteIoSet:
    """What all workers together may read of object stores has changed, or what nodes may keep of it."""

    bytes_per_s: float | None
    """None: as much as they can."""
    cache_limits: DatasetRooms = ()
    """What a node may keep of each dataset; empty: nobody bounds that."""
    pool_nodes: int = 1
    """Nodes that keep blocks together; 1: each keeps its own."""
    why: str = ""
    """Who has said so; empty: the user."""


@dataclass(frozen=True)
class RoomRequested:
    """Another job has no place for a worker on one of our nodes."""

    job: str


@dataclass(frozen=True)
class PoolRequestsReceived:
    """What other jobs bid for nodes is known."""

    pool_requests: tuple[PoolBid, ...]
    nodes: tuple[tuple[Placement, tuple[str, ...]], ...]
    """Where this job's workers of each kind may run."""
    cpus: tuple[tuple[str, float], ...]
    """The CPUs of these nodes."""
    finished_jobs: tuple[str, ...] = ()
    """Jobs that were asked before, and have ended."""


@dataclass(frozen=True)
class JobFailed:
    """Something went wrong that ends the job: trainers raise it."""

    error: BaseException


@dataclass(frozen=True)
class ControllerRestarted:
    """The controller's process was lost; this one has made the job again from its journal."""


@dataclass(frozen=True)
class UnfinishedJobSaved:
    """What a job of this name has left that had not ended is kept."""

    where: str


@dataclass(frozen=True)
class TimePassed:
    """Nothing happened but the time."""


# The codec reads and writes the members of this union: an event that is not in it cannot be in a journal.
Event: TypeAlias = (
    TrainerRegistered
    | TrainerReported
    | TrainerWaiting
    | TrainerLeft
    | TrainerChecked
    | OtherRunRegistered
    | RoomFound
    | OrderKnown
    | PlanChanged
    | OrderDropped
    | SplitPageReceived
    | ListingResumed
    | ListingRetrying
    | ListingEnded
    | WorkerPlaced
    | WorkerPending
    | WorkerReady
    | WorkerRestored
    | WorkerLost
    | WorkerChecked
    | NodesLeave
    | WorkerRequestReceived
    | WorkerProgressReported
    | OrderFailed
    | CutRefused
    | WorkerFailed
    | ScaleRequested
    | RemoteIoSet
    | RoomRequested
    | PoolRequestsReceived
    | JobFailed
    | ControllerRestarted
    | UnfinishedJobSaved
    | TimePassed
)
