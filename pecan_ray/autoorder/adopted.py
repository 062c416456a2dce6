"""What AutoOrder has found: the orders that it adopted and refused, and why."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.autoorder.facts import StretchSample
from pecan_ray.autoorder.trial import OpOrder, SpeedComparison
from pecan_ray.plan.operators import Plan
from pecan_ray.reorder import Mode, Move, OrderPlan


@dataclass(frozen=True)
class Refused:
    """An order that was proposed and not adopted."""

    order: OpOrder
    reason: str


@dataclass(frozen=True)
class StretchOrder:
    """What became of one stretch of operators."""

    sample: StretchSample
    adopted: OrderPlan
    """The order to run, which may be the user's."""
    proposed: OrderPlan
    """What the policy answered first."""
    measured: SpeedComparison | None = None
    """The user's order against the adopted one; None: it is the user's, or there was no time."""
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> OpOrder:
        """The operators in the user's order."""
        return tuple(op.name for op in self.sample.ops)


@dataclass(frozen=True)
class Ordering:
    """A plan in its new order, and everything that was found on the way."""

    before: Plan
    plan: Plan
    mode: Mode
    stretches: tuple[StretchOrder, ...] = ()
    """Those that were sampled."""
    seconds: float = 0.0
    """How long it took."""
    notes: tuple[str, ...] = ()
    failed: bool = False
    """Whether the sample ended with an error."""

    @property
    def changed(self) -> bool:
        """Whether any operator has moved."""
        return any(stretch.adopted.changed for stretch in self.stretches)

    def op_seconds(self) -> tuple[tuple[str, float], ...]:
        """Return the seconds that each operator took of an element of the source, in the sample's order.

        Empty where not all were measured: shares of the time would be wrong.
        """
        samples = [stretch.sample for stretch in self.stretches]
        if not samples or any(sample.seconds is None for sample in samples):
            return ()
        return tuple(
            (op.name, (op.seconds or 0.0) * op.elements_in / sample.elements) for sample in samples for op in sample.ops
        )

    def summary(self) -> str:
        """Say in one line what was reordered; empty if nothing was even tried."""
        if self.failed:
            return self.notes[0]
        if not self.stretches:
            return ""
        told = [_told(stretch) for stretch in self.stretches if stretch.adopted.changed]
        sampled = max(stretch.sample.elements for stretch in self.stretches)
        reasons = [stretch.refused[0].reason for stretch in self.stretches if stretch.refused]
        why = f": {reasons[0]}" if reasons else ""
        text = "; ".join(told) if told else f"AutoOrder left the order as it is written{why}"
        return f"{text} (sampled {sampled} elements in {self.seconds:.1f} s)"


def _told(stretch: StretchOrder) -> str:
    """Say what moved in a stretch, and what that gains."""
    plan = stretch.adopted
    moves = ", ".join(f"{move.name} {_where(plan, move)}" for move in plan.moves)
    gains = [f"{plan.expected_speedup:.1f}x expected"] if plan.expected_speedup else []
    if stretch.measured is not None:
        gains.append(f"{stretch.measured.speedup:.1f}x measured on {stretch.measured.elements} elements")
    return f"AutoOrder moved {moves}" + (f" ({', '.join(gains)})" if gains else "")


def _where(plan: OrderPlan, move: Move) -> str:
    place = plan.order.index(move.name)
    if move.to < move.from_:
        return f"before {plan.order[place + 1]}"
    return f"behind {plan.order[place - 1]}"
