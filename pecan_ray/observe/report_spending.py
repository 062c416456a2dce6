"""What a job has cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from pecan_ray.placement import Cost, Prices

MOST_EPOCHS = 10
"""Newest epochs of which the text tells what they cost."""


@dataclass(frozen=True, kw_only=True)
class SpendingReport:
    """Dollars, where prices are known."""

    cost: Cost | None = None
    """At the prices of `AutoWorkers`; None where none were given."""
    epoch_costs: tuple[Cost, ...] = ()
    """Of the epochs that are over, the newest 1,000 of them; the very first one includes the start."""
    operator_costs: dict[str, float] = field(default_factory=dict)
    """$ that input has cost (remote workers, and hosts whose trainers waited), dealt to operators by the time that
    they took in AutoOrder's sample."""
    prices: Prices | None = None

    def spending_lines(self) -> list[str]:
        """Return the lines about them of a report's text."""
        lines = []
        if self.cost is not None:
            sent = f", ${self.cost.transfer:.4f} for what these have sent" if self.cost.transfer else ""
            lines.append(
                f"  ${self.cost.total:.4f} in all: ${self.cost.host:.4f} for hosts, ${self.cost.remote:.4f} for "
                f"remote workers{sent}; {100 * self.cost.wasted_share:.0f}% of it was paid while the trainer waited"
            )
        if self.epoch_costs:
            told = [f"${one.total:.4f}" for one in self.epoch_costs[-MOST_EPOCHS:]]
            which = "the last epochs" if len(told) < len(self.epoch_costs) else "epochs"
            lines.append(f"  {which} cost {', '.join(told)}")
        if self.operator_costs:
            dear = sorted(self.operator_costs.items(), key=lambda one: -one[1])
            lines.append(f"  what input cost, by operator: {', '.join(f'{name} ${paid:.4f}' for name, paid in dear)}")
        return lines
