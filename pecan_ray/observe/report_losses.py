"""What of a job's data its training loop has not had, and who was waited for."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.stats import JobLosses
from pecan_ray.sampling.budget import BadCount

HELD_UP_SHARE = 0.01
"""The text names ranks that others waited for during this share of the time: what is below it nobody would mend."""


@dataclass(frozen=True, kw_only=True)
class LossReport(JobLosses):
    """What a job has lost, and what this trainer has not kept of it."""

    unkept_elements: int = 0
    """Bad elements that this trainer was told of and could not write to the quarantine file."""

    def loss_lines(self, seconds: float) -> list[str]:
        """Return the lines about them of a report's text; `seconds`: of the job."""
        facts = [
            (self.bad_elements, self.bad_text()),
            (self.unkept_elements, f"{self.unkept_elements} of them could not be written to the quarantine file"),
            (self.left_epochs, f"{self.left_epochs} of the epochs were left before their ends"),
            (self.left_out_elements, f"{self.left_out_elements} elements of remainders were left out"),
            (self.dropped_elements or self.dropped_open_ends, self.dropped_text()),
        ]
        lines = [f"  {text}" for count, text in facts if count]
        slow = {rank: held_s for rank, held_s in enumerate(self.held_up) if held_s >= HELD_UP_SHARE * seconds}
        return lines + [
            f"  rank {rank} held the others up for {held_s:.1f} s: it had not received its batch of a round"
            for rank, held_s in sorted(slow.items(), key=lambda one: -one[1])
        ]

    def bad_text(self) -> str:
        """Say how many elements were bad, and how well that is known."""
        count = BadCount(self.bad_elements, self.bad_estimated, self.bad_open_ends)
        why = [f"{self.bad_estimated} of them are an estimate"] * (self.bad_estimated > 0)
        why += [f"nothing tells how many the rest of {self.bad_open_ends} broken splits held"] * (
            self.bad_open_ends > 0
        )
        return f"{count} bad elements were left out (on_error)" + (f": {', and '.join(why)}" if why else "")

    def dropped_text(self) -> str:
        """Say what went with workers where data is visited at most once."""
        rest = f" and the rest of {self.dropped_open_ends} splits of unknown length" * bool(self.dropped_open_ends)
        return f'{self.dropped_elements} elements{rest} were dropped with their workers (visitation="at_most_once")'
