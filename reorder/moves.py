"""What changed between two orders, in words: who moved, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pecan_ray.reorder.order_plan import Move
from pecan_ray.reorder.profile import ProfiledOp


def movers(ops: Sequence[ProfiledOp], section: range, order: Sequence[int], neutral_band: float = 0.0) -> list[int]:
    """Return the ops whose moving turns the section into `order`, in the user's order.

    The others, which only make room, form a rising subsequence: the one with the most neutral ops, since those are
    never the cause, and of several the longest.
    """
    neutral = len(section) + 1
    chains: list[tuple[int, tuple[int, ...]]] = []
    for index in order:
        before = [chain for chain in chains if chain[1][-1] < index]
        weight, chain = max(before, key=lambda one: one[0], default=(0, ()))
        weight += neutral if ops[index].verdict(neutral_band) == "neutral" else 1
        chains.append((weight, (*chain, index)))
    _, stay = max(chains, key=lambda one: one[0], default=(0, ()))
    return [index for index in section if index not in stay]


def explained_moves(
    ops: Sequence[ProfiledOp], section: range, order: Sequence[int], neutral_band: float = 0.0
) -> list[Move]:
    """Return the section's moves with their reasons, in the user's order."""
    moved = movers(ops, section, order, neutral_band)
    below = _nearest(list(reversed(order)), set(moved))
    above = _nearest(order, set(moved))
    place = {index: number for number, index in enumerate(order)}
    out = []
    for index in moved:
        # It overtook the op that made room below it, or else fell behind the one above.
        up = 0 <= below[index] < index
        neighbour = below[index] if up else above[index]
        reason = _reason(ops[index], ops[neighbour], up=up, neutral_band=neutral_band)
        out.append(Move(ops[index].name, index, section.start + place[index], reason))
    return out


def _nearest(order: Iterable[int], moved: Collection[int]) -> dict[int, int]:
    """Return for each moved op the last one before it that made room; -1: none."""
    found: dict[int, int] = {}
    last = -1
    for index in order:
        if index in moved:
            found[index] = last
        else:
            last = index
    return found


def _reason(op: ProfiledOp, neighbour: ProfiledOp, *, up: bool, neutral_band: float) -> str:
    where = f"{'before' if up else 'after'} {neighbour.name!r}"
    verdict = op.verdict(neutral_band)
    factor = f"factor {op.inflation:.3g}"
    if up and verdict == "deflates":
        return f"makes the data smaller ({factor}): runs earlier, {where}"
    if not up and verdict == "inflates":
        return f"makes the data larger ({factor}): runs later, {where}"
    if not up and op.custom_dtype_cast:
        return f"casts to a type with which CPUs compute slowly ({factor}): runs later, {where}"
    return f"the pipeline is estimated to be faster with it {where} ({factor})"
