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
from dataclasses import dataclass, field, replace

import numpy as np

from pecan_ray.autoscaler.search import Begin, DeploymentLimits, Probe, Search, Steps
from pecan_ray.placement.candidates import hoped_time, phase_of, smallest_of, with_more_workers
from pecan_ray.placement.checks import (
    fewer_of_a_kind,
    further,
    imprecise,
    leaner,
    more_than_enough,
    other_kind,
    spare,
    suspect,
    towards_plateau,
    unproven,
)
from pecan_ray.placement.departures import (
    most_piled_up,
    other_trainer,
    pace_departure,
    queue_departure,
    ran_dry,
    sudden_departure,
    windows_needed,
)
from pecan_ray.placement.doubts import another_step, doubt, ran_out, refuted
from pecan_ray.placement.evidence import KEPT, Reading, pooled
from pecan_ray.placement.knowledge import Choice, Knowledge
from pecan_ray.placement.model import AGED
from pecan_ray.placement.setting import Setting
from pecan_ray.plan.windows import Deployment, Window


def auto(setting: Setting) -> Begin:
    """Return the search; what it has learned outlives a restart under other limits."""
    search = AutoSearch(setting)
    return search.run


class AutoSearch:
    """The search over what is known of one job."""

    def __init__(self, setting: Setting, known: Knowledge | None = None) -> None:
        self._setting, self._settings = setting, setting.auto
        self._job = known or Knowledge(setting)
        self._started = False
        self._second_thoughts = self._settings.second_thoughts
        self._audit_after = self._settings.audit_after
        self._aimed_s = math.inf
        """The longest time of a batch that was wanted when it chose last."""
        self._dry = False
        """A stock ran out, as it seemed: if the next deployment that was chosen seems to have lived on one as well, it
        is the job that has changed."""

    def run(self, start: Deployment, limits: DeploymentLimits) -> Search:
        """Search from `start` (or from where the job is expected to end), then watch, for ever."""
        expected = self._setting.expected
        at = limits.clamp(expected.local, expected.remote) if expected and not self._started else start
        self._started = True
        yield from self._search_on(at, f"measure {at} first", limits)

    def resume(self, watch: Watch) -> Search:
        """Go on with a watch."""
        why = yield from self._keep_watching(watch)
        yield from self._search_on(watch.stay.target, why, watch.limits)

    def _search_on(self, at: Deployment, why: str, limits: DeploymentLimits) -> Search:
        while True:
            at, why = yield from self._find(at, why, limits)
            why = yield from self._watch(at, why, limits)

    # --- searching -----------------------------------------------------------------------------------------

    def _find(self, at: Deployment, why: str, limits: DeploymentLimits) -> Steps[tuple[Deployment, str]]:
        phase = "measure"
        self._aimed_s = self._setting.aim.objective.longest_s
        for probe in range(self._settings.most_probes):
            known = not probe and at in self._job
            if not known:
                yield from self._measure(at, phase, why)
            choice = self._choose(at, limits, last=probe == self._settings.most_probes - 1)
            why = f"{why}; {choice.why}" if known else choice.why
            if choice.done:
                return choice.deployment, why
            phase, at = phase_of(at, choice.deployment), choice.deployment
        raise AssertionError("the last probe always settles")

    def _measure(self, at: Deployment, phase: str, why: str) -> Steps[None]:
        """Measure a deployment until its reading is precise enough, and not a mere surprise."""
        foreseen, told = self._job.foreseen(at), self._job.told_by_others(at)
        seen = [(yield Probe(at, phase, f"{why}: deploy {at}."))]
        self._job.note(at, seen[-1])
        while doubtful := doubt(self._job, self._job.reading(at), seen, foreseen):
            seen.append((yield Probe(at, "measure", f"measure {at} again: {doubtful}.")))
            if ran_out(seen, foreseen, self._setting.threshold):
                self._job.renew(at, seen[-1:])
                seen = seen[-1:]
            else:
                self._job.note(at, seen[-1])
            windows = self._job.windows(at)
            if newest := other_trainer(at, windows, self._setting.threshold, self._job.shows_its_step):
                self._job.renew(at, windows[: -len(newest)])
                self._start_over(at, newest)
                return
        self._job.rehabilitate(at, seen, told)
        reading = self._job.reading(at)
        if refuted(self._job, reading, seen, foreseen):
            self._job.start_over(at, seen, AGED)
        elif not self._job.recall(at, foreseen) and another_step(self._job, reading, seen):
            self._job.retract(at, seen)
            self._start_over(at, seen)

    def _choose(self, at: Deployment, limits: DeploymentLimits, last: bool = False) -> Choice:
        """Say what to measure next, or that the cheapest measured deployment is good enough."""
        job, settings = self._job, self._settings
        readings, best = job.readings(), job.cheapest(limits)
        spent = self._spent(best, len(readings))
        if last:
            return Choice(best.deployment, spent, done=True)
        plateau = towards_plateau(job, at, readings, limits)
        if plateau:
            return plateau
        options = job.candidates(at, limits)
        hopes = [
            with_more_workers(options, best, *hoped_time(model, options, settings.optimism))
            for model in job.explanations()
        ]
        hoped = np.min([self._setting.score(time, own, options.price) for time, own in hopes], axis=0)
        pick = smallest_of(options, hoped, settings.tie)
        gain = 1 - hoped[pick] / job.cost(best)
        half = spare(job, best, limits, more_than=gain)
        if half:
            return half
        if gain > self._worth_a_look(best):
            here = job.reading(at)
            waits = "" if here.wait is None else f", {here.wait_share:.0%} of it waiting"
            seen = f"{at} take {here.batch_time:.4g} s a batch{waits}"
            missed = self._setting.aim.objective.miss(best.batch_time, best.own_time)
            hope = {
                "": f"may save {gain:.1%} of the least so far",
                "waits": "may leave the trainer no wait",
                "late": "may end in time, or come nearer to it",
            }
            return Choice(options[pick], f"{seen}; {options[pick]} {hope[missed]}")
        check = (
            more_than_enough(job, best, limits)
            or suspect(job, best, limits)
            or other_kind(job, best, readings, limits)
            or further(job, best, readings, limits)
            or unproven(job, best, readings, limits)
            or leaner(job, best, options)
            or fewer_of_a_kind(job, best, limits)
            or imprecise(job, best)
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

    # --- watching ------------------------------------------------------------------------------------------

    def _watch(self, at: Deployment, why: str, limits: DeploymentLimits) -> Steps[str]:
        """Stay until the windows have left the reference, or until it is time for an audit; say how.

        The first windows are the reference, and evidence: a deployment that was chosen by a lucky measurement is
        chosen no more.
        """
        job, threshold, settings = self._job, self._setting.threshold, self._settings
        stay = Probe(at, "converged", f"stay with {at}: {why}.", settled=True)
        seen: list[Window] = []
        while not seen or len(seen) < windows_needed(seen, settings.watched, settings):
            seen.append((yield stay))
            if hurry := self._hurry():
                return hurry
            moved, newest = sudden_departure(pooled(at, job.windows(at)), seen, threshold, whole=job.shows_its_step)
            if moved:
                return self._leave(pooled(at, job.windows(at)), newest, batches_of(seen), moved)
        job.settle(at, seen)
        self._dry = False
        if self._second_thoughts and self._choose(at, limits).deployment != at:
            self._second_thoughts -= 1
            return f"{at} take {job.reading(at).batch_time:.4g} s a batch in the long run"
        return (yield from self._keep_watching(Watch(stay, limits, seen, list(seen), self._audit_after)))

    def _keep_watching(self, watch: Watch) -> Steps[str]:
        """Stay until the windows have left the reference, or until it is time for an audit; say how."""
        job, threshold, settings = self._job, self._setting.threshold, self._settings
        at, seen, reference = watch.stay.target, watch.seen, watch.reference
        stay = replace(watch.stay, bookmark=AutoBookmark(self, watch))
        while True:
            seen.append((yield stay))
            if hurry := self._hurry():
                return hurry
            watch.batches, watch.audit = watch.batches + seen[-1].batches, watch.audit - 1
            recent = seen[-windows_needed(seen, settings.watched, settings) :]
            before, now = pooled(at, reference), pooled(at, recent)
            moved, newest = sudden_departure(before, recent, threshold, whole=job.shows_its_step)
            if moved:
                return self._leave(before, newest, watch.batches - batches_of(newest), moved)
            moved = pace_departure(before, now, threshold) or queue_departure(before, now, seen, threshold, settings)
            watch.away = watch.away + 1 if moved else 0
            watch.lasted = watch.batches if watch.away == 1 else watch.lasted
            if watch.away > len(recent):
                return self._leave(before, recent, watch.lasted, moved)
            if watch.audit <= 0 and not moved:
                return self._audit(at, [*reference, *seen])
            if len(seen) > 2 * len(recent):
                oldest = seen.pop(0)
                if not moved and len(reference) < KEPT:
                    reference.append(oldest)

    def _hurry(self) -> str:
        """Say that another time of a batch is wanted than when it chose last; empty if it is the same."""
        longest_s = self._setting.aim.objective.longest_s
        if longest_s == math.inf or abs(longest_s / self._aimed_s - 1) <= self._setting.threshold:
            return ""
        return f"to end in time a batch may take {longest_s:.4g} s from now on"

    def _leave(self, before: Reading, newest: Sequence[Window], lasted: int, moved: str) -> str:
        """Keep what was learned as a prior, and forget what was measured of a job that has changed.

        `lasted`: batches for which it was as it was before.
        """
        at = before.deployment
        stock = most_piled_up(at, self._setting.clients, self._settings)
        if not self._dry and ran_dry(before, newest, lasted, stock, self._setting.threshold, self._job.shows_its_step):
            self._dry = True
            self._job.renew(at, newest)
        else:
            self._start_over(at, newest)
        return moved

    def _start_over(self, at: Deployment, newest: Sequence[Window]) -> None:
        """Search in what has become another job."""
        self._job.start_over(at, newest, AGED)
        self._dry = False
        self._second_thoughts, self._audit_after = self._settings.second_thoughts, self._settings.audit_after

    def _audit(self, at: Deployment, seen: Sequence[Window]) -> str:
        """Believe less of what was measured of other deployments long ago, so that they may be looked at again."""
        self._audit_after = min(3 * self._audit_after, self._settings.audit_at_last)
        self._job.start_over(at, seen[-KEPT:], self._settings.audit_spread, changed=False)
        return f"what was measured of other deployments is {len(seen)} windows old"


@dataclass
class Watch:
    """What a search knows that watches the deployment which it has chosen."""

    stay: Probe
    limits: DeploymentLimits
    seen: list[Window]
    """The newest windows."""
    reference: list[Window]
    """What they are compared with."""
    audit: int
    """So many windows until other deployments are looked at again."""
    away: int = 0
    """So many of the newest windows have left the reference,"""
    lasted: int = 0
    """and so many batches came before them."""
    batches: int = field(init=False)
    """Batches of all windows of this watch."""

    def __post_init__(self) -> None:
        self.batches = batches_of(self.seen)


@dataclass(frozen=True)
class AutoBookmark:
    """The bookmark of a search that watches."""

    search: AutoSearch
    watch: Watch

    def resume(self) -> Search:
        """Go on with the watch."""
        return self.search.resume(self.watch)


def batches_of(windows: Sequence[Window]) -> int:
    """Return how many batches windows hold."""
    return sum(window.batches for window in windows)
