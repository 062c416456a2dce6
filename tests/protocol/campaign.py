"""Many histories, and what they have shown together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.protocol.draw import draw
from tests.protocol.going_on import play_in_pieces
from tests.protocol.world import play


@dataclass
class Summary:
    """Sums over histories."""

    histories: int = 0
    events: int = 0
    batches: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    """By seed."""
    excess: float = 0.0
    """By how many messages for each worker a queue was above its bound at most."""

    def add(self, other: Summary) -> None:
        """Take the sums of other histories in."""
        self.histories += other.histories
        self.events += other.events
        self.batches += other.batches
        self.virtual_s += other.virtual_s
        self.faults.update(other.faults)
        self.endings.update(other.endings)
        self.failures |= other.failures
        self.excess = max(self.excess, other.excess)

    def text(self) -> str:
        """Write the sums in lines."""
        faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        endings = ", ".join(f"{how} {count:,}" for how, count in sorted(self.endings.items()))
        lines = [
            f"{self.histories:,} histories, {self.events:,} events, {self.virtual_s / 3600:,.1f} virtual hours, "
            f"{self.batches:,} batches used",
            f"faults: {faults}",
            f"how training loops ended: {endings}",
            f"queues were above prefetch_bytes by {self.excess:.2f} messages for each worker at most",
            f"{len(self.failures)} failures",
        ]
        return "\n".join(lines)


def play_seeds(seeds: Iterable[int], *, in_pieces: bool = False, hurt_controller: bool = False) -> Summary:
    """Play the histories of some seeds.

    `in_pieces`: those that have states, in several runs; `hurt_controller`: with controllers that are killed and stand
    still, in each.
    """
    summary = Summary()
    for seed in seeds:
        outcome = play_in_pieces(seed) if in_pieces else play(draw(seed, hurt_controller=hurt_controller))
        if outcome is not None:
            failures = {seed: outcome.failure} if outcome.failure else {}
            sums = outcome.events, outcome.batches, outcome.seconds, outcome.faults, outcome.endings
            summary.add(Summary(1, *sums, failures, outcome.excess))
    return summary
