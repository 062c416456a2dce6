"""The instruction to start a worker, apart from the others: what keeps workers imports little, so as to start soon."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.room import DatasetRooms, Placement


@dataclass(frozen=True)
class StartWorker:
    """Start a worker, unless the controller's process before this one has, and follow it to its end."""

    worker: str
    placement: Placement
    host: str
    """The trainer's node that it must run on; empty for remote workers."""
    sharing: int
    """Workers of the job that share that node."""
    reserve: bool = True
    """Reserve CPUs for it; if not, it runs beside whatever has them."""
    remote_io: float | None = None
    """Bytes a second that it may read of object stores until it is told; None: as many as it can."""
    cache_limits: DatasetRooms = ()
    """What its node may keep of each dataset, until it is told; empty: nobody bounds that."""

    whole_plan: bool = False
    """It leaves nothing of the plan to the trainer: one before it has met an element for which that cannot be."""
    accelerator: bool = False
    """It leaves images to the trainer's accelerator."""

    @property
    def number(self) -> int:
        """Its number among the workers of its placement, with which its name ends."""
        # The last part alone, because the name of the job may have the same character
        # (`WorkerTable.request`).
        return int(self.worker.rpartition("-")[2])
