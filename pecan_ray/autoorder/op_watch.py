"""Watching operators one by one in some order: what each is given, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.facts import OpLoad, Point
from pecan_ray.autoorder.op_runner import OpRunner, Stage, Token
from pecan_ray.engines.counting import element_bytes

TimedRuns: TypeAlias = dict[str, list[Point]]
"""Of one element: the sizes that each operator was given, and the seconds that it took."""

OUTLIERS = 8
"""One of so many times, the longest, is left out: the first runs are slow."""


class OpWatch:
    """What operators did on some elements, by the order in which they ran."""

    def __init__(self, runner: OpRunner) -> None:
        self._runner = runner
        self.runs: dict[OpOrder, list[TimedRuns]] = {}

    def begin(self, order: OpOrder) -> None:
        """Forget what was seen of an order."""
        self.runs[order] = []

    def run(self, order: OpOrder, stages: Sequence[Stage], token: Token) -> list[Token]:
        """Return what becomes of an element, and take note."""
        runs: TimedRuns = {}
        self.runs[order].append(runs)
        pieces = [token]
        timer = self._runner.timer()
        for stage in stages:
            made: list[Token] = []
            (name,) = stage.names
            for piece in pieces:
                size = float(element_bytes(self._runner.columns(piece)))
                timer.start()
                made += stage(piece)
                runs.setdefault(name, []).append((size, timer.stop()))
            pieces = made
        runs[""] = [(float(element_bytes(self._runner.columns(piece))), 0.0) for piece in pieces]
        return pieces

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
