"""What is measured again before it is believed: what is not precise enough, and what nobody expected.

A single window may lie: the trainer did something else, a neighbour took the workers' CPUs, a stock hid that too few
workers run.  One that says what the model foresaw suffices; one that does not is asked again until two agree, or three
have a median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pecan_ray.placement.departures import ALIKE, LEAST_ALIKE, SURE, measured, most_piled_up, step_error, windows_needed
from pecan_ray.placement.evidence import KEPT, Reading
from pecan_ray.placement.knowledge import Knowledge, Outlook, own_of
from pecan_ray.placement.model import UNSURE
from pecan_ray.plan.windows import Deployment, Window

LEFT = 2.0
"""A trainer that waits for its workers finds fewer batches than these, on average."""
FOREVER = 2 * KEPT
"""Windows after which no stock is left, however little of it each has taken."""
MOST_DISTURBING = 0.1
"""A local worker that lengthens the trainer's step by more than this share is not to be believed in."""


def doubt(job: Knowledge, reading: Reading, seen: Sequence[Window], foreseen: Outlook | None) -> str:
    """Say why a reading does not suffice to decide; empty if it does."""
    if job.can_be_no_less(reading):
        return ""
    threshold, sure = job.setting.threshold, job.settings.sure
    enough = len(seen) >= windows_needed(seen, job.settings.most_repeats, job.settings)
    needed = max(threshold, reading.wait_share / 4, job.distance(reading) / 3)
    if sure * reading.error > needed and not enough:
        return f"its batch time is known to {sure * reading.error:.1%} only, and {needed:.1%} decides"
    if seen[-1].queue_size > LEFT and reading.wait_share > threshold and len(seen) < 2 * job.settings.most_repeats:
        return f"the trainer waits, and yet {seen[-1].queue_size:.3g} batches lay ready: a stock is running out"
    if foreseen is None:
        return ""
    agree = reading.windows == 2 and reading.spread <= threshold + 2 * reading.error
    believed = agree or enough or reading.windows >= job.settings.certain
    unexpected = "" if believed else surprise(job, reading, foreseen)
    much = 1 - reading.batch_time / foreseen.whole > job.settings.surprise
    patient = FOREVER if much and sure_of(foreseen, reading) else 2 * job.settings.most_repeats
    return unexpected or (stock(job, reading, seen, foreseen) if len(seen) < patient else "")


def sure_of(foreseen: Outlook, reading: Reading) -> bool:
    """Say whether a forecast leaves little room for a deployment that is as fast as it was measured."""
    return foreseen.whole - reading.batch_time > foreseen.whole_sd


def surprise(job: Knowledge, reading: Reading, foreseen: Outlook) -> str:
    """Say how a reading differs from the forecast by more than the forecast allows; empty if it does not."""
    own = reading.batch_time if reading.own_time is None else reading.own_time
    error = 2 * reading.error
    if abs(own - foreseen.own) > max(allowed(job, foreseen.own, foreseen.own_sd), error * own):
        return f"the trainer's own step took {own:.4g} s where {foreseen.own:.4g} s were expected"
    slower = reading.batch_time - foreseen.whole
    if slower > max(allowed(job, foreseen.whole, foreseen.whole_sd), error * reading.batch_time):
        return f"a batch took {reading.batch_time:.4g} s where {foreseen.whole:.4g} s were expected"
    return ""


def allowed(job: Knowledge, time: float, deviation: float) -> float:
    """Return by how many seconds a measurement may differ from a forecast, however vague that is."""
    return max(job.setting.threshold * time, min(2 * deviation, job.settings.surprise * time))


def stock(job: Knowledge, reading: Reading, seen: Sequence[Window], foreseen: Outlook) -> str:
    """Say that a trainer which should wait may still live on what more workers have piled up; empty if not.

    Empty soon where nothing depends on it: as slow as foreseen, it would still cost the least so far.
    """
    if reading.wait is None or reading.wait_share > job.setting.threshold:
        return ""
    others = [job.cost(other) for other in job.readings() if other.deployment != reading.deployment]
    feared = job.score(reading.deployment, foreseen.whole, foreseen.own)
    if len(seen) >= job.settings.certain and others and feared < min(others):
        return ""
    if 1 - reading.batch_time / foreseen.whole <= job.setting.threshold or outlived(job, reading, seen, foreseen):
        return ""
    return f"{reading.batch_time:.4g} s a batch where {foreseen.whole:.4g} s were expected may come from a stock"


def outlived(job: Knowledge, reading: Reading, seen: Sequence[Window], foreseen: Outlook) -> bool:
    """Say whether more batches came than workers as slow as foreseen, and any stock, could have brought."""
    lived_on = (1 - reading.batch_time / foreseen.whole) * sum(window.batches for window in seen)
    return lived_on > most_piled_up(reading.deployment, job.setting.clients, job.settings)


def refuted(job: Knowledge, reading: Reading, seen: Sequence[Window], foreseen: Outlook | None) -> bool:
    """Say whether workers are certainly faster than everything that was measured before lets them be."""
    if foreseen is None or reading.wait is None or reading.wait_share > job.setting.threshold:
        return False
    return sure_of(foreseen, reading) and (len(seen) >= FOREVER or outlived(job, reading, seen, foreseen))


def another_step(job: Knowledge, reading: Reading, seen: Sequence[Window]) -> bool:
    """Say whether the trainer's own step differs by more from that beside other workers than these explain.

    Local workers disturb it, each by a little; beside as many of them it is the same.
    """
    others = [
        other
        for other in job.readings()
        if other.deployment != reading.deployment
        and other.own_time is not None
        and not job.may_be_one_step(reading, other)
    ]
    if len(seen) < LEAST_ALIKE or reading.own_time is None or not others:
        return False
    at, own = reading.deployment, reading.own_time
    nearest = min(others, key=lambda other: (abs(other.deployment.local - at.local), other.error))
    if abs(own - own_of(nearest)) <= UNSURE * ((reading.wait or 0.0) + (nearest.wait or 0.0)):
        return False
    shift = math.log(own / own_of(nearest))
    newest = [math.log(one / own) for one in (measured(window, "step") for window in seen) if one is not None]
    error = math.hypot(nearest.error, step_error(seen))
    if abs(shift) <= max(job.settings.surprise, SURE * error) or max(map(abs, newest)) > ALIKE * abs(shift):
        return False
    return math.expm1(abs(shift)) > MOST_DISTURBING * busy_apart(at, nearest.deployment)


def busy_apart(one: Deployment, other: Deployment) -> float:
    """Return by how many the busy local workers of two deployments may differ, if one of them just suffices.

    Of more workers than suffice each one stands still for a part of the time, and disturbs nobody meanwhile.
    """
    few, many = sorted((one, other), key=lambda at: at.workers)
    return max(abs(few.local - many.local), abs(few.local - many.local * few.workers / many.workers))


def ran_out(seen: Sequence[Window], foreseen: Outlook | None, threshold: float) -> bool:
    """Say whether the trainer waits now, as was foreseen, and did not before: it has lived on a stock until now."""
    if foreseen is None or len(seen) < 2 or seen[-1].wait_time is None:
        return False
    before, now = max(window.batch_time for window in seen[-3:-1]), seen[-1]
    waits = now.wait_time is not None and now.wait_time > threshold * now.batch_time
    return waits and min(now.batch_time, foreseen.whole) > (1 + threshold) * before
