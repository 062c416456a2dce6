"""The trials of the placement controller: what is on trial, how it is judged, and what is learned from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from pecan_ray.placement.looks import FULL, LOOK_S, STEPS, LookSums, NeedPeaks, Observation, last_of
from pecan_ray.placement.objective import NO_WAIT_SHARE
from pecan_ray.placement.trial_history import MAX_QUIET_S, QUIET_S, Bound, ControlState, PlacementTrial, TrialKind
from pecan_ray.plan.windows import Decision, Deployment

PAUSE_STEPS = 10.0
"""A trainer that has not asked for a batch in so many of its steps does something else."""
GAIN = 0.03
"""A change of rate or bill by less than this share is none: T of the papers (Pecan §5.1)."""
SETTLED_S = 6 * QUIET_S
"""After so long without a change what drift explains stays: a start, and what it shows, are over.  Workers that take
longer for a batch count as if they took so long: a state keeps two beats of looks."""

PerHour: TypeAlias = Callable[[int], float]
"""$ an hour of the trainers' hosts and so many remote workers."""
Ruling: TypeAlias = tuple[Decision, ControlState]


def batch_interval_s(state: ControlState, o: Observation) -> float:
    """Return how long a worker takes for a batch: rows are told by the batch, and workers may beat in time.

    As long as none was told, that may be as long as is counted: the time until the first batch belongs to it.
    """
    counts = (o.running.local, o.running.remote)
    rates = [rate for rate, count in zip(state.known.each, counts, strict=True) if count]
    # By the slowest worker: a verdict has to wait for a batch of each.
    return min(SETTLED_S, o.grain / min(rates)) if rates and all(rates) else SETTLED_S


def hold(state: ControlState, o: Observation, phase: str, why: str) -> Ruling:
    return Decision(o.requested, phase, f"keep {o.requested}: {why}."), state


class Trials:
    """One call of the controller: what it computes of a look, and the rules about trials."""

    def __init__(self, state: ControlState, o: Observation, now: float, per_hour: PerHour | None) -> None:
        self.state, self.o, self.now, self.per_hour = state, o, now, per_hour
        self.sums = LookSums.over(state.looks)
        self.rate = self.sums.rows / self.sums.span
        self.not_reported = o.grain * o.running.workers / self.sums.span / 2
        """Rows a second of batches that workers have begun, on average: they tell rows by the batch."""
        # Both must wait: a wait that is over asks for nothing, and one of a moment is none yet.
        self.wait = min(self.sums.wait, LookSums.over(last_of(state.looks)).wait)
        # A rate that meets the deadline is enough, though the trainer waits.
        self.waiting = self.wait > NO_WAIT_SHARE and self.rate < o.required_rate
        self.whole = o.requested == o.running
        self.batch_interval_s = batch_interval_s(state, o) if any(state.known.each) else 0.0
        # Decision 126: workers tell rows by the batch, so a verdict waits for two batches of each.
        self.quiet_s = max(state.times.quiet_s, 2 * self.batch_interval_s)
        # Decision 126: 40 of the trainer's steps, so that a pause of ten steps is a quarter of it at most.
        self.settled_s = max(2 * self.quiet_s, STEPS * PAUSE_STEPS * state.known.step_s)
        self.holds_s = MAX_QUIET_S * state.times.quiet_s / QUIET_S
        self.phase = "converged" if now - state.times.changed > SETTLED_S else "measure"
        each = state.known.each
        self.available_rate = o.running.local * each[0] + o.running.remote * each[1]

    @property
    def need(self) -> float:
        """Rows a second that are needed at most, as far as was seen without a wait."""
        return self.state.needs.most(self.settled_s)

    def hold(self, why: str, phase: str = "measure") -> Ruling:
        """Keep what runs."""
        return hold(self.state, self.o, phase, why)

    def ask(self, local: int, remote: int, phase: str, why: str) -> Ruling:
        """Ask for other workers, within bounds; what was seen of the old ones is forgotten."""
        room, least = self.o.room, self.o.least
        target = Deployment(
            # Workers that run may stay although room has become less; only new ones need room.
            max(least.local, min(local, max(room.local, self.o.running.local))),
            max(least.remote, min(remote, max(room.remote, self.o.running.remote))),
        )
        if not target.workers:
            target = Deployment(1, 0) if room.local else Deployment(0, 1)
        clocks = replace(self.state.times, changed=self.now)
        state = replace(self.state, looks=(), needs=NeedPeaks(), taken=(self.o.since_taken, 0.0), times=clocks)
        return Decision(target, phase, f"{why}: {target} in place of {self.o.requested}."), state

    def go_on(self) -> Ruling | None:
        """Let workers go once those that replace them are there."""
        follow = self.state.next_deployment
        if follow is None or not self.whole:
            return None
        self.state = replace(self.state, next_deployment=None)
        return self.ask(follow.local, follow.remote, "remove", "those that replace them are there")

    def evaluate_cost(self) -> Ruling | None:
        """Keep a deployment that was tried for the bill if a row costs less."""
        trial = self.state.trial
        if trial is None or trial.kind != "bill" or not self.whole or self.per_hour is None:
            return None
        if self.state.taken[0] < self._cost_window_s():
            return self.hold("the bill is on trial", "trial")
        before, running = trial.before, self.o.running
        bill = self.cost_per_row()
        self.state = replace(self.state, trial=None, removal=None)
        if bill <= trial.measure * (1 - GAIN):
            # The wait beside them is cheaper than more neighbours: unbounded, these came and went each 40 s.
            bounds = (self._bound_at(0, running.local, self.rate), self.state.trial_history.bounds[1])
            self.state = replace(self.state, trial_history=replace(self.state.trial_history, bounds=bounds))
            return None
        # Decision 126: half of the local workers is tried first, and half of that next.
        stride = (self.state.trial_history.stride or 0) // 2
        back = before if before.remote < running.remote else None
        self.state = replace(
            self.state, trial_history=replace(self.state.trial_history, stride=stride), next_deployment=back
        )
        why = f"a row costs {bill / trial.measure - 1:+.1%} with fewer neighbours of the trainer"
        return self.ask(before.local, max(before.remote, running.remote), "back", why)

    def evaluate(self) -> Ruling | None:
        """Undo a trial that has brought nothing, or has cost something."""
        trial = self.state.trial
        # Judged by one batch of two, remote workers came and went 64 times in 8,000 batches.
        if (
            trial is None
            or trial.kind == "bill"
            or not self.whole
            or self.sums.span < 2 * max(LOOK_S, self.batch_interval_s)
        ):
            return None
        self.state = replace(self.state, trial=None)
        adds, running = trial.kind == "add", self.o.running
        # Local CPUs are paid for: workers that bring nothing go once nobody waits.
        if adds and running.remote <= trial.before.remote:
            return None
        wanted = trial.measure * (1 + GAIN if adds else 1 - 2 * GAIN)
        # Decision 126: half a batch of each worker counts as made, because those that have
        # just come have begun more than they have told.
        if self.rate + self.not_reported >= wanted or not (self.waiting or trial.kind == "lag"):
            return None
        self._update_from(trial)
        before, change = trial.before, self.rate / max(trial.measure, 1e-9) - 1
        return self.ask(before.local, before.remote, "back", f"{running} have changed the rate by {change:+.1%}")

    def _update_from(self, trial: PlacementTrial) -> None:
        """Remember a trial that was wrong."""
        state, trial_history = self.state, self.state.trial_history
        if trial.kind == "add":
            bounds = (
                self._bound(0, self.o.running.local, trial.before.local, trial.measure),
                self._bound(1, self.o.running.remote, trial.before.remote, trial.measure),
            )
            self.state = replace(
                self.state,
                trial_history=replace(trial_history, bounds=bounds),
                times=replace(state.times, quiet_s=state.times.longer(), held_since=None),
            )
            return
        shown, (local, remote) = trial_history.measured_rates, state.known.each
        if trial.kind == "fewer":
            shown = (
                local if self.o.running.local < trial.before.local else shown[0],
                remote if self.o.running.remote < trial.before.remote else shown[1],
            )
        clocks = replace(state.times, quiet_s=state.times.longer(), held_since=None)
        self.state = replace(self.state, trial_history=replace(trial_history, measured_rates=shown), times=clocks)

    def _bound(self, side: int, count: int, before: int, rate: float) -> Bound:
        if count <= before:
            return self.state.trial_history.bounds[side]
        return self._bound_at(side, before, max(self.rate, rate))

    def _bound_at(self, side: int, count: int, rate: float) -> Bound:
        room = (self.o.room.local, self.o.room.remote)[side]
        return Bound(count, rate, room, self.now + self.holds_s)

    def _try(self, kind: TrialKind) -> None:
        self.state = replace(self.state, trial=PlacementTrial(kind, self.o.running, self.rate - self.not_reported))

    def _try_lower_cost(self) -> Ruling | None:
        """Try half of the local workers, with remote ones in their place: neighbours may slow the trainer down."""
        running, trial_history, (local, remote) = self.o.running, self.state.trial_history, self.state.known.each
        remote = remote or self.guess_remote()
        if self.per_hour is None or trial_history.stride == 0 or not self._may_replace_local():
            return None
        if trial_history.stride is None:
            self.state = replace(
                self.state,
                trial_history=replace(trial_history, stride=math.ceil(running.local / 2)),
                taken=(self.o.since_taken, 0.0),
                looks=(),
                needs=NeedPeaks(),
            )
            return self.hold("the bill is looked at")
        if self.state.taken[0] < self._cost_window_s():
            return self.hold("the bill is looked at")
        stride = min(running.local - self.o.least.local, trial_history.stride)
        if not remote or not stride:
            return None
        # What the others could make beyond the need takes a part of the work of those that go.
        spare = self.available_rate - self.need / FULL
        more = int(min(self.o.room.remote, running.remote + max(0, math.ceil((stride * local - spare) / remote))))
        target = Deployment(running.local - stride, more)
        self.state = replace(
            self.state,
            trial=PlacementTrial("bill", running, self.cost_per_row()),
            trial_history=replace(trial_history, stride=stride),
            next_deployment=target if more > running.remote else None,
        )
        why = "fewer neighbours of the trainer may make a row cheaper"
        return self.ask(running.local if more > running.remote else target.local, more, "trial", why)

    def _may_replace_local(self) -> bool:
        """Tell whether local workers can be spared, remote ones have room, and needs have been stable for long."""
        running = self.o.running
        few = running.local < 2 and not running.remote
        fixed = few or running.local <= self.o.least.local or not self.o.room.remote
        return not fixed and self.state.needs.stable_s >= self.quiet_s - LOOK_S

    def _cost_window_s(self) -> float:
        """Return how long a bill is looked at."""
        # Two batches of each worker, because they tell rows by the batch.
        return max(2 * QUIET_S, 2 * self.batch_interval_s)

    def fitted_remote(self) -> int:
        """Return how many of the remote workers are needed, or worth it, beside the local ones."""
        running, (local, remote), needs = self.o.running, self.state.known.each, self.state.needs
        if remote <= 0 or not needs.peaks:
            return running.remote
        others = running.local * local
        least = max(0, math.ceil((self.need / FULL - others) / remote))
        if self.per_hour is not None:  # a wait may be cheaper than the workers that end it
            least = min(least, optimal_remote(self.per_hour, others, remote, 0, running.remote, self.need))
        return min(running.remote, least)

    def guess_remote(self) -> float:
        """Return rows a second of a remote worker before one was seen: local ones may be in each other's way."""
        threads = self.o.threads
        alone = threads[1] / self.o.own_s if self.o.own_s else 0.0
        return max(alone, self.state.known.each[0] * threads[1] / threads[0])

    def cost_per_row(self) -> float:
        """Return $ an hour over rows a second since workers came or went, without workers that may go.

        Counted from one batch to another: a stretch holds few of them.
        """
        assert self.per_hour is not None
        seconds, rows = self.state.taken
        return self.per_hour(self.fitted_remote()) / max(1e-9, rows / max(LOOK_S, seconds - self.o.since_taken))


def optimal_remote(per_hour: PerHour, others: float, one: float, least: int, most: int, demand: float) -> int:
    """Return how many remote workers make a row cheapest, beside what others supply; rates are rows a second."""
    return min(
        range(least, most + 1),
        key=lambda remote: (per_hour(remote) / max(1e-9, min(demand, others + remote * one)), remote),
    )
