"""Our own search, the default: model, measure, correct.

A batch costs batch_time(l, r) * (c_a n_a + c_w r).  The search keeps what it measured of every deployment, fits the
small model of `pecan_ray.placement.model` to it, asks the model for the deployment that may be cheapest (by the mean
less half a standard deviation, so that what is unknown is worth a look), measures that one, and goes on until
nothing unmeasured promises to be cheaper than the cheapest measured one.  Then it stays there and watches.

What follows from it: workers are added only where the trainer waits; the first jump goes near the answer, and steps
shrink as the model gets certain; local workers whose disturbance of the trainer costs more than they save go; of
equally cheap deployments the one with the fewest workers is kept; and every deployment is compared with the best
one measured, not with the step before, so that small losses cannot add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pecan_ray.autoscaler.search import Begin, DeploymentLimits, Probe, Search, Steps
from pecan_ray.placement.candidates import (
    LEAST_SUPPLY,
    Candidates,
    hoped_time,
    ladder,
    likely_time,
    on_one_side,
    phase_of,
    smallest_of,
)
from pecan_ray.placement.departures import lot, pace_departure, queue_departure, ran_dry
from pecan_ray.placement.evidence import KEPT, Evidence, Reading, pooled
from pecan_ray.placement.model import WAITING, Model, Prior, explanations
from pecan_ray.placement.setting import Setting
from pecan_ray.plan.windows import Deployment, Window


def auto(setting: Setting) -> Begin:
    """Return the search; what it has learned outlives a restart under other limits."""
    search = AutoSearch(setting)
    return search.run


@dataclass(frozen=True)
class Choice:
    """What the model advises."""

    deployment: Deployment
    why: str
    done: bool = False


class AutoSearch:
    """The evidence of one job and the search over it."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._settings = setting, setting.auto
        self._evidence = Evidence()
        self._prior: Prior | None = None
        self._explained: list[Model] | None = None
        self._started = False
        self._second_thoughts = self._settings.second_thoughts
        self._aimed_s = math.inf
        """The longest time of a batch that was wanted when it chose last."""

    def run(self, start: Deployment, limits: DeploymentLimits) -> Search:
        """Search from `start` (or from where the job is expected to end), then watch, for ever."""
        expected = self._setting.expected
        at = limits.clamp(expected.local, expected.remote) if expected and not self._started else start
        self._started = True
        why = f"measure {at} first"
        while True:
            at, why = yield from self._find(at, why, limits)
            why = yield from self._watch(at, why, limits)

    # --- searching -----------------------------------------------------------------------------------------

    def _find(self, at: Deployment, why: str, limits: DeploymentLimits) -> Steps[tuple[Deployment, str]]:
        phase = "measure"
        self._aimed_s = self._setting.aim.objective.longest_s
        for probe in range(self._settings.most_probes):
            yield from self._measure(at, phase, why)
            choice = self._choose(at, limits, last=probe == self._settings.most_probes - 1)
            if choice.done:
                return choice.deployment, choice.why
            phase, at, why = phase_of(at, choice.deployment), choice.deployment, choice.why
        raise AssertionError("the last probe always settles")

    def _measure(self, at: Deployment, phase: str, why: str) -> Steps[None]:
        """Measure a deployment until its reading is precise enough, and not a mere surprise."""
        foreseen = self._foreseen(at)
        seen = [(yield Probe(at, phase, f"{why}: deploy {at}."))]
        self._note(at, seen[-1])
        while len(seen) < lot(seen, self._settings.most_repeats, self._settings):
            reading = self._evidence.reading(at)
            doubt = self._doubt(reading, foreseen) or self._stock(reading, seen, foreseen)
            if not doubt:
                return
            seen.append((yield Probe(at, "measure", f"measure {at} again: {doubt}.")))
            self._note(at, seen[-1])

    def _doubt(self, reading: Reading, foreseen: tuple[float, float, float] | None) -> str:
        """Say why a reading does not suffice to decide; empty if it does."""
        needed = max(self._setting.threshold, reading.wait_share / 4, self._distance(reading) / 3)
        if self._settings.sure * reading.error > needed:
            return (
                f"its batch time is known to {self._settings.sure * reading.error:.1%} only, and {needed:.1%} decides"
            )
        if foreseen is None or reading.windows >= 3:
            return ""
        if reading.windows == 2 and reading.spread <= self._setting.threshold:
            return ""
        mean, deviation, _ = foreseen
        own = reading.batch_time if reading.own_time is None else reading.own_time
        allowed = max(
            self._setting.threshold * mean, min(2 * deviation, self._settings.surprise * mean), 2 * reading.error * own
        )
        if abs(own - mean) > allowed:
            return f"the trainer's own step took {own:.4g} s where {mean:.4g} s were expected"
        return ""

    def _stock(self, reading: Reading, seen: Sequence[Window], foreseen: tuple[float, float, float] | None) -> str:
        """Say that a trainer which should wait may still live on what more workers have piled up; empty if not."""
        if foreseen is None or reading.wait is None:
            return ""
        short = 1 - reading.batch_time / foreseen[2]
        lived_on = short * sum(window.batches for window in seen)
        if short <= self._setting.threshold or lived_on > self._settings.piled_up + 2 * reading.deployment.workers:
            return ""
        return f"{reading.batch_time:.4g} s a batch where {foreseen[2]:.4g} s were expected may come from a stock"

    def _distance(self, reading: Reading) -> float:
        """Return by which share the cost of a reading differs from the nearest other one."""
        cost = self._cost(reading)
        others = [self._cost(other) for other in self._evidence.readings() if other.deployment != reading.deployment]
        return min((abs(cost / other - 1) for other in others), default=0.0)

    def _cost(self, reading: Reading) -> float:
        own = reading.batch_time if reading.own_time is None else reading.own_time
        return self._score(reading.deployment, reading.batch_time, own)

    def _score(self, at: Deployment, batch_s: float, own_s: float) -> float:
        return float(self._setting.score(batch_s, own_s, self._setting.per_hour(at)))

    def _foreseen(self, at: Deployment) -> tuple[float, float, float] | None:
        """Predict the time of a deployment (the trainer's own, where waiting is measured), its deviation, and the time
        of a batch, in seconds."""
        readings = self._evidence.readings()
        if not readings:
            return None
        model = self._explanations()[0]
        place = np.array([float(at.local)]), np.array([float(at.remote)])
        step, step_sd, supply, supply_sd = (float(value[0]) for value in model.predict(*place))
        time, deviation = step, step_sd
        if readings[-1].wait is None and 0 < supply * step < 1:
            time, deviation = 1 / supply, supply_sd / supply**2
        whole = max(step, 1 / max(supply, LEAST_SUPPLY))
        return time * model.unit, deviation * model.unit, whole * model.unit

    def _choose(self, at: Deployment, limits: DeploymentLimits, last: bool = False) -> Choice:
        """Say what to measure next, or that the cheapest measured deployment is good enough."""
        readings = self._evidence.readings()
        best = self._cheapest(readings, limits)
        spent = self._spent(best, len(readings))
        if last:
            return Choice(best.deployment, spent, done=True)
        plateau = self._towards_plateau(at, readings, limits)
        if plateau:
            return plateau
        options = self._candidates(at, limits, readings)
        hopes = [hoped_time(model, options, self._settings.optimism) for model in self._explanations()]
        hoped = np.min([self._setting.score(time, own, options.price) for time, own in hopes], axis=0)
        pick = smallest_of(options, hoped, self._settings.tie)
        gain = 1 - hoped[pick] / self._cost(best)
        if gain > self._worth_a_look(best):
            here = self._evidence.reading(at)
            waits = "" if here.wait is None else f", {here.wait_share:.0%} of it waiting"
            seen = f"{at} take {here.batch_time:.4g} s a batch{waits}"
            return Choice(options[pick], f"{seen}; {options[pick]} may save {gain:.1%} of the least so far")
        check = (
            self._other_kind(best, readings, limits)
            or self._further(best, readings, limits)
            or self._unproven(best, readings, limits)
            or self._leaner(best, options)
        )
        why = f"{spent}, and nothing else promises to save more than {max(gain, 0):.1%}"
        return check or Choice(best.deployment, why, done=True)

    def _spent(self, best: Reading, measured: int) -> str:
        """Say why a deployment is the best of those measured."""
        own = best.own_time
        missed = self._setting.aim.objective.miss(best.batch_time, own)
        cost = best.batch_time * self._setting.per_hour(best.deployment)
        if not missed:
            return f"{best.deployment} cost {self._setting.spell(cost)} a batch, the least of {measured} measured"
        why = "the trainer waits beside all of them" if missed == "waits" else "none of them ends in time"
        return f"{best.deployment} take {best.batch_time:.4g} s a batch, the least of {measured} measured, and {why}"

    def _worth_a_look(self, best: Reading) -> float:
        """Return the saving from which on an unmeasured deployment is tried: less, while the trainer still waits."""
        return self._setting.threshold * (
            1.0 if best.wait_share <= self._setting.threshold else self._settings.starving
        )

    def _leaner(self, best: Reading, options: Candidates) -> Choice | None:
        """Where markedly fewer workers are likely to cost the same, try them."""
        known = [reading for reading in self._evidence.readings() if reading.wait is not None]
        if known and all(reading.wait_share <= WAITING for reading in known):
            return self._half(best, options)
        model = self._explanations()[0]
        cost = np.where(options.fresh, self._setting.score(*likely_time(model, options), options.price), np.inf)
        cost[options.workers > self._settings.leaner * best.deployment.workers] = np.inf
        if not cost.min() <= self._cost(best) * (1 + self._settings.tie):
            return None
        pick = smallest_of(
            options, np.where(cost <= self._cost(best) * (1 + self._settings.tie), 1.0, np.inf), self._settings.tie
        )
        why = f"{best.deployment} cost the least so far, and {options[pick]} are likely to do as well"
        return Choice(options[pick], why)

    def _half(self, best: Reading, options: Candidates) -> Choice | None:
        """Where the trainer never waited, nobody knows how few workers would do: try half of them."""
        few = (
            options.fresh
            & (options.workers <= best.deployment.workers / 2)
            & (options.remote <= best.deployment.remote)
        )
        if not few.any():
            return None
        pick = int(np.flatnonzero(few & (options.workers == options.workers[few].max()))[-1])
        return Choice(options[pick], f"the trainer never waited beside {best.deployment}, so see whether half will do")

    def _other_kind(self, best: Reading, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
        """Where the trainer waits beside workers of one kind, and none of the other was ever measured: try some.

        They may be many times as fast, which the prior, that a worker is a worker, hardly allows for.
        """
        if best.wait is None or best.wait_share <= self._setting.threshold:
            return None
        at, some = best.deployment, max(1, best.deployment.workers // self._settings.some)
        for other in (limits.clamp(at.local, at.remote + some), limits.clamp(at.local + some, at.remote)):
            kind = "remote" if other.remote > at.remote else "local"
            if other != at and not any(getattr(reading.deployment, kind) for reading in readings):
                return Choice(other, f"the trainer waits beside {at}, and no {kind} worker was measured yet")
        return None

    def _further(self, best: Reading, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
        """Where the trainer still waits, go on in a direction in which the last workers brought enough to pay for more.

        A line through two measurements knows less than the model, and is not misled by what the others have in common.
        """
        if best.own_time is None or best.wait_share <= self._setting.threshold:
            return None
        at, known = best.deployment, {reading.deployment for reading in readings}
        found: list[tuple[float, Deployment]] = []
        for reading in readings:
            local, remote = at.local - reading.deployment.local, at.remote - reading.deployment.remote
            if min(local, remote) < 0 or bool(local) == bool(remote):
                continue
            brought = 1 / best.batch_time - 1 / reading.batch_time
            for steps in (1, 2):
                more = limits.clamp(at.local + steps * local, at.remote + steps * remote)
                share = (more.workers - at.workers) / (local + remote)
                time = max(best.own_time, 1 / (1 / best.batch_time + max(0.0, share * brought)))
                if more not in known:
                    found.append((self._score(more, time, best.own_time), more))
        if not found or min(found)[0] >= (1 - self._setting.threshold) * self._cost(best):
            return None
        cost, more = min(found)
        return Choice(
            more, f"the trainer waits beside {at}, and {more} save {1 - cost / self._cost(best):.1%} at that rate"
        )

    def _unproven(self, best: Reading, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
        """Where remote workers are dear, and it was not shown that fewer do not suffice beside so many local ones: try
        the middle between what suffices and what does not, or more, if the model rules that out.

        What the model cannot know, that local workers are faster without remote ones beside them, shows only so.
        """
        at, threshold = best.deployment, self._setting.threshold
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
        if short and (best.wait is None or at == self._setting.expected):
            # Without a measured wait it is not known who is short; and what was foretold, and holds, needs one proof.
            return None
        for remote in range((max(short, default=0) + at.remote) // 2, at.remote):
            fewer = limits.clamp(at.local, remote)
            saved = 1 - self._setting.per_hour(fewer) / self._setting.per_hour(at)
            if saved <= threshold or fewer in known:
                return None
            if not short or self._may_suffice(fewer, best):
                why = f"{at} cost the least so far, and {fewer} would save {saved:.1%} if they were enough"
                return Choice(fewer, why)
        return None

    def _may_suffice(self, fewer: Deployment, best: Reading) -> bool:
        """Say whether the model leaves it open that fewer workers are cheaper."""
        model = self._explanations()[0]
        _, _, supply, deviation = (
            float(value[0]) for value in model.predict(np.array([float(fewer.local)]), np.array([float(fewer.remote)]))
        )
        time = model.unit / max(supply + self._settings.generous * deviation, LEAST_SUPPLY)
        own = best.batch_time if best.own_time is None else best.own_time
        return self._score(fewer, time, own) < self._cost(best)

    def _towards_plateau(self, at: Deployment, readings: Sequence[Reading], limits: DeploymentLimits) -> Choice | None:
        """Where waiting is not measured, find the trainer's own time first: double the workers until it shows.

        Remote workers alone, as Pecan does it: local ones might disturb the trainer, and their pace and the
        trainer's could not be told apart.
        """
        if self._prior or any(reading.wait is not None for reading in readings):
            return None
        line = sorted(
            (reading for reading in readings if reading.deployment == on_one_side(limits, reading.deployment.workers)),
            key=lambda reading: reading.deployment.workers,
        )
        seen = f"{at} take {self._evidence.reading(at).batch_time:.4g} s a batch"
        if not line:
            alone = on_one_side(limits, at.workers)
            return Choice(alone, f"{seen}, so see what {alone} do")
        last = line[-1]
        for fewer in line[:-1]:
            linear = fewer.batch_time * fewer.deployment.workers / last.deployment.workers
            slack = 2 * self._setting.threshold + 2 * math.hypot(fewer.error, last.error)
            if last.batch_time > linear * (1 + slack):
                return None
        more = on_one_side(limits, 2 * last.deployment.workers)
        return None if more == last.deployment else Choice(more, f"{seen}, and {more} may be faster")

    def _cheapest(self, readings: Sequence[Reading], limits: DeploymentLimits) -> Reading:
        allowed = [r for r in readings if limits.clamp(r.deployment.local, r.deployment.remote) == r.deployment]
        cost = {r: self._cost(r) for r in allowed}
        least = min(cost.values())
        return min(
            (r for r in allowed if cost[r] <= least * (1 + self._settings.tie)),
            key=lambda r: (r.deployment.workers, r.deployment.remote, cost[r]),
        )

    def _candidates(self, at: Deployment, limits: DeploymentLimits, readings: Sequence[Reading]) -> Candidates:
        most = max(
            self._settings.least_jump,
            self._settings.jump * at.workers,
            *(reading.deployment.workers for reading in readings),
        )
        remotes = ladder(limits.min_remote, limits.max_remote, at.remote)
        pairs = [
            (local, remote)
            for local in ladder(limits.min_local, limits.max_local, at.local)
            for remote in remotes
            if 0 < local + remote <= most
        ]
        price = {remote: self._setting.per_hour(Deployment(0, remote)) for remote in remotes}
        local, remote = np.array(pairs, dtype=float).T
        fresh = np.ones(len(pairs), dtype=bool)
        for reading in readings:
            place = reading.deployment
            fresh &= (local != place.local) | (remote != place.remote)
            if reading.windows >= self._settings.certain and reading.wait is not None and reading.wait_share <= WAITING:
                # More workers do not serve a trainer better that does not wait.
                fresh &= (local < place.local) | (remote < place.remote)
        return Candidates(local, remote, np.array([price[count] for _, count in pairs]), fresh)

    def _explanations(self) -> list[Model]:
        if self._explained is None:
            self._explained = explanations(self._evidence.readings(), self._prior)
        return self._explained

    def _renew(self, at: Deployment, windows: Sequence[Window]) -> None:
        self._evidence.renew(at, windows)
        self._explained = None

    def _note(self, at: Deployment, window: Window) -> None:
        self._evidence.add(at, window)
        self._explained = None

    # --- watching ------------------------------------------------------------------------------------------

    def _watch(self, at: Deployment, why: str, limits: DeploymentLimits) -> Steps[str]:
        """Stay until the windows have left the reference; say how.

        The first windows are the reference, and evidence: a deployment that was chosen by a lucky measurement is
        chosen no more.
        """
        seen: list[Window] = []
        while not seen or len(seen) < lot(seen, self._settings.watched, self._settings):
            seen.append((yield Probe(at, "converged", f"stay with {at}: {why}.", settled=True)))
        self._renew(at, seen)
        if self._second_thoughts and self._choose(at, limits).deployment != at:
            self._second_thoughts -= 1
            return f"{at} take {self._evidence.reading(at).batch_time:.4g} s a batch in the long run"
        reference, away, lasted = list(seen), 0, 0
        batches = sum(window.batches for window in seen)
        while True:
            seen.append((yield Probe(at, "converged", f"stay with {at}: {why}.", settled=True)))
            longest_s = self._setting.aim.objective.longest_s
            if longest_s < math.inf and abs(longest_s / self._aimed_s - 1) > self._setting.threshold:
                return f"to end in time a batch may take {longest_s:.4g} s from now on"
            batches += seen[-1].batches
            recent = lot(seen, self._settings.watched, self._settings)
            before, now = pooled(at, reference), pooled(at, seen[-recent:])
            moved = pace_departure(before, now, self._setting.threshold) or queue_departure(
                before, now, seen, self._setting.threshold, self._settings
            )
            away = away + 1 if moved else 0
            lasted = batches if away == 1 else lasted
            if away > recent:
                if ran_dry(before, now, lasted, self._setting.threshold, self._settings):
                    self._renew(at, seen[-recent:])
                else:
                    self._start_over(at, seen[-recent:])
                return moved
            if len(seen) > 2 * recent:
                oldest = seen.pop(0)
                if not moved and len(reference) < KEPT:
                    reference.append(oldest)

    def _start_over(self, at: Deployment, recent: Sequence[Window]) -> None:
        """Keep what was learned as a prior, and forget what was measured of a job that has changed."""
        self._prior = self._explanations()[0].learned()
        self._evidence.forget()
        self._renew(at, recent)
        self._second_thoughts = self._settings.second_thoughts
