"""The answer of AutoOrder: an order, and a reason for everything that moved, or may not move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def fixed_ops(ops: Iterable[ProfiledOp]) -> tuple[Fixed, ...]:
    """Return the ops that keep their place, with the reasons (Pecan §5.2)."""
    return tuple(Fixed(op.name, op.fixed_reason) for op in ops if op.fixed_reason)


def ops_to_move(
    ops: Sequence[ProfiledOp], section: range, order: Sequence[int], neutral_band: float = 0.0
) -> list[int]:
    """Return the ops whose moving turns the section into `order`, in the user's order.

    The others, which only make room, form a rising subsequence: the one with the most neutral ops, since those are
    never the cause, and of several the longest.
    """
    # One neutral op weighs more than all others together, so the number of ops decides only between equals.
    neutral = len(section) + 1
    # The heaviest rising subsequence, in O(n^2): sections have a handful of ops.
    chains: list[tuple[int, tuple[int, ...]]] = []
    for index in order:
        before = [chain for chain in chains if chain[1][-1] < index]
        weight, chain = max(before, key=lambda one: one[0], default=(0, ()))
        weight += neutral if ops[index].comparison_result(neutral_band) == "neutral" else 1
        chains.append((weight, (*chain, index)))
    _, stay = max(chains, key=lambda one: one[0], default=(0, ()))
    return [index for index in section if index not in stay]


def moves_with_reason(
    ops: Sequence[ProfiledOp], section: range, order: Sequence[int], neutral_band: float = 0.0
) -> list[Move]:
    """Return the section's moves with their reasons, in the user's order."""
    moved = ops_to_move(ops, section, order, neutral_band)
    out = []
    for index in moved:
        place = order.index(index)
        # It overtook the op that made room below it, or else fell behind the one above.
        below = next((one for one in order[place + 1 :] if one not in moved), -1)
        up = 0 <= below < index
        neighbour = below if up else next(one for one in reversed(order[:place]) if one not in moved)
        reason = _reason(ops[index], ops[neighbour], up=up, neutral_band=neutral_band)
        out.append(Move(ops[index].name, index, section.start + place, reason))
    return out


def _reason(op: ProfiledOp, neighbour: ProfiledOp, *, up: bool, neutral_band: float) -> str:
    where = f"{'before' if up else 'after'} {neighbour.name!r}"
    comparison_result = op.comparison_result(neutral_band)
    factor = f"factor {op.inflation:.3g}"
    if up and comparison_result == "deflates":
        return f"makes the data smaller ({factor}): runs earlier, {where}"
    if not up and comparison_result == "inflates":
        return f"makes the data larger ({factor}): runs later, {where}"
    if not up and op.custom_dtype_cast:
        return f"casts to a type with which CPUs compute slowly ({factor}): runs later, {where}"
    return f"the pipeline is estimated to be faster with it {where} ({factor})"
