"""The workers of a running job, as a test meets them: which there are, who is at work, and how one is lost."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

import pecan_ray as pecan
from tests.ray.conftest import living_actors
from tests.ray.waiting import until

ONE_BY_ONE: dict[str, Any] = {"prefetch_bytes": 1}
"""The trainer holds a message or two of each worker, so that whoever is lost before the end leaves work for others."""


def living_worker(placement: str, but: list[str]) -> str:
    """Wait for a worker that answers, besides some; return its name.  Ray lists killed ones for a moment longer."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [name for name in living_actors() if f":{placement}-" in name and name not in but]
        return bool(found) and answers(found[0])

    until(look, f"no {placement} worker")
    return found[0]


def answers(name: str) -> bool:
    """Tell whether a worker's process runs."""
    try:
        process_of(name)
    except (ValueError, ray.exceptions.RayActorError):
        return False
    return True


def process_of(name: str) -> int:
    """Return a worker's process, once it runs."""
    actor: Any = ray.get_actor(name, namespace="pecan")
    placed: tuple[str, int] = ray.get(actor.placed.remote())
    return placed[1]


def kill(name: str) -> None:
    """Kill a worker's process, once it runs."""
    os.kill(process_of(name), signal.SIGKILL)


def controller(job: str) -> Any:
    """Return the actor that controls a job."""
    return ray.get_actor(f"pecan:{job}:controller", namespace="pecan")


def controller_process(job: str) -> int:
    """Return the controller's process, once there is one that answers."""
    found: list[int] = []

    def there() -> bool:
        try:
            found.append(ray.get(controller(job).process_id.remote()))
        except ray.exceptions.ActorUnavailableError:
            return False
        return True

    until(there, "the controller does not come again")
    return found[-1]


def kill_controller(job: str) -> int:
    """Kill the controller's process; return its number."""
    os.kill(pid := controller_process(job), signal.SIGKILL)
    return pid


def lose(batches: pecan.Batches, name: str) -> None:
    """Kill a worker's process and wait until the job knows; the job must be one that does not end meanwhile."""
    before = batches.report().workers_lost
    kill(name)
    until(lambda: batches.report().workers_lost > before, f"{name} was killed, and the job does not know")


def maker(batches: pecan.Batches) -> str:
    """Return who made the batch that was yielded last."""
    assert batches.provenance is not None
    return batches.provenance.worker


def told(report: Any) -> str:
    """Return what a job has told of itself."""
    return "\n".join(event.text for event in report.events)


@dataclass(frozen=True)
class Together:
    """A function that gives nothing back before so many processes have called it: none of them does all the work."""

    folder: Path
    processes: int

    def __call__(self, value: Any) -> Any:
        (self.folder / str(os.getpid())).touch()
        until(lambda: len(os.listdir(self.folder)) >= self.processes, "too few workers have an element")
        return value
