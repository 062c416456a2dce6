"""What training costs, and which part of it is wasted.

Pecan's model (§6.1): cost = t (c_a n_a + c_w n_w).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Dollars of a stretch of training."""

    host: float
    """The trainers' hosts with their accelerators."""
    remote: float
    """The remote workers."""
    wasted: float
    """Of the total, what was paid while the trainers waited for input."""
    transfer: float = 0.0
    """The batches that remote workers have sent; known of a whole job."""

    @property
    def total(self) -> float:
        """Everything together."""
        return self.host + self.remote + self.transfer

    @property
    def wasted_share(self) -> float:
        """Share of the total that was paid for waiting; 0 if nothing was paid."""
        return self.wasted / self.total if self.total else 0.0
