"""Trying another order on the sample: does it run, are its results what the user meant, is it faster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.facts import OpLoad, OpSample, Point
from pecan_ray.autoorder.op_runner import GlobalRandomness, Stage, Timer, Token
from pecan_ray.autoorder.order_request import Check
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import (
    HARDLY,
    MOST_ELEMENTS,
    OpOrder,
    ValueCheck,
    drawn_by_both,
    exchanges,
    lost_work,
    uncontrolled,
)
from pecan_ray.engines.counting import element_bytes
from pecan_ray.errors import ElementError
from pecan_ray.reorder.policy import Pair
from pecan_ray.reorder.value_guard import ColumnDifference

TimedRuns: TypeAlias = dict[str, list[Point]]
"""Of one element: the sizes that each operator was given, and the seconds that it took."""
Pairs: TypeAlias = npt.NDArray[np.float64]
"""Seconds of one element, [repeat, order]."""

FIRST_LOOK = 16
"""Elements that show whether an order is worth being measured."""
LEAST_LOOKED_AT = 8
COMMUTE_ELEMENTS = 8
REPEATS = 2
"""Runs of an element in each order; what differs from run to run is the error of measuring."""
CHUNK = 8
"""Elements that are run before it is asked whether that is enough."""
LEAST_COMPARED = 32
"""Elements that are compared at least, if there are so many."""
SOON_S = 0.7
"""Measured seconds after which a comparison may do with fewer elements,"""
PATIENCE_S = 2.0
"""and after which it is given up."""
SLOWED = 1.25
"""An operator has become slower if it takes so many times what was foretold,"""
SLOWED_SHARE = 0.02
"""and loses that share of all the time."""
OUTLIERS = 8
"""One of so many times, the longest, is left out: the first runs are slow."""
CERTAINTY = 2.0
"""Standard errors that count as certain."""
MIN_GAIN = 0.02
"""An order that is not faster by this share is not worth another sequence of operators; nor is one that does not make
the whole pipeline faster by more (`pecan_ray.autoorder.whole`)."""
NO_TIME = "there was no time to run it"


@dataclass(frozen=True)
class SpeedComparison:
    """The user's order and another one, run in turn on the same elements."""

    speedup: float
    """Seconds in the user's order over those in the other."""
    error: float
    """Standard error of the speed-up on the sample."""
    seconds_before: float
    """Mean seconds per element in the user's order."""
    seconds_after: float
    elements: int
    """Elements that were run."""

    @property
    def faster(self) -> bool:
        """Whether the other order is certainly faster by the share that makes it worth while."""
        return self.certainly(1.0 + MIN_GAIN)

    def certainly(self, times: float) -> bool:
        """Tell whether the other order is certainly faster, and so many times at least."""
        return self.speedup - CERTAINTY * self.error > 1.0 and self.speedup >= times

    @property
    def decided(self) -> bool:
        """Whether more runs would hardly change the answer."""
        return abs(self.speedup - 1.0 - MIN_GAIN / 2) > CERTAINTY * self.error + MIN_GAIN / 2


class Trial:
    """Other orders on the elements of one sampled stretch."""

    def __init__(
        self,
        sampled: Sampled,
        check: Check | None,
        *,
        equal_results: bool,
        pushed: bool = False,
        guarded: bool = False,
    ) -> None:
        """`pushed`: orders are compared with what the decoder takes over in each; `guarded`: values are to stay."""
        self._sampled, self._check, self._equal_results, self._pushed = sampled, check, equal_results, pushed
        self._guarded = guarded
        self._runner = sampled.runner
        self._user = self._runner.stages(sampled.stretch.names)
        self._user_seconds = sampled.profile().seconds or 0.0
        self._verdicts: dict[Pair, bool] = {}
        self.failed: str = ""
        """The operator that failed in the order that was looked at last; empty if none did."""
        self.slowed: dict[str, float] = {}
        """Operators that the sizes alone do not explain in that order: the seconds that they lost per element."""
        self._usual_runs: list[TimedRuns] = []
        self._values = ValueCheck(sampled.held, self._runner.columns)
        self._ops: tuple[OpSample, ...] = sampled.profile().ops
        self._draws = any(op.draws for op in self._ops)
        self._uncontrolled = uncontrolled(self._ops)
        self.acted: dict[OpOrder, list[dict[str, bool]]] = {}
        """Whether each operator changed each of the first elements."""
        self.loads: dict[OpOrder, tuple[OpLoad, ...]] = {}
        """What operators are given in an order that was looked at."""
        self.recasting: set[str] = set()
        """Operators that changed a column's dtype in some order."""

    def look(self, order: OpOrder) -> str:
        """Run an order on the first elements and note the operators' times in it; return why it is refused, or ""."""
        return self.look_at_form(order) or self.other_values(order)

    def look_at_form(self, order: OpOrder) -> str:
        """Do the same without a judgement of the values."""
        runs: list[TimedRuns] = []
        self._values.begin(order)
        self._usual()
        refused, ran = self._verify(order, 0, FIRST_LOOK, runs)
        if not refused and ran < min(FIRST_LOOK, len(self._sampled.held)):
            refused = NO_TIME
        user = self._sampled.stretch.names
        moved = [name for name in order if set(user[: user.index(name)]) != set(order[: order.index(name)])]
        losses = {name: self._lost(name, runs) for name in moved}
        self.slowed = {name: lost for name, lost in losses.items() if lost > SLOWED_SHARE * self._user_seconds}
        self.loads[order] = _loads(order, runs)
        for name in order:
            if name not in self.slowed:  # such times tell of another thing than the size and would mislead estimates
                self._sampled.tallies[name].elsewhere += [point for run in runs for point in run.get(name, [])]
        return refused

    def _lost(self, name: str, runs: Sequence[TimedRuns]) -> float:
        """Return the seconds per element that an operator takes beyond what the sizes foretell; 0 if hardly more.

        An element draws the same random numbers in every order: each is compared with itself in the user's order.
        """
        curve = self._sampled.tallies[name].usual_curve()
        # In the user's order an element may not have come so far: a filter has dropped it.
        both = [(usual, run) for usual, run in zip(self._usual(), runs, strict=False) if name in usual and name in run]
        pairs = [(usual[name], run[name]) for usual, run in both]
        single = [(usual[0], new[0]) for usual, new in pairs if len(usual) == len(new) == 1 and usual[0][1] > 0]
        if curve is None or len(single) < LEAST_LOOKED_AT:
            return 0.0
        foretold = [usual[1] * curve.at(new[0]) / max(curve.at(usual[0]), 1e-12) for usual, new in single]
        # Of the elements the middle one counts: the first runs of a compiled operator are slow.
        times = median(new[1] / max(known, 1e-12) for (_, new), known in zip(single, foretold, strict=True))
        return (times - 1.0) * fmean(foretold) if times > SLOWED else 0.0

    def _usual(self) -> list[TimedRuns]:
        """Return what the operators take for the first elements in the user's order."""
        if not self._usual_runs:
            names = self._sampled.stretch.names
            self.acted[names] = []
            for number, token in enumerate(self._sampled.held[:FIRST_LOOK]):
                self._usual_runs.append({})
                outputs = self._timed(names, self._user, self._token(number, token), self._usual_runs[-1])
                self._values.keep(number, outputs)
            self.loads[names] = _loads(names, self._usual_runs)
        return self._usual_runs

    def _token(self, number: int, token: Token) -> Token:
        """Return a copy of an element to be run, with the shared generators in the same state for any order."""
        if self._draws:
            GlobalRandomness.seed(number)
        return self._runner.fresh(token)

    def verify_rest(self, order: OpOrder) -> tuple[str, int]:
        """Run an order on the other elements; return why it is refused, or "", and how many elements it has run."""
        refused, ran = self._verify(order, FIRST_LOOK, len(self._sampled.held))
        refused = refused or self.other_values(order)
        return refused, min(FIRST_LOOK, len(self._sampled.held)) + ran

    def differences(self, order: OpOrder) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs in an order that was looked at."""
        return self._values.differences(order, self._free(order))

    def _free(self, order: OpOrder) -> frozenset[str]:
        """Return the columns whose elements need not be recognised in an order."""
        return self._uncontrolled | drawn_by_both(self._ops, order)

    def other_values(self, order: OpOrder) -> str:
        """Return why the values of an order are not those that the user meant; empty if they may be."""
        if not self._guarded:
            return ""
        free = self._free(order)
        if refused := self._values.refused(order, free):
            return f"its values are others: {refused}"
        usual = self.acted.get(self._sampled.stretch.names, [])
        if all(one.apart <= HARDLY for one in self.differences(order)):
            return ""
        for name in {name for pair in exchanges(self._sampled.stretch.names, order) for name in pair}:
            new = [one.get(name, False) for one in self.acted.get(order, [])]
            if lost := lost_work(name, [one.get(name, False) for one in usual], new):
                return lost
        return self._hidden_exchange(order, free - self._uncontrolled)

    def _hidden_exchange(self, order: OpOrder, drawn: frozenset[str]) -> str:
        """Return which exchange of operators that do not both draw makes elements of `drawn` columns others.

        Where two that draw are exchanged, elements need not be recognised, and another exchange could hide behind that.
        """
        by_name = {op.name: op for op in self._ops}
        for pair in exchanges(self._sampled.stretch.names, order) if drawn else ():
            first, second = (by_name[name] for name in pair)
            if (first.random and second.random) or not drawn & (first.writes | second.writes):
                continue
            if refused := self._exchange_refused(pair):
                return f"its values are others where {pair[0]!r} and {pair[1]!r} are exchanged: {refused}"
        return ""

    def _exchange_refused(self, pair: Pair) -> str:
        names = self._sampled.stretch.names
        before = names[: names.index(pair[0])]
        orders = ((*before, *pair), (*before, *pair[::-1]))
        values = ValueCheck(self._sampled.held, self._runner.columns)
        try:
            usual, exchanged = (self._runner.stages(order) for order in orders)
            for number, token in enumerate(self._sampled.held[:FIRST_LOOK]):
                if not self._sampled.in_time():
                    return NO_TIME
                outputs = [_run(stages, self._token(number, token)) for stages in (usual, exchanged)]
                if len(outputs[0]) != len(outputs[1]):
                    return ""  # the order itself was seen to let as many through
                values.keep(number, outputs[0])
                values.compare(orders[1], number, outputs[1])
        except ElementError:
            return ""  # without those between them they do not run: nothing is to be learned
        return values.refused(orders[1], self._uncontrolled)

    def _verify(self, order: OpOrder, begin: int, end: int, runs: list[TimedRuns] | None = None) -> tuple[str, int]:
        sampled, spec, ran = self._sampled, ElementSpec(), 0
        self.failed = ""
        try:
            stages = self._runner.stages(order)
            if runs is not None:
                self.acted[order] = []
            for number, token in enumerate(sampled.held[begin:end], begin):
                count = sampled.results[number]
                if not sampled.in_time():
                    break
                fresh = self._token(number, token)
                if runs is None:
                    outputs = _run(stages, fresh)
                else:
                    runs.append({})
                    outputs = self._timed(order, stages, fresh, runs[-1])
                if len(outputs) != count:
                    return f"it lets {len(outputs)} elements through where the user's order lets {count}", ran
                after = [self._runner.columns(output) for output in outputs]
                for element in after:
                    spec.add(element)
                if refused := self._compare_results(number, token, after):
                    return refused, ran
                if number < MOST_ELEMENTS:
                    if not self._values.kept(number):
                        self._values.keep(number, _run(self._user, self._token(number, token)))
                    self._values.compare(order, number, outputs)
                ran += 1
        except ElementError as error:
            self.failed = str(error.fields.get("op", ""))
            return f"it fails: {error.message.splitlines()[0]}", ran
        return sampled.spec.difference(spec), ran

    def _compare_results(self, number: int, token: Token, after: Sequence[dict[str, Any]]) -> str:
        if self._check is None and not self._equal_results:
            return ""
        before = [self._runner.columns(piece) for piece in _run(self._user, self._token(number, token))]
        for mine, other in zip(before, after, strict=True):
            if self._equal_results and not equal(mine, other):
                return "its result on the sample is not equal to that of the user's order"
            if self._check is not None and (refused := _ask(self._check, mine, other)):
                return refused
        return ""

    def _timed(self, order: OpOrder, stages: Sequence[Stage], token: Token, runs: TimedRuns) -> list[Token]:
        """Run the stages and note what the operators take, and whether they do anything."""
        pieces = [token]
        acted: dict[str, bool] = {}
        self.acted[order].append(acted)
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

    def commutes(self, pair: Pair) -> bool:
        """Tell whether exchanging two operators leaves the results on the first elements equal."""
        if pair not in self._verdicts:
            self._verdicts[pair] = self._commutes(*pair)
        return self._verdicts[pair]

    def _commutes(self, first: str, second: str) -> bool:
        names = self._sampled.stretch.names
        before = names[: names.index(first)]
        try:
            usual, exchanged = (
                self._runner.stages(order) for order in ((*before, first, second), (*before, second, first))
            )
            for token in self._sampled.held[:COMMUTE_ELEMENTS]:
                if not self._sampled.in_time():
                    return False
                found = [
                    [self._runner.columns(piece) for piece in _run(stages, self._runner.fresh(token))]
                    for stages in (usual, exchanged)
                ]
                if not equal(*found):
                    return False
        except ElementError:
            return False
        return True

    def compare(
        self, order: OpOrder, other: OpOrder | None = None, patience_s: float = PATIENCE_S
    ) -> SpeedComparison | None:
        """Run an order in turn with another one (None: the user's), until it is clear whether it is faster.

        None if there was no time for it.
        """
        sampled = self._sampled
        orders = (other or sampled.stretch.names, order)
        stages = [self._runner.stages(names, fused=True, pushed=self._pushed) for names in orders]
        held = sampled.held
        runs: dict[int, list[Pairs]] = {}
        found = None
        places = itertools.cycle(np.random.default_rng(0).permutation(len(held)).tolist())
        for one in stages:
            _run(one, self._runner.fresh(held[0]))  # what is made on first use is no time of the operator's
        spent = 0.0
        while sampled.in_time() and (found is None or spent < patience_s):
            for place in itertools.islice(places, min(CHUNK, len(held))):
                pairs = self._in_turn(stages, held[place])
                runs.setdefault(place, []).append(pairs)
                spent += float(pairs.sum())
            if len(runs) >= min(LEAST_COMPARED, len(held)) or spent > SOON_S:
                found = _comparison(list(runs.values()), len(held))
                if found.decided:
                    break
        return found

    def _in_turn(self, stages: Sequence[Sequence[Stage]], token: Token) -> Pairs:
        """Run an element in both orders, `REPEATS` times, each order in turn the first."""
        seconds = np.zeros((REPEATS, 2))
        timer = self._runner.timer()
        for repeat in range(REPEATS):
            for which in (0, 1) if repeat % 2 else (1, 0):
                seconds[repeat, which] = _seconds(stages[which], self._runner.fresh(token), timer)
        return seconds


def _loads(order: OpOrder, runs: Sequence[TimedRuns]) -> tuple[OpLoad, ...]:
    """Return what the operators of an order were given, what they made of it, and how long that took."""
    found = []
    for name, behind in zip(order, (*order[1:], ""), strict=True):
        given = [point for run in runs for point in run.get(name, [])]
        made = [point for run in runs for point in run.get(behind, [])]
        if given:
            seconds = sorted(seconds for _, seconds in given)
            usual = seconds[: len(seconds) - len(seconds) // OUTLIERS]
            before, after = (round(sum(size for size, _ in points)) for points in (given, made))
            found.append(OpLoad(name, len(given), len(made), before, after, fmean(usual)))
    return tuple(found)


def _comparison(runs: Sequence[Sequence[Pairs]], held: int) -> SpeedComparison:
    """Weigh the seconds [repeat, order] of the elements that were run, of all that are held.

    Of an element's runs the shortest counts: whatever disturbs makes them longer.  The error is that of measuring
    (runs of one element differ) and, as far as not all elements were run, that of choosing some (their gains differ).
    """
    known = [np.concatenate(list(one)) for one in runs]
    shortest = np.array([one.min(axis=0) for one in known])
    before, after = shortest.mean(axis=0)
    speedup = float(before / max(after, 1e-12))
    weights = np.array([1.0, -speedup])
    repeated = np.array([(one[0] - one[1]) @ weights for one in known])
    measuring = 1.4826 * float(np.median(np.abs(repeated))) / math.sqrt(2)
    choosing = float(np.std(shortest @ weights)) * math.sqrt(1.0 - len(known) / held)
    error = math.hypot(measuring, choosing) / math.sqrt(len(known)) / max(after, 1e-12)
    return SpeedComparison(speedup, float(error), float(before), float(after), len(known))


def _seconds(stages: Sequence[Stage], token: Token, timer: Timer) -> float:
    timer.start()
    _run(stages, token)
    return timer.stop()


def _run(stages: Sequence[Stage], token: Token) -> list[Token]:
    pieces = [token]
    for stage in stages:
        pieces = [made for piece in pieces for made in stage(piece)]
    return pieces


def _ask(check: Check, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return why a user's check refuses an element; empty if it does not."""
    try:
        answer = check(before, after)
    except Exception as error:  # a check may be made of assertions
        return f"check= raised {type(error).__name__}: {error}".strip()
    return "" if answer is None or answer else "check= returned False"
