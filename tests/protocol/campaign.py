"""Many histories, and what they have shown together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.protocol.draw import draw
from tests.protocol.going_on import play_in_pieces
from tests.protocol.world import HistoryOutcome, play


@dataclass
class Summary(HistoryOutcome):
    """Sums over histories."""

    histories: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """By seed."""

    def add(self, other: HistoryOutcome) -> None:
        """Take the sums of other histories in."""
        for name, held in vars(other).items():
            if isinstance(held, (Counter, dict)):
                getattr(self, name).update(held)
            elif name != "failure":
                setattr(self, name, max(self.excess, held) if name == "excess" else getattr(self, name) + held)

    def text(self) -> str:
        """Write the sums in lines."""
        faults, endings = (
            ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
            for counts in (self.faults, self.endings)
        )
        return (
            f"{self.histories:,} histories, {self.events:,} events, {self.seconds / 3600:,.1f} virtual hours, "
            f"{self.batches:,} batches used\nfaults: {faults}\nhow training loops ended: {endings}\n"
            f"queues were above prefetch_bytes by {self.excess:.2f} messages for each worker at most\n"
            f"{len(self.failures)} failures"
        )


def play_seeds(seeds: Iterable[int], *, in_pieces: bool = False, hurt_controller: bool = False) -> Summary:
    """Play the histories of some seeds.

    `in_pieces`: those that have states, in several runs; `hurt_controller`: with controllers that are killed and stand
    still, in each.
    """
    summary = Summary()
    for seed in seeds:
        outcome = play_in_pieces(seed) if in_pieces else play(draw(seed, hurt_controller=hurt_controller))
        if outcome is not None:
            summary.add(outcome)
            summary.histories += 1
            if outcome.failure:
                summary.failures[seed] = outcome.failure
    return summary
