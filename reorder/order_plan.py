"""The answer of AutoOrder: an order, and a reason for everything that moved, stayed or was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from pecan_ray.reorder.profile import ProfiledOp

Mode: TypeAlias = Literal["strict", "safe", "pecan", "off"]


class Move(NamedTuple):
    """An op that changed place among its neighbours; those that only made room are not listed."""

    name: str
    from_: int
    """Its index in the user's pipeline (`from` is a word of Python)."""
    to: int
    """Its index in the new order."""
    reason: str


class Fixed(NamedTuple):
    """An op that AutoOrder may not move, nor anything across it."""

    name: str
    reason: str


@dataclass(frozen=True)
class OrderPlan:
    """An order of the ops, with its reasons."""

    ops: tuple[ProfiledOp, ...]
    """The ops in the user's order, as they were measured."""
    order: tuple[str, ...]
    """Names in the order to run."""
    mode: Mode
    moves: tuple[Move, ...] = ()
    fixed: tuple[Fixed, ...] = ()
    seconds_before: float | None = None
    """Estimated seconds per source element in the user's order, of the measured ops; None where ops that may
    move were not measured."""
    seconds_after: float | None = None
    """The same in the new order."""
    forbidden: frozenset[tuple[str, str]] = frozenset()
    """Pairs of ops that were not to be exchanged."""
    neutral_band: float = 0.0
    reason: str = ""
    """Of a plan that replaces another one: what changed."""

    @property
    def expected_speedup(self) -> float | None:
        """Seconds in the user's order over seconds in this one; None where they are not known."""
        if self.seconds_before is None or not self.seconds_after:
            return None
        return self.seconds_before / self.seconds_after

    @property
    def changed(self) -> bool:
        """Whether the order differs from the user's."""
        return self.order != tuple(op.name for op in self.ops)
