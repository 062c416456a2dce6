"""Which workers a job had, and what they did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pecan_ray.job.messages import Placement
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.stats import JobEvent
from pecan_ray.job.windows import ObservedWindow
from pecan_ray.job.worker_size import cpus_at_work, size_advice
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Deployment


@dataclass(frozen=True)
class WorkerReport:
    """What one worker has produced; `worker["batches"]` is `worker.batches`, as in the report's JSON."""

    placement: Placement
    elements: int
    batches: int
    threads: int
    """At the end; 0: it has not said."""
    remote_bytes: int = 0
    """Read of object stores, and"""
    node_bytes: int = 0
    """of its node's disk instead."""
    stages: StageSeconds = field(default_factory=StageSeconds)
    """What its threads have done with their time."""
    hedged: int = 0
    """Reads of object stores that it has asked for twice, and"""
    hedges_won: int = 0
    """those that the second request has answered first."""
    sent_bytes: int = 0
    """Of its batches as they travelled, before the operators that are left to the trainer, as trainers count them."""

    peak_memory_bytes: int = 0
    """Most memory that its process has had, batches in shared memory included, and processes of functions not;
    0: not known."""

    @property
    def used_cpus(self) -> float:
        """CPUs that its process has used while it was at work and nothing held it back; 0: not known."""
        return cpus_at_work(self.stages)

    def __getitem__(self, name: str) -> Any:
        found: dict[str, Any] = asdict(self)
        return found[name]

    def as_text(self) -> str:
        """Say what it has produced, and read for that."""
        parts = [
            (True, f"{self.elements} elements in {self.batches} batches"),
            (self.sent_bytes, f"{self.sent_bytes / 1e6:,.1f} MB sent"),
            (self.threads, f"{self.threads} threads"),
            (self.used_cpus, f"{self.used_cpus:.2f} CPUs"),
            (self.peak_memory_bytes, f"{self.peak_memory_bytes / 1e6:,.0f} MB of memory at most"),
            (self.remote_bytes, f"{self.remote_bytes / 1e6:,.1f} MB from object stores"),
            (self.node_bytes, f"{self.node_bytes / 1e6:,.1f} MB of theirs from its node"),
            (self.hedged, f"{self.hedged} late reads asked for twice ({self.hedges_won} won)"),
        ]
        return ", ".join(text for known, text in parts if known)


@dataclass(frozen=True, kw_only=True)
class StaffReport:
    """Workers, hosts and trainers, and what became of them."""

    workers_lost: int = 0
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    """By the workers' names."""
    events: tuple[JobEvent, ...] = ()
    deployments: tuple[tuple[float, Deployment], ...] = ()
    """What ran from when on, in seconds since the job began."""
    remote_rates: tuple[float | None, ...] = ()
    """$ per hour of the remote workers of each deployment, by the nodes that they were on; None: not known."""
    timeline: tuple[PlacementStep, ...] = ()
    """Every window that AutoPlacement saw, and what it decided."""
    windows: tuple[ObservedWindow, ...] = ()
    """What was measured while the numbers of workers were fixed."""
    placement: str = ""
    """Which deployments AutoPlacement has compared, and why the others lost, in words."""
    hosts: int = 1
    cpus: float = 0.0
    """CPUs of these that the job may use; 0: not known."""
    cpus_per_worker: float = 0.0
    """What is reserved for a worker where AutoPlacement finds their numbers; 0 else."""
    trainers: int = 1

    def sent_bytes(self, placement: Placement) -> int:
        """Return the bytes of batches that workers beside the trainer, or remote ones, have sent."""
        return sum(one.sent_bytes for one in self.workers.values() if one.placement == placement)

    def sent_lines(self) -> list[str]:
        """Return the text's line about what workers have sent, where some are on other nodes."""
        local, remote = (self.sent_bytes(side) / 1e6 for side in ("local", "remote"))
        return [f"  batches: {remote:,.1f} MB from remote workers, {local:,.1f} MB from local ones"] if remote else []

    def size_lines(self) -> list[str]:
        """Return the text's line about what to reserve for a worker, where that is known and something else."""
        stages = sum((one.stages for one in self.workers.values()), StageSeconds())
        line = size_advice(stages, self.cpus_per_worker)
        return [f"  {line}"] if line else []

    def worker_lines(self) -> list[tuple[str, str]]:
        """Return the names of the workers, and the text's line about each."""
        return [(name, f"  {name} ({one.placement}): {one.as_text()}") for name, one in self.workers.items()]
