"""What happened in a job, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.messages import Event


@dataclass(frozen=True)
class Report:
    """Facts about a job; `str()` gives them as text."""

    job: str
    seconds: float
    batches: int
    elements: int
    waited_s: float = 0.0
    """Seconds in which the trainer waited for a batch."""
    first_batch_s: float | None = None
    bytes: int = 0
    epochs: int = 0
    bad_elements: int = 0
    left_out_elements: int = 0
    """Elements of dropped remainders, and what could not be shared equally among trainers."""
    workers_lost: int = 0
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per worker: placement, elements and batches produced."""
    events: tuple[Event, ...] = ()

    @classmethod
    def of_job(cls, facts: dict[str, Any], client: BatchClient) -> Report:
        """Combine the controller's facts with what a client has seen."""
        workers = {
            name: {"placement": placement, "elements": stats.elements, "batches": stats.batches}
            for name, (placement, stats) in facts.get("workers", {}).items()
        }
        return cls(
            job=facts["job"],
            seconds=float(facts.get("seconds", client.elapsed_s)),
            batches=client.yielded,
            elements=client.rows,
            waited_s=client.waited_s,
            first_batch_s=client.first_batch_s,
            bytes=int(facts.get("bytes", 0)),
            epochs=int(facts.get("epochs", 0)),
            bad_elements=int(facts.get("bad_elements", 0)),
            left_out_elements=int(facts.get("left_out_elements", 0)),
            workers_lost=int(facts.get("workers_lost", 0)),
            workers=workers,
            events=tuple(facts.get("events", ())),
        )

    @classmethod
    def of_debug(cls, name: str, batches: int, elements: int, seconds: float) -> Report:
        """Report a run without workers."""
        return cls(job=f"{name} (debug, in this process)", seconds=seconds, batches=batches, elements=elements)

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        lines = [
            f"pecan job {self.job}: {self.batches} batches, {self.elements} elements in {self.seconds:.1f} s "
            f"({self.batches / seconds:.1f} batches/s, {self.elements / seconds:.0f} elements/s)",
            f"  the trainer waited {self.waited_s:.1f} s ({100 * self.waited_s / seconds:.0f}%) for input"
            + (f", {self.first_batch_s:.1f} s of it for the first batch" if self.first_batch_s is not None else ""),
        ]
        for name, worker in self.workers.items():
            lines.append(
                f"  {name} ({worker['placement']}): {worker['elements']} elements in {worker['batches']} batches"
            )
        if self.bad_elements:
            lines.append(f"  {self.bad_elements} bad elements were left out (on_error)")
        if self.left_out_elements:
            lines.append(f"  {self.left_out_elements} elements of remainders were left out")
        lines += [f"  {event.seconds:7.1f} s  {event.text}" for event in self.events]
        return "\n".join(lines)
