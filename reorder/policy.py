"""AutoOrder: from profiled ops to an order and its reasons.

Modes:

- ``"pecan"``: Pecan's Algorithm 2 (`algorithm2`); where columns are known, an op still waits for those that it
  depends on (`dependencies`).
- ``"strict"`` and ``"safe"``: the order of least estimated time (`cost`, `search`) over exchanges of two ops that
  `commutes` allows.  An order all of whose exchanged pairs commute can be reached by exchanging neighbours only.  Each
  exchange has to gain a share of all the time (`EXCHANGE_SHARE`), so that noise in what was measured does not decide.
  The two differ in what commutes, which is not decided here.
- ``"off"``: the user's order.

Pure: nothing here runs an op.  Whoever calls runs the order on the sample before adopting it, and asks again, with
what has failed `forbidden`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TypeAlias, get_args

from pecan_ray.errors import PlanError
from pecan_ray.reorder.algorithm2 import algorithm2
from pecan_ray.reorder.cost import CostModel, Volume, cost_model
from pecan_ray.reorder.dependencies import Constraint, constraints
from pecan_ray.reorder.moves import explained_moves
from pecan_ray.reorder.order_plan import Mode, Move, OrderPlan
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.reorder.search import SectionSearch, repaired
from pecan_ray.reorder.sections import check_ops, fixed_ops, sections

Pair: TypeAlias = tuple[str, str]
Commutes: TypeAlias = Callable[[Pair], bool] | Collection[Pair]
"""Which two ops may be exchanged in modes "strict" and "safe": a question asked once, with names in the user's order,
or the pairs themselves, in any order."""


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
    model, order, moves = cost_model(ops, neutral_band), list(range(len(ops))), list[Move]()
    may = functools.cache(commutes if callable(commutes) else functools.partial(_among, commutes))
    for section in sections(ops) if mode != "off" else ():
        needs = [*constraints(ops, section), *_forbidden(names, forbidden, section)]
        desired = algorithm2(ops, section, neutral_band)
        if mode == "pecan":
            arranged = repaired(desired, _needs(needs))
        else:
            arranged = _cheapest(model, section, needs, desired, may)
        order[section.start : section.stop] = arranged
        moves += explained_moves(ops, section, arranged, neutral_band)
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


def _among(pairs: Collection[Pair], pair: Pair) -> bool:
    return pair in pairs or pair[::-1] in pairs


def _check(names: Sequence[str], mode: Mode, forbidden: Collection[Pair], neutral_band: float) -> None:
    if mode not in get_args(Mode):
        raise PlanError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, but got {mode!r}.")
    if not 0 <= neutral_band < 1:
        raise PlanError(f"neutral_band must be in [0, 1), but got {neutral_band}.")
    if unknown := sorted(set(chain.from_iterable(forbidden)) - set(names)):
        raise PlanError(f"forbidden names the op {unknown[0]!r}, but there are only {list(names)}.")


def _cheapest(
    model: CostModel, section: range, needs: list[Constraint], desired: Sequence[int], may: Callable[[Pair], bool]
) -> list[int]:
    """Return the order of a section that is estimated to cost least, of those that only exchange what may be."""
    start = Volume(sum(model.growth[: section.start]), sum(model.multiplying[: section.start]))
    while True:
        found = SectionSearch(model, section, start, _needs(needs)).best(desired)
        refused = [(a, b) for a, b in _exchanged(found) if not may((model.ops[a].name, model.ops[b].name))]
        if not refused:
            return found
        needs = [*needs, *refused]


def _forbidden(names: Sequence[str], pairs: Collection[Pair], section: range) -> list[Constraint]:
    found = [sorted((names.index(one), names.index(other))) for one, other in sorted(pairs)]
    return [(first, second) for first, second in found if first in section and second in section and first != second]


def _needs(constraints: Iterable[Constraint]) -> dict[int, set[int]]:
    needs: dict[int, set[int]] = {}
    for first, second in constraints:
        needs.setdefault(second, set()).add(first)
    return needs


def _exchanged(order: Sequence[int]) -> list[Constraint]:
    return [(b, a) for number, a in enumerate(order) for b in order[number + 1 :] if b < a]
