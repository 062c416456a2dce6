"""A controller's actor: what Ray starts, and what trainers, workers and those who look on call.

Whoever has a handle of an actor imports its class: this one imports little, and what a controller works with is
imported in its own process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pecan_ray.by_value import NamedArrays
    from pecan_ray.engines.counting import OpCount
    from pecan_ray.errors import PecanError
    from pecan_ray.job.job_views import JobView, LiveJob
    from pecan_ray.job.messages import WorkerProgress
    from pecan_ray.job.stats import JobStats
    from pecan_ray.plan.op_sequences import OpOrders
    from pecan_ray.plan.splits import Split


# Why it imports nothing by itself:
# docs/decisions/running-on-ray.md#67-the-first-worker-starts-early
class AutoPlacementController:
    """The actor around a job's controller; run as a named one in the namespace `pecan`."""

    def __init__(self, name: str, journal: str | None) -> None:
        """`journal`: its folder, or a bucket, as in `Config`."""
        from pecan_ray.runtime.controller import JobController  # in this process alone

        self._process = JobController(name, journal)

    async def watch(self) -> None:
        """Go on with a job whose controller was lost, though nobody calls; end where no job comes."""
        await self._process.watch()

    async def wait_until_lost(self) -> None:
        """Hold a call of what keeps the workers, which fails when this process is lost."""
        await self._process.wait_until_lost()

    async def open(self, job: bytes, arrays: NamedArrays) -> None:
        """Begin with a job, pickled, unless another trainer has sent it; `arrays`: what its sources name."""
        await self._process.open(job, arrays)

    async def arrays(self) -> list[Any]:
        """Return the object, in a list, that holds the large arrays of the job's sources."""
        return await self._process.arrays()

    async def split(self, branch: int, index: int) -> Split:
        """Return a split of a source, which names its elements."""
        return await self._process.split(branch, index)

    async def register(
        self, rank: int, incarnation: str, node: str, described: tuple[tuple[str, str], ...], process: str = ""
    ) -> bool:
        """Add a trainer; with the last one the job begins.  Raises PecanError if it cannot take part."""
        return await self._process.register(rank, incarnation, node, described, process)

    async def yield_to_run(self, incarnation: str) -> None:
        """Raise why another run of this job's name cannot begin; end, where the trainers of this one are gone."""
        await self._process.yield_to_run(incarnation)

    async def listen(self, rank: int, incarnation: str, number: int, met: int) -> bytes:
        """Return a trainer's orders, pickled, as soon as they differ from the ones with that number."""
        return await self._process.listen(rank, incarnation, number, met)

    async def report(self, pickled: bytes) -> bytes:
        """Take a trainer's report; return its orders, pickled."""
        return await self._process.report(pickled)

    async def leave(
        self, rank: int, incarnation: str, unused: int, finished: bool = False, keep: bool = False
    ) -> tuple[JobStats, bool]:
        """Take a trainer off the job that has so many batches which it will not use."""
        return await self._process.leave(rank, incarnation, unused, finished, keep)

    async def claim(self) -> bool:
        """Tell whether another job may begin in these processes."""
        return await self._process.claim()

    async def resume_point(self, batches: int, early: bool = False) -> bytes:
        """Return where the job stands after so many batches of each trainer, pickled; None before they were told of."""
        return await self._process.resume_point(batches, early)

    async def begin(
        self,
        plan: bytes | None,
        order: OpOrders,
        row_s: float | None = None,
        op_seconds: tuple[tuple[str, float], ...] = (),
        decoders: tuple[str, ...] = (),
        order_text: str = "",
    ) -> None:
        """Let work begin, with the plan in that order (None: as it is written); the first trainer decides."""
        await self._process.begin(plan, order, row_s, op_seconds, decoders, order_text)

    async def change_plan(
        self, plan: bytes, order: OpOrders, message: str, decoders: tuple[str, ...], order_text: str
    ) -> None:
        """Run another order of the operators from the next epoch on that has not begun."""
        await self._process.change_plan(plan, order, message, decoders, order_text)

    async def drop_order(self, message: str) -> None:
        """Let all workers run the operators as the user wrote them, from now on."""
        await self._process.drop_order(message)

    async def scale(self, local: int, remote: int) -> None:
        """Fix the numbers of workers, as a trainer asks: from now on nothing else changes them."""
        await self._process.scale(local, remote)

    async def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Bound what all workers together read of object stores, from now on."""
        await self._process.set_remote_io(bytes_per_s)

    async def ask(self, pickled: bytes) -> bytes:
        """Answer a worker's question, pickled as it is itself, as soon as there is an answer."""
        return await self._process.ask(pickled)

    async def note_progress(self, worker: str, progress: WorkerProgress, counts: Mapping[str, OpCount]) -> None:
        """Note what a worker has done so far."""
        await self._process.note_progress(worker, progress, counts)

    async def failed(self, worker: str, error: PecanError, row: int | None = None) -> bool:
        """End the job with a worker's error, or go on, in the user's order; False while rows before it are to come."""
        return await self._process.failed(worker, error, row)

    async def plan(self, version: int) -> bytes:
        """Return a version of the plan, pickled."""
        return await self._process.plan(version)

    async def pool_requests(self) -> bytes:
        """Return what this job bids for nodes that others may want as well, pickled."""
        return await self._process.pool_requests()

    async def make_room(self, job: str) -> None:
        """Give up a worker for another job, if this one may."""
        await self._process.make_room(job)

    async def end_idle(self) -> None:
        """End these processes, if their job has ended: another one wants the place."""
        await self._process.end_idle()

    async def stats(self) -> JobStats | None:
        """Return the facts of the job so far; None: it has ended, and another one may follow."""
        return await self._process.stats()

    async def live(self) -> LiveJob | None:
        """Return how the job is at this moment; None: it has ended, and another one may follow."""
        return await self._process.live()

    async def view(self) -> JobView:
        """Return what a page about the job shows, which is bounded."""
        return await self._process.view()

    async def cost_so_far(self) -> float | None:
        """Return the dollars that the job has cost so far; None where no prices were given."""
        return await self._process.cost_so_far()

    async def op_counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators in the first epoch, over all workers."""
        return await self._process.op_counts()

    async def process_id(self) -> int:
        """Return the process id, for those who want to look at it from outside."""
        return os.getpid()
