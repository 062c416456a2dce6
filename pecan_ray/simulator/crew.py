"""The workers of a simulated job, and what is known to happen to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.flow import NEVER


@dataclass
class SimulatedWorker:
    """A worker of the job."""

    placement: str
    requested_at: float = 0.0
    """When it was asked for."""
    time_factor: float = 1.0
    working: bool = False
    draining: bool = False
    granted: bool = False
    """It has a node, which is paid for."""


@dataclass
class Crew:
    """All workers that were asked for and are not gone."""

    members: dict[int, SimulatedWorker] = field(default_factory=dict)
    """By number."""
    events: list[tuple[float, int, str]] = field(default_factory=list)
    """A heap of (when, member, what) of what is known to happen to them."""
    requested: int = 0
    """Workers that were ever asked for."""

    def due(self) -> float:
        """Return when the next thing happens to a worker."""
        return self.events[0][0] if self.events else NEVER

    def plan(self, when: float, member: int, what: str) -> None:
        """Note what will happen to a worker."""
        heappush(self.events, (when, member, what))

    def pop_due(self, now: float) -> tuple[int, str] | None:
        """Return the next thing that has happened by now."""
        if self.events and self.events[0][0] <= now:
            _, member, what = heappop(self.events)
            return member, what
        return None

    def add(self, placement: str, now: float) -> int:
        """Add a worker that is to start; return its number."""
        number, self.requested = self.requested, self.requested + 1
        self.members[number] = SimulatedWorker(placement, now)
        return number

    def working(self, placement: str) -> int:
        """Count the workers that work, also those that are about to leave."""
        return sum(m.placement == placement and m.working for m in self.members.values())

    def not_draining(self, placement: str) -> int:
        """Count the workers that were asked for and not sent away."""
        return sum(m.placement == placement and not m.draining for m in self.members.values())

    def running(self, counts_draining: bool) -> Deployment:
        """Return what runs, in the eyes of a client."""
        here = [m.placement for m in self.members.values() if m.working and (counts_draining or not m.draining)]
        return Deployment(here.count("local"), here.count("remote"))

    def paid(self) -> int:
        """Count the remote workers that have a node."""
        return sum(m.granted and m.placement == "remote" for m in self.members.values())

    def coming(self) -> list[SimulatedWorker]:
        """Return the workers that were asked for and do not work yet."""
        return [m for m in self.members.values() if not m.working and not m.draining]

    def changes(self, now: float, patience_s: float) -> bool:
        """Tell whether workers drain, or may still come."""
        return any(m.draining for m in self.members.values()) or any(
            m.granted or m.placement == "local" or now - m.requested_at < patience_s for m in self.coming()
        )

    def excess(self, placement: str, count: int) -> list[int]:
        """Choose workers to let go: first those that have not begun, then the newest."""
        not_draining = [n for n, m in self.members.items() if m.placement == placement and not m.draining]
        return sorted(not_draining, key=lambda n: (not self.members[n].working, n), reverse=True)[:count]
