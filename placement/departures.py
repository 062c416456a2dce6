"""Whether a deployment that was settled on still does what it did: what makes the search begin again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from pecan_ray.placement.auto_settings import AutoSettings
from pecan_ray.placement.evidence import (
    KEPT,
    SHORTEST_STEP,
    Reading,
    claimed_error,
    counted_error,
    pooled,
    standard_error,
)
from pecan_ray.placement.running_ahead import may_be_one_step
from pecan_ray.plan.windows import Deployment, Window

LEAST_ALIKE = 2
"""So many windows in a row may be a change: a single one is a hiccup."""
DOUBLED = 2.0
"""Two must differ from the reference by this factor."""
ALIKE = 0.3
"""Each of them differs from the reference as they do together, but for this share."""
SURE = 4.0
"""Standard errors that windows in a row are not away by chance, whenever one looks."""


def windows_needed(windows: Sequence[Window], least: int, settings: AutoSettings) -> int:
    """Return how many windows like these suffice to judge by: those of slow jobs hold few batches."""
    each = fmean(window.batches for window in windows)
    return max(least, min(KEPT, math.ceil(settings.lot_batches / each)))


def sudden_departure(
    before: Reading,
    seen: Sequence[Window],
    threshold: float,
    of: Sequence[str] = ("batch time", "step"),
    whole: bool = True,
) -> tuple[str, Sequence[Window]]:
    """Say how the newest windows have left the reference, and which ones have; empty if they have not.

    A hiccup is not a change: every single one of them has left it by nearly as much as they have together.  Two
    suffice where the time has doubled, more where less is at stake.  `whole`: no wait hides the trainer's step.
    """
    for count in range(LEAST_ALIKE, len(seen) + 1):
        newest = seen[-count:]
        for what in of:
            was, now = measured(before, what), [measured(window, what) for window in newest]
            shifts = [math.log(time / was) for time in now if time is not None and was is not None]
            if was is None or len(shifts) < count:
                continue
            together = fmean(shifts)
            alone = max(before.error * math.sqrt(before.windows), *map(claimed_error, newest))
            error = max(alone / math.sqrt(count), counted_error(newest))
            needed = max(2 * threshold, SURE * math.hypot(before.error, error))
            if count == LEAST_ALIKE:
                needed = max(needed, math.log(DOUBLED))
            apart = max(ALIKE * abs(together), 2 * alone)
            hidden = not whole and what == "step" and any(may_be_one_step(before, one, 2 * error) for one in newest)
            if hidden:
                continue
            if abs(together) > needed and all(abs(shift - together) < apart for shift in shifts):
                return f"the {what} went from {was:.4g} to {was * math.exp(together):.4g} s at once", newest
    return "", ()


def other_trainer(at: Deployment, windows: Sequence[Window], threshold: float, whole: bool = True) -> Sequence[Window]:
    """Return the newest windows of a deployment beside which the trainer's own step is another one; none if it is not.

    No stock and no worker changes the step beside the same deployment: while others are sought, the job has changed.
    """
    for count in range(LEAST_ALIKE, len(windows) - LEAST_ALIKE + 1):
        before, seen = pooled(at, windows[:-count]), windows[-count:]
        moved, newest = sudden_departure(before, seen, threshold, of=("step",), whole=whole)
        if moved and len(newest) == count:
            return newest
    return ()


def measured(reading: Reading | Window, what: str) -> float | None:
    """Return the batch time, or of it the trainer's own step."""
    if what == "batch time":
        return reading.batch_time
    wait = reading.wait if isinstance(reading, Reading) else reading.wait_time
    return None if wait is None else max(reading.batch_time - wait, SHORTEST_STEP * reading.batch_time)


def pace_departure(before: Reading, now: Reading, threshold: float) -> str:
    """Say how a deployment has left its reference, by more than T and three standard errors; empty if it has not."""
    slower = now.batch_time / before.batch_time - 1
    if abs(slower) > max(threshold, 3 * math.hypot(before.error, now.error)):
        return f"the batch time went from {before.batch_time:.4g} to {now.batch_time:.4g} s ({slower:+.1%})"
    waits = now.wait_share - before.wait_share
    if abs(waits) > max(threshold, 3 * math.hypot(before.wait_error, now.wait_error)):
        return f"the share of waiting went from {before.wait_share:.1%} to {now.wait_share:.1%}"
    return ""


def queue_departure(
    before: Reading, now: Reading, seen: Sequence[Window], threshold: float, settings: AutoSettings
) -> str:
    """Say whether the queue is longer than the reference because workers became faster; empty if it is not.

    The queue beside workers that supply a little more than the trainer takes grows as well, but slowly.
    """
    if before.queue > settings.filled:
        return ""
    # Few windows may agree by chance: their error is at least what that of the longer reference makes of so few.
    error = math.hypot(
        before.queue_error, max(now.queue_error, before.queue_error * math.sqrt(before.windows / now.windows))
    )
    grown = now.queue - before.queue
    surplus = max((b.queue_size - a.queue_size) / b.batches for a, b in pairwise(seen))
    if grown > max(settings.queue_growth * before.queue, 1, 3 * error) and surplus > threshold:
        return f"the queue went from {before.queue:.3g} to {now.queue:.3g} batches"
    return ""


def ran_dry(
    before: Reading, newest: Sequence[Window], batches: int, most: float, threshold: float, whole: bool = True
) -> bool:
    """Say whether the trainer waits only now because it has lived on a stock for so many batches.

    `most`: batches of a stock.  Then too few workers were chosen, and what was measured of other deployments still
    holds.
    """
    now = pooled(before.deployment, newest)
    if before.own_time is None or now.own_time is None or now.wait_share <= before.wait_share:
        return False
    if before.wait_share > max(threshold, 2 * before.wait_error):
        return False  # who waits lives on no stock
    # While a stock runs out windows differ, but not the trainer's own part of them.
    error = math.hypot(before.error, step_error(newest))
    same_step = abs(now.own_time / before.own_time - 1) <= max(threshold, 3 * error)
    same_step = same_step or (not whole and may_be_one_step(before, now, 2 * error))
    short = 1 - before.batch_time / now.batch_time
    return same_step and short * batches <= most


def most_piled_up(at: Deployment, clients: int, settings: AutoSettings) -> float:
    """Return how many batches may lie ready for each trainer."""
    return settings.piled_up + 2 * at.workers / clients


def step_error(windows: Sequence[Window]) -> float:
    """Return the relative error of the trainer's own step, as far as these windows differ or say themselves."""
    steps = [step for step in (measured(window, "step") for window in windows) if step is not None]
    claimed = math.hypot(*map(claimed_error, windows)) / len(windows)
    return max(claimed, standard_error(steps) / fmean(steps))
