"""What mode "auto" sees of a simulated job: an observation as the live job makes it."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.job_sampler import TICK_S as TICK_S
from pecan_ray.placement.looks import Observation
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.contention import work_of
from pecan_ray.simulator.flow import Flow
from pecan_ray.simulator.workload import Workload

ROWS = 100
"""Of a batch: what workloads say is in batches."""


@dataclass(frozen=True)
class _Sums:
    at: float = 0.0
    waited: float = 0.0
    steps: int = 0
    local: int = 0
    remote: int = 0
    blocked: tuple[float, float] = (0.0, 0.0)
    present: tuple[float, float] = (0.0, 0.0)


class SimulatedLooks:
    """Looks at one job."""

    def __init__(self, workload: Workload, flow: Flow, started: float, *, ordered: bool) -> None:
        self._workload, self._flow = workload, flow
        self._before = _Sums(started)
        self.due = started + TICK_S
        """When to look next."""
        self.present = (0.0, 0.0)
        """Seconds of local and of remote workers so far."""
        here = workload.local
        self.row_s = work_of(here, ordered) / ROWS
        """CPU seconds of a row, as a sample says."""
        self._threads = here.cpus, workload.remote.cpus * work_of(here, ordered) / work_of(workload.remote, ordered)

    @property
    def batch(self) -> int:
        """Rows that all workers together make for a step, by one of the threads that a local worker has."""
        return round(ROWS * self._workload.clients / self._threads[0])

    def look(self, now: float, running: Deployment, asked: Deployment) -> Observation:
        """Return what has happened since the last look."""
        flow, workload, before = self._flow, self._workload, self._before
        flow.feed.produce_until(now)
        asks = min(client.requested_at for client in flow.clients)
        sums = _Sums(
            now,
            flow.waited + max(0.0, now - asks),
            flow.consumed,
            flow.feed.produced - flow.feed.received,
            flow.feed.received,
            flow.feed.blocked_by(now),
            self.present,
        )
        self._before, self.due = sums, now + TICK_S
        dt = sums.at - before.at
        blocked = [max(0.0, now - then) for now, then in zip(sums.blocked, before.blocked, strict=True)]
        present = [now - then for now, then in zip(sums.present, before.present, strict=True)]
        return Observation(
            dt=dt,
            running=running,
            requested=asked,
            room=Deployment(workload.max_local, workload.max_remote),
            waited=min(dt, max(0.0, sums.waited - before.waited)),
            rows=(sums.steps - before.steps) * workload.clients * ROWS,
            steps=sums.steps - before.steps,
            since_taken=now - flow.latest,
            produced=((sums.local - before.local) * ROWS, (sums.remote - before.remote) * ROWS),
            work_done=(max(0.0, present[0] - blocked[0]), max(0.0, present[1] - blocked[1])),
            blocked=(blocked[0], blocked[1]),
            own_s=self.row_s,
            threads=self._threads,
            start_remote_s=workload.nodes.start_s,
            grain=ROWS,
        )
