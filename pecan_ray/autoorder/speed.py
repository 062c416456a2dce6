"""Is another order faster?  Both are run in turn on the same elements until that is clear."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.autoorder.op_runner import Stage, run_through
from pecan_ray.autoorder.sample import Sampled

Pairs: TypeAlias = npt.NDArray[np.float64]
"""Seconds of one element, [repeat, order]."""
WayToRun: TypeAlias = Callable[[int], Callable[[], object]]
"""From an element's number to what is timed; it is given what is made beforehand."""

REPEATS = 2
"""Runs of an element in each order; what differs from run to run is the error of measuring."""
CHUNK = 8
"""Elements that are run before it is asked whether that is enough."""
LEAST_COMPARED = 32
"""Elements that are compared at least, if there are so many."""
LEAST_IN_A_HURRY = 8
"""Elements that are compared at least where the time is over: what is certain on few of them is certain."""
SOON_S = 0.4
"""Measured seconds after which a comparison may do with fewer elements."""
PATIENCE_S = 2.0
"""Measured seconds after which a comparison is given up."""
# This and the next two: docs/decisions/autoorder.md#196-a-gain-that-every-look-finds.
WORTH = 1.05
"""What does not make its operators so many times as fast is not worth a rewrite, and of the whole pipeline
(`accepted.apply_pipeline_threshold`) nothing at all."""
WORTH_A_MOVE = 1.1
"""What another sequence of the user's operators has to be worth."""
CERTAINTY = 3.0
"""Standard errors that count as certain: three, since each chunk of elements asks again."""


@dataclass(frozen=True)
class SpeedComparison:
    """The user's order and another one, run in turn on the same elements."""

    speedup: float
    """Seconds in the user's order over those in the other."""
    error: float
    """Standard error of the speed-up on the sample."""
    elements: int
    """Elements that were run."""

    def is_faster(self, times: float) -> bool:
        """Tell whether the other order is so many times as fast, and certainly faster at all.

        How large the error is does not move the bound, since it is larger on a busy machine.
        """
        return self.speedup >= times and self.speedup - CERTAINTY * self.error > 1.0

    def is_clear(self, times: float) -> bool:
        """Tell whether more runs would hardly change what is decided by it, now or in another look."""
        return abs(self.speedup - times) > CERTAINTY * self.error

    def description(self) -> str:
        """Say it in words."""
        return f"{self.speedup:.2f}x (±{self.error:.2f}) measured on {self.elements} elements"


def too_slow(found: SpeedComparison | None, times: float) -> str:
    """Return why what has to be so many times as fast is not adopted; empty if it is."""
    if found is None:
        return "there was no time to measure it"
    if found.is_faster(times):
        return ""
    measured = f"it is {found.speedup:.3f} times as fast (±{found.error:.3f}, measured on {found.elements} elements)"
    # Near the bound it may be above it, and not be certain to be any faster.
    needs = f"needs to be {times} times" if found.speedup < times else "that is not certain to be faster at all"
    return f"{measured}, and {needs}"


def compare_speed(sampled: Sampled, stages: Sequence[Sequence[Stage]], times: float) -> SpeedComparison | None:
    """Run two orders in turn until it is clear whether the second one is so many times as fast; None: no time."""
    ways = [functools.partial(_run_of, sampled, one) for one in stages]
    return compare_ways(sampled, ways, len(sampled.held), times)


def _run_of(sampled: Sampled, stages: Sequence[Stage], number: int) -> Callable[[], object]:
    return functools.partial(run_through, stages, sampled.runner.fresh(sampled.held[number]))


def compare_ways(sampled: Sampled, ways: Sequence[WayToRun], count: int, times: float) -> SpeedComparison | None:
    """Do the same with any two ways to run `count` elements, or groups of them, of a sample."""
    runs: dict[int, Pairs] = {}
    # At random, as the error of choosing some elements (`comparison`) supposes; by one seed, so that looks agree.
    places = itertools.cycle(np.random.default_rng(0).permutation(count).tolist())
    for way in ways:
        way(0)()  # what is made on first use is no time of the operator's
    spent = 0.0
    while sampled.in_time() and spent < PATIENCE_S:
        for place in itertools.islice(places, min(CHUNK, count)):
            pairs = _in_turn(sampled, ways, place)
            runs[place] = np.concatenate([runs.get(place, pairs[:0]), pairs])
            spent += float(pairs.sum())
        if len(runs) >= min(LEAST_COMPARED, count) or spent > SOON_S:
            found = comparison(list(runs.values()), count)
            if found.is_clear(times):
                return found
    return comparison(list(runs.values()), count) if len(runs) >= min(LEAST_IN_A_HURRY, count) else None


def _in_turn(sampled: Sampled, ways: Sequence[WayToRun], place: int) -> Pairs:
    """Run an element in both ways, `REPEATS` times, each way in turn the first."""
    seconds, timer = np.zeros((REPEATS, 2)), sampled.runner.timer()
    for repeat in range(REPEATS):
        # Whatever runs second finds the element in the processor's caches.
        for which in (0, 1) if repeat % 2 else (1, 0):
            run = ways[which](place)
            timer.start()
            run()
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
    repeated = np.concatenate([one[::REPEATS] - one[1::REPEATS] for one in runs]) @ weights
    # The median (1.4826 makes a standard deviation of it) leaves out single runs that were disturbed. A difference of
    # two runs has twice the variance of one.
    measuring = 1.4826 * np.median(np.abs(repeated)) / 2**0.5
    choosing = np.std(shortest @ weights) * (1.0 - len(runs) / held) ** 0.5
    # Where all elements were run, only repeating them makes it smaller: so it goes by the number of repeated runs.
    error = float(np.hypot(measuring / len(repeated) ** 0.5, choosing / len(runs) ** 0.5)) / max(after, 1e-12)
    return SpeedComparison(speedup, error, len(runs))
