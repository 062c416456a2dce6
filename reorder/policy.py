"""AutoOrder: from profiled ops to an order and its reasons.

Modes:

- ``"pecan"``: Pecan's Algorithm 2 (`algorithm2`); where columns are known, an op still waits for those that it
  depends on (`dependencies`).
- ``"strict"`` and ``"safe"``: ops are moved, one at a time, as long as that makes the estimated time (`cost`) less, by
  exchanges of two ops that `commutes` allows.  Each exchange has to gain a share of all the time (`EXCHANGE_SHARE`), so
  that noise in what was measured does not decide.  The two differ in what commutes, which is not decided here.
- ``"off"``: the user's order.

Pure: nothing here runs an op.  Whoever calls runs the order on the sample before adopting it, and asks again, with
what has failed `forbidden`.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias, get_args

from pecan_ray.errors import PlanError
from pecan_ray.reorder.cost import CostModel, Needs
from pecan_ray.reorder.order_plan import Mode, Move, OrderPlan, fixed_ops, moves_with_reason
from pecan_ray.reorder.profile import ProfiledOp, check_ops, sections

Pair: TypeAlias = tuple[str, str]
Commutes: TypeAlias = Callable[[Pair], bool] | Collection[Pair]
"""Which two ops may be exchanged in modes "strict" and "safe": a question asked once, with names in the user's order,
or the pairs themselves, in any order."""
Constraint: TypeAlias = tuple[int, int]
"""Indices of ops: the first must stay before the second."""


def auto_order(
    ops: Iterable[ProfiledOp],
    mode: Mode = "pecan",
    *,
    commutes: Commutes = (),
    forbidden: Collection[Pair] = (),
    neutral_band: float = 0.0,
) -> OrderPlan:
    """Return the order to run, and why.

    `ops` are in the user's order.  `forbidden` are pairs that must not be exchanged (an exchange failed on the
    sample).  Factors within `neutral_band` of 1 count as 1: 0 is the paper's rule, `NEUTRAL_BAND` is right for sampled
    factors.

    Raises `PlanError` for unknown modes or names, and for two ops of one name.
    """
    ops = check_ops(ops)
    names = [op.name for op in ops]
    _check(names, mode, forbidden, neutral_band)
    model, order, moves = CostModel(ops, neutral_band), list(range(len(ops))), list[Move]()
    # Each pair is asked about once: an answer may cost runs on the sample.
    may = functools.cache(commutes if callable(commutes) else functools.partial(_among, commutes))
    for section in sections(ops) if mode != "off" else ():
        needs = [*dependencies(ops, section), *_forbidden(names, forbidden, section)]
        if mode == "pecan":
            # Algorithm 2 looks at factors alone; what would make the pipeline fail is taken out of it here.
            arranged = nearest_valid_order(algorithm2(ops, section, neutral_band), _needs(needs))
        else:
            arranged = _min_cost_order(names, model, section, needs, may)
        order[section.start : section.stop] = arranged
        moves += moves_with_reason(ops, section, arranged, neutral_band)
    return OrderPlan(
        ops=ops,
        order=tuple(names[index] for index in order),
        mode=mode,
        moves=tuple(moves),
        fixed=fixed_ops(ops),
        seconds_before=model.measured_total(range(len(ops))),
        seconds_after=model.measured_total(order),
        forbidden=frozenset((first, second) for first, second in forbidden),
        neutral_band=neutral_band,
    )


def revalidate(old: OrderPlan, new_ops: Iterable[ProfiledOp]) -> OrderPlan | None:
    """Return the plan of mode "pecan" for the next epoch, or None to go on with `old` (Pecan §5.2).

    `new_ops` are the same ops, in any order, with the factors of a whole pass in the order `old`.  A changed verdict
    changes the order.  What `old` was forbidden stays so.  The plan's `reason` says what changed; run it on the sample
    before adopting it.
    """
    found = {op.name: op for op in check_ops(new_ops)}
    if found.keys() != set(old.order):
        raise PlanError(f"revalidate: the plan has the ops {sorted(old.order)}, but got {sorted(found)}.")
    band = old.neutral_band
    ops = [found[op.name] for op in old.ops]
    reasons = [
        f"{new.name!r} {_describe_band(new, band)} (factor {new.inflation:.3g}), not {_describe_band(past, band)} "
        f"({past.inflation:.3g})"
        for past, new in zip(old.ops, ops, strict=True)
        if past.comparison_result(band) != new.comparison_result(band)
    ]
    new = auto_order(ops, "pecan", forbidden=old.forbidden, neutral_band=band)
    return replace(new, reason="; ".join(reasons)) if reasons and new.order != old.order else None


def _describe_band(op: ProfiledOp, band: float) -> str:
    return "is neutral" if op.comparison_result(band) == "neutral" else op.comparison_result(band)


def algorithm2(ops: Sequence[ProfiledOp], section: Sequence[int], neutral_band: float = 0.0) -> list[int]:
    """Return the section's indices in the order of Pecan's Algorithm 2, to the letter.

    A deflating op goes to the front of the prefix, a neutral one to the end of the prefix, an inflating one to the end
    of the suffix; the section becomes prefix + suffix.  Since deflating ops are *prepended*, two of them change places.
    A deflating cast to a custom type (bfloat16) goes behind the suffix: CPUs compute slowly with it (footnote 1).
    """
    prefix: deque[int] = deque()
    suffix: list[int] = []
    end: list[int] = []
    for index in section:
        comparison_result = ops[index].comparison_result(neutral_band)
        if comparison_result == "inflates":
            suffix.append(index)
        elif comparison_result == "neutral":
            prefix.append(index)
        elif ops[index].custom_dtype_cast:
            end.append(index)
        else:
            prefix.appendleft(index)
    return [*prefix, *suffix, *end]


def dependencies(ops: Sequence[ProfiledOp], section: Sequence[int]) -> Iterator[Constraint]:
    """Yield what would make a pipeline fail, or a column mean something else; what follows from others may be missing.

    That both ops write column `image` forbids nothing: augmentations may be exchanged (Pecan §3.2).  With a before b in
    the user's order, b stays behind a if a *defines* a column (creates it, or writes it without reading it) that b
    reads, writes or drops; if b drops a column that a reads or writes, or a one that b defines anew; and if b defines a
    column that a reads or writes.  An op of which no column is known is under no constraint.
    """
    owners: dict[str, int] = {}
    users: dict[str, list[int]] = {}
    for index in section:
        op = ops[index]
        for column in op.reads | op.writes | op.creates | op.drops:
            if column in owners:
                yield owners[column], index
            if column in op.defines or column in op.drops:
                yield from ((user, index) for user in users.pop(column, ()))
                owners[column] = index
            else:
                users.setdefault(column, []).append(index)


def _among(pairs: Collection[Pair], pair: Pair) -> bool:
    return pair in pairs or pair[::-1] in pairs


def _check(names: Sequence[str], mode: Mode, forbidden: Collection[Pair], neutral_band: float) -> None:
    if mode not in get_args(Mode):
        raise PlanError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, but got {mode!r}.")
    if not 0 <= neutral_band < 1:
        raise PlanError(f"neutral_band must be in [0, 1), but got {neutral_band}.")
    if unknown := sorted(set(chain.from_iterable(forbidden)) - set(names)):
        raise PlanError(f"forbidden names the op {unknown[0]!r}, but there are only {list(names)}.")


def _min_cost_order(
    names: Sequence[str], model: CostModel, section: range, needs: list[Constraint], may: Callable[[Pair], bool]
) -> list[int]:
    """Return the order of a section that is estimated to cost least, of those that only exchange what may be."""
    while True:
        found = model.min_cost_order(section, _needs(needs))
        # Only exchanges of the best order are asked about, because each answer may cost runs on the sample.
        rejected = [(a, b) for a, b in _reversed_pairs(found) if not may((names[a], names[b]))]
        if not rejected:
            return found
        # Each round adds constraints and takes none away, so this ends.
        needs = [*needs, *rejected]


def nearest_valid_order(desired: Sequence[int], needs: Needs) -> list[int]:
    """Return the order nearest to `desired` in which every op follows those that it needs.

    Again and again the op that is wanted first, of those whose needs have run.  O((n + constraints) log n).
    """
    if not needs:
        return list(desired)
    place = {index: number for number, index in enumerate(desired)}
    waiting = {index: len(set(needs.get(index, ()))) for index in desired}
    unlocks: dict[int, list[int]] = {}
    for index in desired:
        for other in set(needs.get(index, ())):
            unlocks.setdefault(other, []).append(index)
    ready = [place[index] for index in desired if not waiting[index]]
    heapq.heapify(ready)
    out: list[int] = []
    while ready:
        index = desired[heapq.heappop(ready)]
        out.append(index)
        for follower in unlocks.get(index, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, place[follower])
    return out


def _forbidden(names: Sequence[str], pairs: Collection[Pair], section: range) -> list[Constraint]:
    found = [sorted((names.index(one), names.index(other))) for one, other in sorted(pairs)]
    return [(first, second) for first, second in found if first in section and second in section and first != second]


def _needs(constraints: Iterable[Constraint]) -> dict[int, set[int]]:
    needs: dict[int, set[int]] = {}
    for first, second in constraints:
        needs.setdefault(second, set()).add(first)
    return needs


def _reversed_pairs(order: Sequence[int]) -> list[Constraint]:
    return [(b, a) for number, a in enumerate(order) for b in order[number + 1 :] if b < a]
