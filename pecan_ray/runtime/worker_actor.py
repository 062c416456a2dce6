"""A worker's actor: what Ray starts, and what controllers and clients call.

It imports little, and so does what keeps workers: what a worker works with is imported in its own process.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from pecan_ray.errors import ClusterError
from pecan_ray.job.room import DatasetRooms
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.runtime.actors import actor

if TYPE_CHECKING:
    from pecan_ray.runtime.messages import Job
    from pecan_ray.transport.choice import SelectedTransport
    from pecan_ray.transport.messages import Message

USUAL_STREAMS = 64
"""Clients that a worker of any job can serve; one of a job with more trainers gets a thread for each."""


@dataclass(frozen=True)
class WorkerActorSpec:
    """A worker's actor as Ray is to make it, and what that is given."""

    started: StartWorker
    selector: Mapping[str, str]
    """The labels of nodes that it may run on."""
    preferred: tuple[Mapping[str, str], ...]
    """The labels of those that it is to run on where they have room, the first choice first; none: any."""
    cpus: float
    """CPUs that Ray reserves for it; 0: none."""
    streams: int
    """Clients that it can serve at a time."""
    job: bytes
    """The job, pickled."""


def worker_actor_spec(
    started: StartWorker,
    selector: Mapping[str, str],
    job: Job,
    pickled: bytes,
    preferred: Sequence[Mapping[str, str]] = (),
) -> WorkerActorSpec:
    """Return how a worker of a job is to be made; `pickled`: the same job."""
    cpus = job.config.cpus_per_worker if started.reserve else 0.0
    return WorkerActorSpec(
        started, dict(selector), tuple(preferred), cpus, max(USUAL_STREAMS, job.options.world_size), pickled
    )


# Why it imports little by itself: docs/decisions/running-on-ray.md#67-the-first-worker-starts-early
class PreprocessingWorker:
    """The actor around a worker's process; its groups keep long runs and streams from delaying control messages."""

    def __init__(self, started: StartWorker, job: bytes, controller: Any) -> None:
        from pecan_ray.runtime.worker import WorkerProcess, prepare_process  # in this process alone

        prepare_process()
        self._controller = controller
        self._process = WorkerProcess(started, pickle.loads(job), controller)

    @ray.method(concurrency_group="control")
    def placed(self) -> tuple[str, int]:
        """Return the node id and the process id, as soon as the process runs."""
        return str(ray.get_runtime_context().get_node_id()), os.getpid()

    @ray.method(concurrency_group="run")
    def set_up(self) -> None:
        """Load the plan and build its engine, which may import a framework; nothing to do a second time."""
        self._process.set_up()

    @ray.method(concurrency_group="run")
    def run(self) -> None:
        """Work until the job says stop; errors of the pipeline go to the controller.  Called again, wait for that."""
        self._process.run()

    # In the group of `run`, which has one thread, so that it begins when that has ended.
    @ray.method(concurrency_group="run")
    def finish(self) -> bool:
        """Leave nothing of the job under way, behind its end; return whether this worker can be given another one."""
        return self._process.finish()

    @ray.method(concurrency_group="run")
    def take(self, started: StartWorker, job: bytes) -> None:
        """Work for another job, behind `finish`."""
        from pecan_ray.runtime.worker import WorkerProcess

        self._process = WorkerProcess(started, pickle.loads(job), self._controller)

    @ray.method(concurrency_group="control")
    def use_users_order(self) -> None:
        """Run the operators in the user's order from now on, also on what is under way."""
        self._process.use_users_order()

    @ray.method(concurrency_group="control")
    def leave_epochs(self, before: int) -> None:
        """Drop what there is of epochs before one, and stop working on it: nobody wants it."""
        self._process.leave_epochs(before)

    @ray.method(concurrency_group="quota")
    def limit_remote_io(self, bytes_per_s: float | None, cache_limits: DatasetRooms = ()) -> None:
        """Read no more than so much of object stores from now on (None: as fast as it can), and keep no more of it."""
        self._process.limit_remote_io(bytes_per_s, cache_limits)

    @ray.method(concurrency_group="control")
    def flush(self) -> None:
        """Wait until what was kept is where other machines find it, for a few seconds at most."""
        self._process.flush()

    @ray.method(concurrency_group="control")
    def select_transport(self, rank: int, node_id: str, sees_process: bool) -> SelectedTransport:
        """Say how batches will travel to a client."""
        return self._process.select_transport(rank, node_id, sees_process)

    @ray.method(concurrency_group="stream")
    def wait_for_delivery(self, rank: int) -> None:
        """Wait until a client has received everything by Flight; its caller learns of this process's death."""
        self._process.wait_for_delivery(rank)

    @ray.method(concurrency_group="stream")
    def send(self, rank: int) -> None:
        """Write messages with batches in shared memory into a client's pipe, until there are no more."""
        self._process.send(rank)

    @ray.method(concurrency_group="stream")
    def stream(self, rank: int, received: int | None = None) -> Iterator[list[Message]]:
        """Yield messages with batches by value for a client; `received`: by Flight, which has failed."""
        yield from self._process.stream(rank, received)

    @ray.method(concurrency_group="control")
    def grant(self, rank: int, count: int) -> None:
        """Let so many more messages go to a client through Ray's object store."""
        self._process.grant(rank, count)

    @ray.method(concurrency_group="control")
    def drain(self) -> None:
        """Stop taking work; what is finished can still be fetched, what is not goes back to the job."""
        self._process.drain()


def make_worker(worker_actor_spec: WorkerActorSpec, controller: Any) -> Any:
    """Have Ray make a worker's actor, which ends with this process; return its handle once the name is registered."""
    name, (selector, *others) = (
        worker_actor_spec.started.worker,
        [*worker_actor_spec.preferred, worker_actor_spec.selector],
    )
    options = {"fallback_strategy": [{"label_selector": dict(one)} for one in others]} if others else {}
    # Of two quotas the last one sent holds: one thread takes them in their order.
    groups = (("run", 1), ("stream", worker_actor_spec.streams), ("control", 2), ("quota", 1))
    try:
        made = actor(PreprocessingWorker, name, selector, groups=groups, num_cpus=worker_actor_spec.cpus, **options)
    except (TypeError, ValueError) as error:
        raise ClusterError(
            f"Ray refuses the labels {selector} with which nodes are chosen for {name}: {error}. Correct "
            "Config(remote_labels=...)."
        ) from error
    return made.remote(worker_actor_spec.started, worker_actor_spec.job, controller)
