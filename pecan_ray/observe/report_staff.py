"""Which workers a job had, and what they did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pecan_ray.job.messages import Placement
from pecan_ray.job.stats import JobStaff, WorkerStats
from pecan_ray.job.worker_size import cpus_at_work, size_advice
from pecan_ray.plan.stage_seconds import SlowElements, StageSeconds

TELLING_SHARE = 0.05
"""Minimum share of the run in which the loop waited in line: below it slow elements are not told."""


def slow_elements_line(slow: SlowElements, in_line_s: float, seconds: float) -> str:
    """Say which elements rows in order wait for; empty where there are none, or nobody waits long for them.

    Args:
        slow: What workers have found.
        in_line_s: Seconds in which the loop waited for the next rows while later ones were here.
        seconds: Of the whole run.
    """
    if not slow.count or in_line_s < TELLING_SHARE * seconds:
        return ""
    return (
        f"slow elements: {slow.count} took more than 20 times as long as most others, {slow.seconds:.1f} s in all; the "
        f"slowest, {slow.worst}, took {slow.worst_s:.1f} s. The loop waited {in_line_s:.1f} s "
        f"({in_line_s / seconds:.0%} of the time) for the next rows while later ones were there: make these elements "
        'cheaper, or pass order="relaxed", which does not wait for them'
    )


@dataclass(frozen=True)
class WorkerReport(WorkerStats):
    """What one worker has produced; `worker["batches"]` is `worker.batches`, as in the report's JSON."""

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
class StaffReport(JobStaff):
    """Workers, hosts and trainers, and what became of them."""

    workers: dict[str, WorkerReport] = field(default_factory=dict)
    """By the workers' names."""
    placement: str = ""
    """Which deployments AutoPlacement has compared, and why the others lost, in words."""
    in_line_s: float = 0.0
    """Seconds in which the loop waited for the next rows while later ones were here, where rows come in order."""

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

    def slow_lines(self, seconds: float) -> list[str]:
        """Return the text's line about slow elements, if rows in order wait for some in a run of so many seconds."""
        stages = sum((one.stages for one in self.workers.values()), StageSeconds())
        line = slow_elements_line(stages.slow, self.in_line_s, seconds)
        return [f"  {line}"] if line else []

    def worker_lines(self) -> list[tuple[str, str]]:
        """Return the names of the workers, and the text's line about each."""
        return [(name, f"  {name} ({one.placement}): {one.as_text()}") for name, one in self.workers.items()]
