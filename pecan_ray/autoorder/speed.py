"""Is another order faster?  Both are run in turn on the same elements until that is clear."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.autoorder.op_runner import OpRunner, Stage, Token, run_through
from pecan_ray.autoorder.sample import Sampled

Pairs: TypeAlias = npt.NDArray[np.float64]
"""Seconds of one element, [repeat, order]."""

REPEATS = 2
"""Runs of an element in each order; what differs from run to run is the error of measuring."""
CHUNK = 8
"""Elements that are run before it is asked whether that is enough."""
LEAST_COMPARED = 32
"""Elements that are compared at least, if there are so many."""
LEAST_IN_A_HURRY = 8
"""where the time is over: what is certain on few of them is certain."""
SOON_S = 0.4
"""Measured seconds after which a comparison may do with fewer elements,"""
PATIENCE_S = 2.0
"""and after which it is given up."""
# This and the next three: docs/decisions/autoorder.md#155-a-gain-within-the-noise.
CERTAINTY = 2.0
"""Standard errors that count as certain."""
WORTH = 1.05
"""An order that does not make its operators so many times as fast, and the whole pipeline
(`accepted.apply_pipeline_threshold`), is not worth another sequence of operators."""
SURELY = 1.5
"""No measuring is so wrong that what seems to be certain here is not worth it;"""
PRECISE = 0.01
"""below, it is measured until the error is such a share: another look then finds the same."""


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
    def is_better(self) -> bool:
        """Whether the other order is certainly so much faster that it is worth it: what is within the noise is not."""
        return self.least >= WORTH

    @property
    def least(self) -> float:
        """The speed-up that is certain."""
        return self.speedup - CERTAINTY * self.error

    @property
    def is_clear(self) -> bool:
        """Whether more runs would hardly change what is decided by it, now or in another look."""
        if self.speedup + CERTAINTY * self.error < WORTH:
            return True
        # Decision 155: a small gain is measured until another look would decide alike.
        return self.least >= SURELY or (self.is_better and self.error <= PRECISE * self.speedup)

    def exceeds_threshold(self, times: float) -> bool:
        """Tell whether the other order is certainly faster, and so many times at least."""
        return self.speedup - CERTAINTY * self.error > 1.0 and self.speedup >= times

    def description(self) -> str:
        """Say it in words."""
        return f"{self.speedup:.2f}x (±{self.error:.2f}) measured on {self.elements} elements"


def too_slow(found: SpeedComparison | None) -> str:
    """Return why an order is not adopted for its speed; empty if it is."""
    if found is None:
        return "there was no time to measure it"
    return "" if found.is_better else f"it is not faster: {found.description()}"


def compare_speed(sampled: Sampled, stages: Sequence[Sequence[Stage]]) -> SpeedComparison | None:
    """Run two orders in turn until it is clear whether the second one is faster; None if there was no time for it."""
    runner, held = sampled.runner, sampled.held
    runs: dict[int, Pairs] = {}
    # At random, as the error of choosing some elements (`comparison`) supposes; by one seed, so that looks agree.
    places = itertools.cycle(np.random.default_rng(0).permutation(len(held)).tolist())
    for one in stages:
        run_through(one, runner.fresh(held[0]))  # what is made on first use is no time of the operator's
    spent = 0.0
    while sampled.in_time() and spent < PATIENCE_S:
        for place in itertools.islice(places, min(CHUNK, len(held))):
            pairs = _in_turn(runner, stages, held[place])
            runs[place] = np.concatenate([runs.get(place, pairs[:0]), pairs])
            spent += float(pairs.sum())
        if len(runs) >= min(LEAST_COMPARED, len(held)) or spent > SOON_S:
            found = comparison(list(runs.values()), len(held))
            if found.is_clear:
                return found
    return comparison(list(runs.values()), len(held)) if len(runs) >= min(LEAST_IN_A_HURRY, len(held)) else None


def _in_turn(runner: OpRunner, stages: Sequence[Sequence[Stage]], token: Token) -> Pairs:
    """Run an element in both orders, `REPEATS` times, each order in turn the first."""
    seconds, timer = np.zeros((REPEATS, 2)), runner.timer()
    for repeat in range(REPEATS):
        # Whatever runs second finds the element in the processor's caches.
        for which in (0, 1) if repeat % 2 else (1, 0):
            fresh = runner.fresh(token)
            timer.start()
            run_through(stages[which], fresh)
            seconds[repeat, which] = timer.stop()
    return seconds


def comparison(runs: Sequence[Pairs], held: int) -> SpeedComparison:
    """Weigh the seconds of the elements that were run, of all that are held.

    Of an element's runs the shortest counts: whatever disturbs makes them longer.  The error is that of measuring
    (runs of one element differ) and, as far as not all elements were run, that of choosing some (their gains differ).
    """
    shortest = np.array([one.min(axis=0) for one in runs])
    before, after = shortest.mean(axis=0).tolist()
    speedup = before / max(after, 1e-12)
    weights = np.array([1.0, -speedup])
    repeated = np.array([(one[0] - one[1]) @ weights for one in runs])
    # The median (1.4826 makes a standard deviation of it) leaves out single runs that were disturbed. A difference of
    # two runs has twice the variance of one.
    measuring = 1.4826 * np.median(np.abs(repeated)) / 2**0.5
    choosing = np.std(shortest @ weights) * (1.0 - len(runs) / held) ** 0.5
    error = float(np.hypot(measuring, choosing)) / len(runs) ** 0.5 / max(after, 1e-12)
    return SpeedComparison(speedup, error, before, after, len(runs))
