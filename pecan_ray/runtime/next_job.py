"""The processes of a job, and those of a pipeline's next job: these are started when a job of it has ended."""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import pickle
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray

from pecan_ray.errors import ClusterError
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.spec import JobSpec
from pecan_ray.options import IterOptions
from pecan_ray.runtime import cluster
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.calls import Calls
from pecan_ray.runtime.controller_actor import AutoPlacementController
from pecan_ray.runtime.journal_file import OFF
from pecan_ray.runtime.keeper import keeper_of
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.worker_actor import worker_actor_spec

logger = logging.getLogger("pecan_ray")

_runs: dict[str, int] = {}
"""How often this process has begun a shared job of a name: ranks that run the same program agree on it."""

MOST_CALLS = 100_000
"""Calls that a controller can have open: each trainer waits for orders in one, each idle worker for work in another."""
MOST_RESTARTS = 100
"""A controller that dies more often is not started again: something kills it whatever it does."""
MOST_AHEAD = 2
"""So many pipelines of a program have a next job at most, as for training and validation: each has three processes."""
PAUSE_S = 0.3
"""A program that ends within this time behind a job, or drops the pipeline, starts nothing for a next one."""


@dataclass(frozen=True)
class StartedJob:
    """The processes of a job that has not begun."""

    job: str
    """Its name."""
    controller: Any
    journal: str | os.PathLike[str] | None
    """Of its `Config`, to which the controller is bound."""
    calls: Calls
    """The connection to Ray with which it was started."""


def start_controller(
    job: str, node: str, journal: str | os.PathLike[str] | None, *, shared: bool = False, ahead: bool = False
) -> Any:
    """Start the controller of a job; `shared`: by several trainers; `ahead`: it waits longer for its job."""
    return actor(
        AutoPlacementController,
        f"pecan:{job}:controller",
        # On a node for remote workers it would keep an autoscaler from taking the node back.
        cluster.local_selector(node),
        # Decision 93: a run of one rank joins no other job.  `_registration_failure` asks a controller of its name.
        get_if_exists=shared,
        # A job of several trainers belongs to none of their processes; it ends when nobody is heard any more.
        lifetime="detached" if shared else None,
        num_cpus=0,
        # Without a journal another process could not go on.
        max_restarts=0 if journal == OFF else MOST_RESTARTS,
        max_concurrency=MOST_CALLS,
        # Hundreds of calls a second would fill the dashboard's table of tasks, at a tenth of their cost.
        enable_task_events=False,
    ).remote(job, None if journal is None else os.fspath(journal), ahead)


def expect_worker(controller: Any, spec: JobSpec, node: str, job: Job, *, ahead: bool = False) -> None:
    """Start the keeper of a job's workers, and the worker that the job will ask for first.

    `ahead`: the job is not known yet, and `job` is the one before.
    """
    # It would be started by the controller, but half a second later.
    keeper = keeper_of(spec.name, controller._actor_id.hex())
    began = None if spec.shape.world_size > 1 else first_worker(spec, node, cluster.cpus_of(node))
    if began is not None:  # as that would be asked for by the controller, seconds later
        wanted = worker_actor_spec(began, cluster.local_selector(node), job, pickle.dumps(job))
        # Decision 176: what waits for a job takes no CPU of the cluster.
        keeper.expect.remote(replace(wanted, cpus=0.0, ahead=True) if ahead else wanted)


def job_name(name: str, options: IterOptions) -> str:
    """Return the name of the job that a pipeline of a name begins, or joins."""
    if options.job:
        return options.job
    if options.world_size == 1:
        return f"{name}-{os.getpid():x}{secrets.token_hex(2)}"
    _runs[name] = _runs.get(name, 0) + 1
    return f"{name}-shared-{_runs[name]}"


def is_private(options: IterOptions) -> bool:
    """Return whether a job belongs to this process alone, under a name of its own."""
    return options.world_size == 1 and not (options.job or options.share)


class NextJob:
    """What runs already for the next job of a pipeline: it ends with the pipeline, and with the program.

    The controller ends by itself where it is not used (`runtime/controller.py`), and the rest with it.  Pipelines that
    are derived from one share it: ``pipe.batch(8).iter_batches()`` in a loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the rest."""
        self._started: list[StartedJob] = []
        """At most one."""
        self._wanted: object | None = None
        """Stands for the job that was last to be started."""
        weakref.finalize(self, _end_in_background, self._started).atexit = False

    def __reduce__(self) -> tuple[type[NextJob], tuple[()]]:
        return NextJob, ()

    def prepare(self, before: Job, node: str) -> None:
        """Start the processes of a job like the one before, as soon as this program goes on behind that."""
        with self._lock:
            wanted = self._wanted = object()
        me, calls = weakref.ref(self), Calls()

        def start() -> None:
            next_job = None if _ending.wait(PAUSE_S) else me()
            if next_job is not None:
                next_job._start(wanted, lambda: _started(before, node, calls))

        thread = threading.Thread(target=start, name="pecan-next-job", daemon=True)
        _starting.add(thread)
        thread.start()

    def _start(self, wanted: object, start: Callable[[], StartedJob]) -> None:
        with self._lock:
            if self._wanted is not wanted:  # the next job has begun meanwhile
                return
            try:
                self._started[:] = [start()]
            except (ClusterError, ray.exceptions.RayError) as error:  # that job finds out itself what is wrong
                logger.info("nothing is started ahead: %s", error)
                return
        with _counting:
            _newest[self] = None
            dropped = [*_newest][:-MOST_AHEAD]
        for one in dropped:
            one.drop()

    def drop(self) -> None:
        """End what was started."""
        if (started := self._taken()) is not None:
            _end(started)

    def begin(
        self, pipeline: str, options: IterOptions, journal: str | os.PathLike[str] | None
    ) -> tuple[str, StartedJob | None]:
        """Return the name of a job that begins, and what runs already for one with that `Config.journal`."""
        started = self._taken() if is_private(options) else None
        if started is not None and (started.journal != journal or not started.calls.connected()):
            _end(started)
            started = None
        return job_name(pipeline, options) if started is None else started.job, started

    def _taken(self) -> StartedJob | None:
        with self._lock:
            self._wanted = None
            started = self._started.pop() if self._started else None
        with _counting:
            _newest.pop(self, None)
        return started


def _started(before: Job, node: str, calls: Calls) -> StartedJob:
    """Start the processes of a job; raises ClusterError if Ray was left since the job before."""
    job, journal = job_name(before.pipeline, before.options), before.config.journal
    with calls.connection():
        controller = start_controller(job, node, journal, ahead=True)
        if journal != OFF:
            expect_worker(controller, replace(before.spec, name=job), node, before, ahead=True)
    return StartedJob(job, controller, journal, calls)


def _end(started: StartedJob) -> None:
    try:
        started.calls.kill(started.controller)
    except ClusterError:  # it ended with the connection to Ray
        return


def _end_in_background(started: list[StartedJob]) -> None:
    """End what nobody will use, in another thread: the garbage collector may run with any lock held."""
    if started:
        _thread.start_new_thread(_end, (started.pop(),))


_counting = threading.Lock()
"""Guards `_newest`."""
_newest: weakref.WeakKeyDictionary[NextJob, None] = weakref.WeakKeyDictionary()
"""Those that have something, the newest last."""
_ending = threading.Event()
"""This program ends."""
_starting: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _stop_starting() -> None:
    _ending.set()
    for thread in list(_starting):
        thread.join()


# Registered after Ray's own (Ray is imported above), so that it runs before: no call of Ray is open at its end.
atexit.register(_stop_starting)
