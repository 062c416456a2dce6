"""Watching operators one by one in some order: what each is given, how long it takes, whether it does anything."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TypeAlias

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.facts import OpLoad, Point
from pecan_ray.autoorder.op_runner import OpRunner, Stage, Token
from pecan_ray.autoorder.op_tally import OpTally
from pecan_ray.autoorder.value_check import OpOrder
from pecan_ray.engines.counting import element_bytes

TimedRuns: TypeAlias = dict[str, list[Point]]
"""Of one element: the sizes that each operator was given, and the seconds that it took."""

LEAST_LOOKED_AT = 8
SLOWED = 1.25
"""An operator has become slower if it takes so many times what was foretold."""
OUTLIERS = 8
"""One of so many times, the longest, is left out: the first runs are slow."""


class OpWatch:
    """What operators did on some elements, by the order in which they ran."""

    def __init__(self, runner: OpRunner) -> None:
        self._runner = runner
        self.runs: dict[OpOrder, list[TimedRuns]] = {}
        self.acted: dict[OpOrder, list[dict[str, bool]]] = {}
        """Whether each operator changed each of the elements."""
        self.recasting: set[str] = set()
        """Operators that changed a column's dtype in some order."""

    def begin(self, order: OpOrder) -> None:
        """Forget what was seen of an order."""
        self.runs[order], self.acted[order] = [], []

    def run(self, order: OpOrder, stages: Sequence[Stage], token: Token) -> list[Token]:
        """Return what becomes of an element, and take note."""
        runs: TimedRuns = {}
        acted: dict[str, bool] = {}
        self.runs[order].append(runs)
        self.acted[order].append(acted)
        pieces = [token]
        timer = self._runner.timer()
        for stage in stages:
            made: list[Token] = []
            (name,) = stage.names
            for piece in pieces:
                before = dict(self._runner.columns(piece))
                timer.start()
                outputs = stage(piece)
                runs.setdefault(name, []).append((float(element_bytes(before)), timer.stop()))
                acted[name] = acted.get(name, False) or not equal([before], [self._runner.columns(o) for o in outputs])
                made += outputs
                if made and self._recast(piece, made[-1]):
                    self.recasting.add(name)
            pieces = made
        runs[""] = [(float(element_bytes(self._runner.columns(piece))), 0.0) for piece in pieces]
        return pieces

    def _recast(self, piece: Token, output: Token) -> bool:
        before, after = (self._runner.columns(one) for one in (piece, output))
        both = [(before[name], after[name]) for name in before.keys() & after.keys()]
        return any(getattr(a, "dtype", None) != getattr(b, "dtype", None) for a, b in both)

    def loads(self, order: OpOrder) -> tuple[OpLoad, ...]:
        """Return what the operators of an order were given, what they made of it, and how long that took."""
        found, runs = [], self.runs.get(order, [])
        for name, behind in zip(order, (*order[1:], ""), strict=True):
            given = [point for run in runs for point in run.get(name, [])]
            made = [point for run in runs for point in run.get(behind, [])]
            if given:
                seconds = sorted(seconds for _, seconds in given)
                usual = seconds[: len(seconds) - len(seconds) // OUTLIERS]
                before, after = (round(sum(size for size, _ in points)) for points in (given, made))
                found.append(OpLoad(name, len(given), len(made), before, after, fmean(usual)))
        return tuple(found)

    def lost_s(self, name: str, tally: OpTally, usual_order: OpOrder, order: OpOrder) -> float:
        """Return the seconds per element that an operator takes beyond what the sizes foretell; 0 if hardly more.

        An element draws the same random numbers in every order: each is compared with itself in the usual order.
        """
        curve = tally.usual_curve()
        # In the usual order an element may not have come so far: a filter has dropped it.
        both = zip(self.runs[usual_order], self.runs[order], strict=False)
        pairs = [(usual[name], run[name]) for usual, run in both if name in usual and name in run]
        single = [(usual[0], new[0]) for usual, new in pairs if len(usual) == len(new) == 1 and usual[0][1] > 0]
        if curve is None or len(single) < LEAST_LOOKED_AT:
            return 0.0
        foretold = [usual[1] * curve.at(new[0]) / max(curve.at(usual[0]), 1e-12) for usual, new in single]
        # Of the elements the middle one counts: the first runs of a compiled operator are slow.
        times = median(new[1] / max(known, 1e-12) for (_, new), known in zip(single, foretold, strict=True))
        return (times - 1.0) * fmean(foretold) if times > SLOWED else 0.0
