"""What is looked at before a search ends: places where the model may be wrong in a way that it cannot know."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pecan_ray.autoscaler.search import DeploymentLimits
from pecan_ray.placement.candidates import LEAST_SUPPLY, Candidates, likely_time, on_one_side, smallest_of
from pecan_ray.placement.evidence import Reading
from pecan_ray.placement.knowledge import Choice, Knowledge
from pecan_ray.placement.model import WAITING, explanations
from pecan_ray.plan.windows import Deployment


def other_kind(job: Knowledge, best: Reading, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
    """Where the trainer waits beside workers of one kind, and none of the other was ever measured: try some.

    They may be many times as fast, which the prior, that a worker is a worker, hardly allows for.
    """
    if best.wait is None or best.wait_share <= job.setting.threshold:
        return None
    at, some = best.deployment, max(1, best.deployment.workers // job.settings.some)
    for other in (limits.clamp(at.local, at.remote + some), limits.clamp(at.local + some, at.remote)):
        kind = "remote" if other.remote > at.remote else "local"
        if other != at and not any(getattr(reading.deployment, kind) for reading in readings):
            return Choice(other, f"the trainer waits beside {at}, and no {kind} worker was measured yet")
    return None


def further(job: Knowledge, best: Reading, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
    """Where the trainer still waits, go on in a direction in which the last workers brought enough to pay for more.

    A line through two measurements knows less than the model, and is not misled by what the others have in common.
    """
    if best.own_time is None or best.wait_share <= job.setting.threshold:
        return None
    at, known = best.deployment, {reading.deployment for reading in readings}
    model = job.explanations()[0]
    most = model.source / model.unit
    found: list[tuple[float, Deployment]] = []
    for reading in readings:
        local, remote = at.local - reading.deployment.local, at.remote - reading.deployment.remote
        if min(local, remote) < 0 or bool(local) == bool(remote):
            continue
        brought = 1 / best.batch_time - 1 / reading.batch_time
        for steps in (1, 2):
            more = limits.clamp(at.local + steps * local, at.remote + steps * remote)
            share = (more.workers - at.workers) / (local + remote)
            time = max(best.own_time, 1 / min(1 / best.batch_time + max(0.0, share * brought), most))
            if more not in known:
                found.append((job.score(more, time, best.own_time), more))
    if not found or min(found)[0] >= (1 - job.setting.threshold) * job.cost(best):
        return None
    cost, more = min(found)
    return Choice(more, f"the trainer waits beside {at}, and {more} save {1 - cost / job.cost(best):.1%} at that rate")


def unproven(job: Knowledge, best: Reading, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
    """Where remote workers are dear, and it was not shown that fewer do not suffice beside so many local ones: try
    the middle between what suffices and what does not, or more, if the model rules that out.

    What the model cannot know, that local workers are faster without remote ones beside them, shows only so.
    """
    at, threshold = best.deployment, job.setting.threshold
    if best.wait_share > threshold:
        return None
    short = [
        reading.deployment.remote
        for reading in readings
        if reading.deployment.local >= at.local
        and reading.deployment.remote < at.remote
        and (reading.wait is None or reading.wait_share > threshold)
    ]
    known = {reading.deployment for reading in readings}
    if short and (best.wait is None or at == job.setting.expected):
        # Without a measured wait it is not known who is short; and what was foretold, and holds, needs one proof.
        return None
    for remote in range((max(short, default=0) + at.remote) // 2, at.remote):
        fewer = limits.clamp(at.local, remote)
        saved = 1 - job.setting.per_hour(fewer) / job.setting.per_hour(at)
        if saved <= threshold or fewer in known:
            return None
        if not short or may_suffice(job, fewer, best):
            why = f"{at} cost the least so far, and {fewer} would save {saved:.1%} if they were enough"
            return Choice(fewer, why)
    return None


def may_suffice(job: Knowledge, fewer: Deployment, best: Reading) -> bool:
    """Say whether the model leaves it open that fewer workers are cheaper."""
    model = job.explanations()[0]
    _, _, supply, deviation = (
        float(value[0]) for value in model.predict(np.array([float(fewer.local)]), np.array([float(fewer.remote)]))
    )
    time = model.unit / min(max(supply + job.settings.generous * deviation, LEAST_SUPPLY), model.source)
    own = best.batch_time if best.own_time is None else best.own_time
    return job.score(fewer, time, own) < job.cost(best)


def leaner(job: Knowledge, best: Reading, options: Candidates) -> Choice | None:
    """Where markedly fewer workers are likely to cost the same, try them."""
    known = [reading for reading in job.readings() if reading.wait is not None]
    if known and not job.prior and all(reading.wait_share <= WAITING for reading in known):
        return half(job, best, options)
    model = job.explanations()[0]
    cost = np.where(options.fresh, job.setting.score(*likely_time(model, options), options.price), np.inf)
    cost[options.workers > job.settings.leaner * best.deployment.workers] = np.inf
    if not cost.min() <= job.cost(best) * (1 + job.settings.tie):
        return None
    pick = smallest_of(
        options, np.where(cost <= job.cost(best) * (1 + job.settings.tie), 1.0, np.inf), job.settings.tie
    )
    why = f"{best.deployment} cost the least so far, and {options[pick]} are likely to do as well"
    return Choice(options[pick], why)


def half(job: Knowledge, best: Reading, options: Candidates) -> Choice | None:
    """Where the trainer never waited, nobody knows how few workers would do: try half of them."""
    few = options.fresh & (options.workers <= best.deployment.workers / 2) & (options.remote <= best.deployment.remote)
    if not few.any():
        return None
    pick = int(np.flatnonzero(few & (options.workers == options.workers[few].max()))[-1])
    return Choice(options[pick], f"the trainer never waited beside {best.deployment}, so see whether half will do")


def towards_plateau(
    job: Knowledge, at: Deployment, readings: Sequence[Reading], limits: DeploymentLimits
) -> Choice | None:
    """Where waiting is not measured, find the trainer's own time first: double the workers until it shows.

    Remote workers alone, as Pecan does it: local ones might disturb the trainer, and their pace and the
    trainer's could not be told apart.
    """
    if job.prior or any(reading.wait is not None for reading in readings):
        return None
    line = sorted(
        (reading for reading in readings if reading.deployment == on_one_side(limits, reading.deployment.workers)),
        key=lambda reading: reading.deployment.workers,
    )
    seen = f"{at} take {job.reading(at).batch_time:.4g} s a batch"
    if not line:
        alone = on_one_side(limits, at.workers)
        return Choice(alone, f"{seen}, so see what {alone} do")
    last = line[-1]
    for fewer in line[:-1]:
        linear = fewer.batch_time * fewer.deployment.workers / last.deployment.workers
        slack = 2 * job.setting.threshold + 2 * math.hypot(fewer.error, last.error)
        if last.batch_time > linear * (1 + slack):
            return None
    more = on_one_side(limits, 2 * last.deployment.workers)
    return None if more == last.deployment else Choice(more, f"{seen}, and {more} may be faster")


def suspect(job: Knowledge, best: Reading, limits: DeploymentLimits) -> Choice | None:
    """Measure again what was seen once or twice, if everything else says that it is better, and even the best.

    A window that was disturbed has condemned a deployment, and measurements from before a change have.
    """
    readings = job.readings()
    for reading in readings:
        at = reading.deployment
        others = [other for other in readings if other is not reading]
        if reading.windows >= job.settings.certain or at == best.deployment or reading.wait is None or not others:
            continue
        if limits.clamp(at.local, at.remote) != at:
            continue
        told = job.foreseen(at, explanations(others, job.prior)[0])
        if told is None or reading.batch_time - told.whole <= max(
            job.settings.surprise * told.whole, told.whole_sd, 2 * reading.error * reading.batch_time
        ):
            continue
        saved = 1 - job.score(at, told.whole, told.own) / job.cost(best)
        if saved > job.setting.threshold:
            seen = f"{at} took {reading.batch_time:.4g} s a batch where all others together say {told.whole:.4g} s"
            return Choice(at, f"{seen}, which would save {saved:.1%}")
    return None


def fewer_of_a_kind(job: Knowledge, best: Reading, limits: DeploymentLimits) -> Choice | None:
    """While the trainer waits, see whether the last quarter of a kind of worker is of any use, local ones included.

    A host may be full, or the source may give no more.  No model says so, only a measurement beside fewer of that kind,
    half as many at least: it costs more, or it would be the best.
    """
    if best.wait is None or best.wait_share <= job.setting.threshold:
        return None
    at = best.deployment
    measured = [reading.deployment for reading in job.readings()]
    local, remote = at.local - max(1, at.local // 4), at.remote - max(1, at.remote // 4)
    shown_local = any(at.local / 2 <= few.local < at.local and few.remote >= at.remote for few in measured)
    shown_remote = any(at.remote / 2 <= few.remote < at.remote and few.local >= at.local for few in measured)
    for fewer, shown in (
        (limits.clamp(local, at.remote), shown_local),
        (limits.clamp(at.local, remote), shown_remote),
    ):
        if not shown and fewer.workers < at.workers and fewer not in job:
            return Choice(fewer, f"the trainer waits beside {at}, so see whether the last of them are of any use")
    return None


def more_than_enough(job: Knowledge, best: Reading, limits: DeploymentLimits) -> Choice | None:
    """Where not even the best one measured does what is wanted, try half as many workers again, of either kind.

    Whatever the model says: what it rules out here was asked for, and a try costs less than doing without.  A few
    remote workers may do more harm to local ones than good, where many would not: so three times as many are tried too.
    """
    missed = job.setting.aim.objective.miss(best.batch_time, best.own_time)
    at, some = best.deployment, max(1, best.deployment.workers // 2)
    if not missed:
        return None
    steps = (0, some), (some, 0), (0, 2 * at.workers)
    for more in (limits.clamp(at.local + local, at.remote + remote) for local, remote in steps):
        if more not in job:
            why = "the trainer still waits" if missed == "waits" else "the job would not end in time"
            return Choice(more, f"{why} beside {at}, the best measured, so see whether more workers help")
    return None


def spare(job: Knowledge, best: Reading, limits: DeploymentLimits, more_than: float) -> Choice | None:
    """Where the trainer has not waited since a change or an audit, see whether half of the workers will do.

    `more_than`: the saving that another deployment promises.

    Workers that became faster behind a full queue show in no window.  Too few show soon, since the stock is soon gone.
    """
    known = [reading for reading in job.readings() if reading.wait is not None]
    if not job.prior or not known or any(reading.wait_share > WAITING for reading in known):
        return None
    at = best.deployment
    few = limits.clamp(at.local // 2, at.remote // 2)
    told = job.foreseen(few)
    if few in job or few.workers >= at.workers or told is None:
        return None
    saved = 1 - job.score(few, told.own, told.own) / job.cost(best)
    if saved <= max(job.setting.threshold, more_than):
        return None
    return Choice(few, f"the trainer never waited beside {at}, and {few} would save {saved:.1%} if they were enough")


def imprecise(job: Knowledge, best: Reading) -> Choice | None:
    """Measure the best one again before it is settled on, where chance may have made it the best: it runs anyway."""
    error = job.settings.sure * best.error
    if job.can_be_no_less(best):
        return None
    if best.wait is None or best.windows >= job.settings.most_repeats:
        return None
    if error <= max(job.setting.threshold, job.distance(best)):
        return None
    return Choice(best.deployment, f"{best.deployment} cost the least so far, but for an error of {error:.1%}")
