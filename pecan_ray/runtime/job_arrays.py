"""The large arrays of a job's sources: the controller puts them into Ray's object store, workers map them."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass, replace
from typing import Any

import ray

from pecan_ray.by_value import NamedArrays, loads_with_arrays
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.pickling import unpickle_here
from pecan_ray.runtime.worker_requests import retry


@dataclass(frozen=True)
class ReceivedJob:
    """A job as its controller has it."""

    job: Job
    pickled: bytes
    """It, for workers."""
    journaled: bytes
    """It with its arrays, for a controller after this one."""
    arrays: NamedArrays
    """What sources name."""
    put: Any
    """The object that holds these; None: there are none."""

    async def mapped(self) -> ReceivedJob:
        """Return it with the arrays as that object holds them, so that they are in memory once."""
        return self if self.put is None else replace(self, arrays=await self.put)


def receive(pickled: bytes, arrays: NamedArrays) -> ReceivedJob:
    """Take a job, pickled, that a trainer has sent with its arrays, or that its journal holds with them."""
    job: Job = unpickle_here(pickled, "a job that was sent to its controller")
    journaled = pickled
    if job.arrays:
        # Decision 132: with the arrays in the job, each worker would hold three times the data.
        arrays, job = job.arrays, replace(job, arrays={})
        pickled = pickle.dumps(job)
    elif arrays:
        journaled = pickle.dumps(replace(job, arrays=arrays))
    return ReceivedJob(job, pickled, journaled, arrays, ray.put(arrays) if arrays else None)


class MappedArrays:
    """The arrays of a job in a worker's process."""

    def __init__(self, job: Job, controller: Any) -> None:
        self._job, self._controller = job, controller
        self._mapped: NamedArrays = {}

    def loads(self, pickled: bytes) -> Any:
        """Unpickle a plan that names them."""
        return loads_with_arrays(pickled, self._get())

    def _get(self) -> NamedArrays:
        """Return them, mapped from what the node has of them."""
        # Again, because the object belongs to the controller's process, which may have been lost.
        while self._job.shares_arrays and not self._mapped:
            (put,) = retry(self._controller.arrays)
            with contextlib.suppress(ray.exceptions.ObjectLostError):  # the controller is another process by now
                self._mapped = ray.get(put)
        return self._mapped
