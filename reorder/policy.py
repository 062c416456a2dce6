"""AutoOrder: from profiled ops to an order and its reasons.

Modes:

- ``"pecan"``: Pecan's Algorithm 2 (`algorithm2`); where columns are known, an op still waits for those that it
  depends on (hard rules of `dependencies`).
- ``"strict"`` and ``"safe"``: the order of least estimated time (`cost`, `search`) under all rules of `dependencies`,
  over exchanges of two ops that `commutes` allows.  An order all of whose exchanged pairs commute can be reached by
  exchanging neighbours only.  Each exchange has to gain a share of all the time (`EXCHANGE_SHARE`), so that noise in
  what was measured does not decide.  The two differ in what commutes, which is not decided here.
- ``"off"``: the user's order.

Pure: nothing here runs an op.  Whoever calls runs the order on the sample before adopting it, and asks again, with
what has failed `forbidden`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, get_args

from pecan_ray.errors import PlanError
from pecan_ray.reorder.algorithm2 import algorithm2
from pecan_ray.reorder.cost import CostModel, Volume, cost_model, order_indices
from pecan_ray.reorder.dependencies import (
    Constraint,
    custom_type_constraints,
    hard_constraints,
    observation_constraints,
)
from pecan_ray.reorder.moves import explained_moves, rejections
from pecan_ray.reorder.order_plan import Mode, Move, OrderPlan, Rejected
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.reorder.search import SectionSearch, repaired
from pecan_ray.reorder.sections import check_ops, fixed_ops, sections

Pair: TypeAlias = tuple[str, str]
Commutes: TypeAlias = Callable[[Pair], bool] | Collection[Pair] | None
"""Which two ops may be exchanged in modes "strict" and "safe": a question asked once per pair, with the names in the
user's order, or the pairs themselves, in any order; None: no two are known to."""


@dataclass(frozen=True)
class Question:
    """The checked arguments of `auto_order`."""

    ops: tuple[ProfiledOp, ...]
    mode: Mode
    commutes: Commutes
    forbidden: frozenset[Pair]
    neutral_band: float
    measured_in: tuple[str, ...]

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Place of each op in the user's order."""
        return {op.name: number for number, op in enumerate(self.ops)}

    @functools.cached_property
    def model(self) -> CostModel:
        """Estimates of what orders cost."""
        return cost_model(self.ops, [self.index[name] for name in self.measured_in], self.neutral_band)


def _question(
    ops: Iterable[ProfiledOp],
    mode: Mode,
    commutes: Commutes,
    forbidden: Collection[Pair],
    neutral_band: float,
    measured_in: Sequence[str] | None,
) -> Question:
    """Return what is asked of the policy; raises PlanError for what cannot be asked."""
    checked = check_ops(ops)
    names = tuple(op.name for op in checked)
    if mode not in get_args(Mode):
        raise PlanError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, but got {mode!r}.")
    if not 0 <= neutral_band < 1:
        raise PlanError(f"neutral_band must be in [0, 1), but got {neutral_band}.")
    pairs = frozenset((first, second) for first, second in forbidden)
    if unknown := sorted(set(chain.from_iterable(pairs)) - set(names)):
        raise PlanError(f"forbidden names the op {unknown[0]!r}, but there are only {list(names)}.")
    if measured_in is not None:
        order_indices("measured_in", measured_in, {name: number for number, name in enumerate(names)})
    return Question(
        checked,
        mode,
        functools.cache(commutes) if callable(commutes) else commutes,
        pairs,
        neutral_band,
        names if measured_in is None else tuple(measured_in),
    )


def auto_order(
    ops: Iterable[ProfiledOp],
    mode: Mode = "pecan",
    *,
    commutes: Commutes = None,
    forbidden: Collection[Pair] = (),
    neutral_band: float = 0.0,
    measured_in: Sequence[str] | None = None,
) -> OrderPlan:
    """Return the order to run, and why.

    `ops` are in the user's order.  `forbidden` are pairs that must not be exchanged (an exchange failed on the
    sample).  Factors within `neutral_band` of 1 count as 1: 0 is the paper's rule, `NEUTRAL_BAND` is right for sampled
    factors.
    `measured_in` is the order that ran while the ops were timed, if it was not the user's.

    Raises `PlanError` for unknown modes or names, and for two ops of one name.
    """
    question = _question(ops, mode, commutes, forbidden, neutral_band, measured_in)
    ops, model, band = question.ops, question.model, question.neutral_band
    order: list[int] = list(range(len(ops)))
    moves: list[Move] = []
    rejected: list[Rejected] = []
    for section in sections(ops) if mode != "off" else ():
        arranged, refused = _arranged(question, section)
        order[section.start : section.stop] = arranged
        moves += explained_moves(ops, section, arranged, band)
        rejected += refused
    return OrderPlan(
        ops=ops,
        order=tuple(ops[index].name for index in order),
        mode=mode,
        moves=tuple(moves),
        fixed=fixed_ops(ops),
        rejected=tuple(rejected),
        seconds_before=model.measured_total(range(len(ops))),
        seconds_after=model.measured_total(order),
        forbidden=question.forbidden,
        neutral_band=band,
        measured_in=question.measured_in,
    )


def _arranged(question: Question, section: range) -> tuple[list[int], list[Rejected]]:
    """Return the section in its new order, and what Algorithm 2 would have done and this does not."""
    ops, model, band = question.ops, question.model, question.neutral_band
    desired = algorithm2(ops, section, band)
    constraints = constraints_of(question, section)
    if question.mode == "pecan":
        order = repaired(desired, _needs(constraints))
        return order, rejections(ops, desired, constraints, band)
    start = Volume(sum(model.growth[: section.start]), sum(model.multiplying[: section.start]))
    order = SectionSearch(model, section, start, _needs(constraints)).best(desired)
    while refused := _refused(question, order):
        constraints += refused
        order = SectionSearch(model, section, start, _needs(constraints)).best(desired)
    return order, rejections(ops, desired, constraints, band)


def constraints_of(question: Question, section: range) -> list[Constraint]:
    """Return which ops of a section must stay before which others."""
    ops = question.ops
    found = list(hard_constraints(ops, section))
    if question.mode != "pecan":
        found += observation_constraints(ops, section)
        found += custom_type_constraints(ops, section)
    for pair in sorted(question.forbidden):
        first, second = sorted(question.index[name] for name in pair)
        if first in section and second in section and first != second:
            found.append(Constraint(first, second, "their exchange was refused"))
    return found


def _needs(constraints: Iterable[Constraint]) -> dict[int, set[int]]:
    needs: dict[int, set[int]] = {}
    for first, second, _ in constraints:
        needs.setdefault(second, set()).add(first)
    return needs


def _refused(question: Question, order: Sequence[int]) -> list[Constraint]:
    """Ask about every two ops that `order` exchanges."""
    names = [op.name for op in question.ops]
    exchanged = [(b, a) for number, a in enumerate(order) for b in order[number + 1 :] if b < a]
    return [
        Constraint(first, second, "their exchange is not known to leave results as they are")
        for first, second in exchanged
        if not _commute(question.commutes, (names[first], names[second]))
    ]


def _commute(commutes: Commutes, pair: Pair) -> bool:
    if commutes is None:
        return False
    if callable(commutes):
        return commutes(pair)
    return pair in commutes or pair[::-1] in commutes
