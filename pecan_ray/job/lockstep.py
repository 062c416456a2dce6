"""What trainers that step together wait for: each knows its own wait only, and not that it waits for another one.

Of rank i, a step takes s(i) = wait(i) + own(i), and own(i) holds whatever it waits for others in: a gradient that is
late because another rank's batch was.  The rank that waited longest in a step waited for nobody else, so there own(i)
is its work.  The job's own time of a step is the slowest rank's: of each rank the mean over the steps in which it was
the one that waited longest, of all steps if it never was (it is held up by its own work), and of these the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

SAMPLED_PER_S = 32
"""Steps that are looked at singly: so many a second, the same ones at all trainers."""
SHORTEST_STEP_S = 1e-6
"""Steps that took no time, as far as the clock tells, have no logarithm."""
# Odd, so that its multiples go through all 2**32 values before one comes again.
GOLDEN = 0x9E3779B1
"""About 2**32 times the golden ratio less 1: the prime next to it."""
KEPT_STEPS = 64
"""Newest ones that a trainer remembers, for two seconds or more: it reports once in a second at least."""
KEPT_OF_WINDOW = 512
"""Newest ones of each trainer that a window holds: 16 s of `SAMPLED_PER_S`, three windows."""
MOST_TRAINERS = 64
"""With more of them, steps are not looked at singly: reports stay short."""
LEAST_COMMON = 5
"""Steps known of all trainers from which on they are compared."""
TOGETHER = 0.02
"""Waits that differ by less than this share of a step are equally long."""


@dataclass(frozen=True)
class SampledStep:
    """One step of one trainer."""

    number: int
    waited: float
    """Seconds until it had its batch."""
    own: float
    """Seconds from then on until it asked for the next one."""


def should_sample(number: int, seconds: float, steps: int) -> bool:
    """Tell whether to look at a step, where so many steps took so long.

    Trainers in step take equally long, so they agree; where they do not quite, one's steps are among the other's.
    Multiples of the golden ratio are spread evenly, and hit no rhythm in which trainers take turns.
    """
    per_step = max(seconds / steps, SHORTEST_STEP_S) * SAMPLED_PER_S
    one_in = 0 if per_step >= 1 else math.ceil(-math.log2(per_step))
    return (number * GOLDEN) % 2**32 < 1 << (32 - one_in)


def merged(known: tuple[SampledStep, ...], newer: tuple[SampledStep, ...]) -> tuple[SampledStep, ...]:
    """Add what a later report holds to what earlier ones held."""
    last = known[-1].number if known else -1
    return (*known, *(one for one in newer if one.number > last))[-KEPT_OF_WINDOW:]


def own_share(ranks: Sequence[tuple[SampledStep, ...]]) -> float | None:
    """Return which share of the steps of trainers is their own work; None where too few are known of all."""
    common = _common_steps(ranks)
    if len(common) < LEAST_COMMON:
        return None
    own_when_last: list[list[float]] = [[] for _ in ranks]
    taken = 0.0
    for step in common:
        length = fmean(one.own + one.waited for one in step)
        taken += length
        for rank in _waited_longest(step, length):
            own_when_last[rank].append(step[rank].own)
    # A rank that never waited longest is held up by its own work in every step.
    owns = [fmean(own or [step[rank].own for step in common]) for rank, own in enumerate(own_when_last)]
    return min(1.0, max(owns) * len(common) / taken) if taken > 0 else None


def _common_steps(ranks: Sequence[tuple[SampledStep, ...]]) -> list[list[SampledStep]]:
    """Return the steps that are known of all trainers, each as every rank saw it."""
    known = [{one.number: one for one in steps} for steps in ranks]
    common = sorted(set.intersection(*(set(steps) for steps in known)))
    return [[steps[number] for steps in known] for number in common]


def _waited_longest(step: Sequence[SampledStep], length: float) -> list[int]:
    """Return the ranks that waited longest in a step, so that they waited for no other rank."""
    longest = max(one.waited for one in step) - TOGETHER * length
    return [rank for rank, one in enumerate(step) if one.waited >= longest]
