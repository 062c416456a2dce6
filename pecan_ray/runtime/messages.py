"""What controller, workers and clients hand each other beside the values of `pecan_ray.job.messages`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pecan_ray.engines.contract import BadElement
from pecan_ray.job.messages import LeftOutElement, Placement
from pecan_ray.job.spec import JobSpec
from pecan_ray.options import Config, EngineName, IterOptions
from pecan_ray.plan.shape import PlanShape


@dataclass(frozen=True)
class Job:
    """One run of a pipeline, as its actors know it."""

    spec: JobSpec
    plan: bytes
    """The plan, pickled by cloudpickle."""
    sources: bytes
    """Its sources alone: the controller lists them, and needs no framework that the functions import."""
    shape: PlanShape
    engine: EngineName
    seed: int
    options: IterOptions
    config: Config
    look_again: bool = False
    """The trainer looks at the order of operators again after the first epoch."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that has started."""

    name: str
    node_id: str
    pid: int
    handle: Any = field(compare=False)
    """Its Ray actor handle."""
    placement: Placement = "local"


def left_out(bad: BadElement) -> LeftOutElement:
    """Return what the job must know of a bad element."""
    return LeftOutElement(bad.identity, bad.op, bad.where, bad.error, bad.elements_left_out)
