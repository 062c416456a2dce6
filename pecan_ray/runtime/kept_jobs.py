"""Processes of a pipeline's last job, in which the next pass over it begins, if it comes soon.

A start takes 3 to 5 s: Ray starts three processes, each of which imports this library.  The controller of a job that
has ended well waits for another one for a while, and so do the workers that such a job asks for first
(`runtime/idle_processes.py`).  Decision 172: they are claimed before the next job has a name, and all or nothing.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import ray

from pecan_ray.errors import ClusterError
from pecan_ray.options import Config, IterOptions
from pecan_ray.runtime.actor_place import cpus_without_actors
from pecan_ray.runtime.calls import Calls
from pecan_ray.runtime.cluster import local_selector
from pecan_ray.runtime.journal_file import OFF

logger = logging.getLogger("pecan_ray")

CLAIM_S = 5.0
"""Processes that have not answered by then are given up: a start takes little longer, on a machine that is so busy."""
MOST_KEPT = 3
"""Jobs of a program whose processes wait, the newest: for training, validation and test."""


@dataclass(frozen=True)
class KeptJob:
    """The processes of a job that has ended."""

    job: str
    """Its name, and that of the next one."""
    controller: Any
    calls: Calls
    """The connection to Ray with which it was begun."""
    journal: object
    """Of its `Config`: where its controller keeps its journal."""
    trainer: int
    """The id of the process whose job it was: a forked one leaves it alone."""

    def claim(self) -> bool:
        """Tell whether another job may begin in these processes."""
        try:
            return self.trainer == os.getpid() and bool(
                self.calls.result(self.calls.begin(self.controller.claim), CLAIM_S)
            )
        except (ClusterError, ray.exceptions.RayError, TimeoutError) as error:
            logger.info("job %s: the next pass begins in new processes: %s", self.job, error)
            return False

    def end(self) -> None:
        """End these processes."""
        if self.trainer == os.getpid():
            with contextlib.suppress(ClusterError):  # they have ended with the connection to Ray
                self.calls.kill(self.controller)


@dataclass(frozen=True)
class JobProcesses:
    """Where one job runs."""

    job: str
    """Its name."""
    controller: Any = None
    """In whose process it begins; None: in a new one."""
    keep: Callable[[KeptJob], None] | None = None
    """Lets another job follow in the same processes; None: that cannot be."""
    journal: object = None

    def kept_by(self, controller: Any) -> None:
        """Keep what runs with this controller, whose job has ended."""
        if self.keep is not None:
            self.keep(KeptJob(self.job, controller, Calls(), self.journal, os.getpid()))


class KeptJobs:
    """Those of a pipeline and of those derived from it: one for each kind."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        # At the interpreter's end the controller ends with this process, which owns it.
        weakref.finalize(self, _end_in_background, self._number).atexit = False

    # A copy in another process has no jobs of this one.
    def __reduce__(self) -> tuple[type[KeptJobs], tuple[()]]:
        return KeptJobs, ()

    def begin(self, kind: Hashable, pipeline: str, options: IterOptions, config: Config) -> JobProcesses:
        """Return where a job of a kind begins: in the processes of the one before, if they wait.

        A job of a name that the user has given, of several trainers or of a shared group, and one without a journal,
        begins in processes of its own, and leaves none.
        """
        other = options.world_size > 1 or options.job or options.share or config.journal == OFF
        # The default name of the file of bad elements is that of the job.
        if other or options.on_error == "quarantine":
            return JobProcesses(job_name(pipeline, options))
        keep, journal = functools.partial(self._keep, kind), config.journal
        with _lock:
            kept = _kept.pop((self._number, kind), None)
        # A controller's journal lies where it was told when it was started.
        if kept is not None and kept.journal == journal and kept.claim():
            return JobProcesses(kept.job, kept.controller, keep, journal)
        if kept is not None:
            kept.end()
        return JobProcesses(job_name(pipeline, options), None, keep, journal)

    def _keep(self, kind: Hashable, kept: KeptJob) -> None:
        with _lock:
            ended = [_kept.pop((self._number, kind))] if (self._number, kind) in _kept else []
            _kept[self._number, kind] = kept
            ended += [_kept.pop(key) for key in [*_kept][:-MOST_KEPT]]
        # Outside of the lock, because it asks Ray.
        for one in ended:
            one.end()


def job_name(name: str, options: IterOptions) -> str:
    """Return the name of the job that a pipeline of a name begins, or joins."""
    if options.job:
        return options.job
    if options.world_size == 1:
        return f"{name}-{os.getpid():x}{secrets.token_hex(2)}"
    _runs[name] = _runs.get(name, 0) + 1
    return f"{name}-shared-{_runs[name]}"


def make_way(node: str, cpus: float) -> None:
    """End what waits in this program, where a worker that takes so many CPUs has no place beside it on a node."""
    if _kept and all(unused < cpus for unused, _ in cpus_without_actors(local_selector(node)).values()):
        end_kept()


def end_kept() -> None:
    """End all processes of this program that wait for a job."""
    _end_of(None)


def _end_of(number: int | None) -> None:
    """End what one of them keeps; None: all."""
    with _lock:
        ended = [_kept.pop(key) for key in [*_kept] if number in (None, key[0])]
    for one in ended:
        one.end()


def _end_in_background(number: int) -> None:
    """End what nobody will use, in another thread: the garbage collector may run with any lock held."""
    # A copy, and no lock: the thread in which garbage is collected may hold that.
    if any(key[0] == number for key in [*_kept]):
        _thread.start_new_thread(_end_of, (number,))


_runs: dict[str, int] = {}
"""How often this process has begun a shared job of a name: ranks that run the same program agree on it."""
_numbers = itertools.count()
_lock = threading.Lock()
"""Guards what is kept."""
_kept: dict[tuple[int, Hashable], KeptJob] = {}
"""By the number of who keeps it, and its kind; the newest last."""
