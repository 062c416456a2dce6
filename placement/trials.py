"""The trials of the placement controller: what is on trial, how it is judged, and what is learned from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from pecan_ray.placement.looks import FULL, LOOK_S, STEPS, LookSums, NeedPeaks, Observation, Taken, last_of
from pecan_ray.placement.objective import NO_WAIT_SHARE
from pecan_ray.placement.trial_history import (
    MAX_QUIET_S,
    QUIET_S,
    Bound,
    ControlState,
    Floor,
    PlacementTrial,
    TrialKind,
)
from pecan_ray.plan.windows import Decision, Deployment

PAUSE_STEPS = 10.0
"""A trainer that has not asked for a batch in so many of its steps does something else."""
GAIN = 0.03
"""A change of rate or bill by less than this share is none: T of the papers (Pecan §5.1)."""
COST_STEPS = 250.0
"""A bill is looked at for so many of the trainer's steps: a pause that is still taken for a step is 4 % of them."""
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


def cost_window_s(state: ControlState, o: Observation) -> float:
    """Return how long a bill is looked at: two batches of each worker, because they tell rows by the batch."""
    return max(2 * QUIET_S, 2 * batch_interval_s(state, o), COST_STEPS * state.known.step_s)


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
        self.cost_window_s = cost_window_s(state, o)
        self.batch_interval_s = batch_interval_s(state, o) if any(state.known.each) else 0.0
        # Decision 126: workers tell rows by the batch, so a verdict waits for two batches of each.
        self.quiet_s = max(state.times.quiet_s, 2 * self.batch_interval_s)
        # Decision 126: 40 of the trainer's steps, so that a pause of ten steps is a quarter of it at most.
        self.settled_s = max(2 * self.quiet_s, STEPS * PAUSE_STEPS * state.known.step_s)
        self.holds_s = MAX_QUIET_S * state.times.quiet_s / QUIET_S
        settled = now - state.times.changed > SETTLED_S and state.trial is None and self._next_local() is None
        self.phase = "converged" if settled else "measure"
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
        state = replace(self.state, looks=(), needs=NeedPeaks(), taken=Taken(self.o.since_taken), times=clocks)
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
        if self.state.taken.span < self.cost_window_s:
            return self.hold("the bill is on trial", "trial")
        before, running = trial.before, self.o.running
        replaces = before.local != running.local
        bill = self.cost_per_row(spare=replaces)
        cheaper = bill < trial.measure
        self.state = replace(self.state, trial=None, removal=None)
        if replaces:
            self._learn(bracket=self._narrower(*((running, before) if cheaper else (before, running))))
        elif not cheaper:
            self._learn(floor=Floor(Deployment(0, running.remote + 1), self.taken_rate, self.now + self.holds_s))
        if cheaper:
            # The wait beside them is cheaper than those that went: unbounded, these came and went each 40 s.
            self._learn(bounds=self._bounded(running, before, self.rate))
            return None
        return self._replace(before, "back", f"a row costs {bill / trial.measure - 1:+.1%} with {running}")

    def _replace(self, target: Deployment, phase: str, why: str) -> Ruling:
        """Ask for other workers; those that go stay until those that come are there."""
        running = self.o.running
        both = Deployment(max(running.local, target.local), max(running.remote, target.remote))
        first = target if both == running else both
        self.state = replace(self.state, next_deployment=None if first == target else target)
        return self.ask(first.local, first.remote, phase, why)

    def _narrower(self, better: Deployment, worse: Deployment) -> tuple[int, int]:
        """Return the bracket once a row has proved dearer beside some number of local workers."""
        least, most = self._bracket(better.local)
        return (max(least, worse.local), most) if worse.local < better.local else (least, min(most, worse.local))

    def evaluate(self) -> Ruling | None:
        """Undo a trial that has brought nothing, or has cost something."""
        trial = self.state.trial
        # Judged by one batch of two, remote workers came and went 64 times in 8,000 batches.
        short = self.sums.span < 2 * max(LOOK_S, self.batch_interval_s)
        if trial is None or trial.kind == "bill" or not self.whole or short:
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
        before, running, each = trial.before, self.o.running, self.state.known.each
        if trial.kind == "add":
            self._learn(bounds=self._bounded(before, running, max(self.rate, trial.measure)))
        elif trial.kind == "fewer":
            local, remote = self.state.trial_history.measured_rates
            local = each[0] if running.local < before.local else local
            self._learn(measured_rates=(local, each[1] if running.remote < before.remote else remote))
        self._time(quiet_s=self.state.times.longer(), held_since=None)

    def _learn(self, **shown: Any) -> None:
        self.state = replace(self.state, trial_history=replace(self.state.trial_history, **shown))

    def _time(self, **times: Any) -> None:
        self.state = replace(self.state, times=replace(self.state.times, **times))

    def _bounded(self, enough: Deployment, more: Deployment, rate: float) -> tuple[Bound, Bound]:
        """Return bounds at what is enough, for the sides of which there were more, and the old ones else."""
        (local, remote), room, until = self.state.trial_history.bounds, self.o.room, self.now + self.holds_s
        if enough.local < more.local:
            local = Bound(enough.local, rate, room.local, until)
        if enough.remote < more.remote:
            remote = Bound(enough.remote, rate, room.remote, until)
        return local, remote

    def _try(self, kind: TrialKind) -> None:
        self.state = replace(self.state, trial=PlacementTrial(kind, self.o.running, self.rate - self.not_reported))

    def try_lower_cost(self) -> Ruling | None:
        """Try other local workers, with remote ones in the place of those that go: neighbours may slow the trainer."""
        local = self._next_local()
        if local is None or not self.whole:
            return None
        running, (each_local, each_remote) = self.o.running, self.state.known.each
        if self.state.trial_history.bracket is None:
            # Until now queues were filled, and the trainer waited for that.
            self._learn(bracket=self._bracket(running.local))
            self.state = replace(self.state, taken=Taken(self.o.since_taken), looks=(), needs=NeedPeaks())
            return self.hold("the bill is looked at")
        if self.state.taken.span < self.cost_window_s:
            return self.hold("the bill is looked at")
        each_remote = each_remote or self.guess_remote()
        if not each_remote:
            return None
        lacks = math.ceil((self.taken_rate / FULL - local * each_local) / each_remote)
        remote = max(running.remote, min(self.o.room.remote, lacks))
        self.state = replace(self.state, trial=PlacementTrial("bill", running, self.cost_per_row(spare=True)))
        return self._replace(Deployment(local, remote), "trial", f"{local} local workers may make a row cheaper")

    def _bracket(self, local: int) -> tuple[int, int]:
        """Return numbers of local workers, below and above those that run, beside which a row is dearer."""
        least, most = self.state.trial_history.bracket or (-1, 0)
        return (least, most) if least < local < most else (self.o.least.local - 1, local + 1)

    def _next_local(self) -> int | None:
        """Return with how many local workers to try the bill next: the middle of the wider side; None: no more."""
        local, remote = self.o.running.local, self.o.running.remote
        if self.per_hour is None or not self.o.room.remote or (local < 2 and not remote):
            return None
        least, most = self._bracket(local)
        # Less than a tenth of them changes less than supply drifts, fewer neighbours do not end a wait for rows,
        # and more have a point only in the place of remote ones.
        least_step = (1 - FULL) * local
        fewer = (local - least) // 2 if self.wait < 1 - FULL else 0
        more = (most - local) // 2 if remote else 0
        fewer, more = (step if step >= least_step else 0 for step in (fewer, more))
        if not fewer and not more:
            return None
        return local - fewer if fewer >= more else local + more

    def fitted_remote(self) -> int:
        """Return how many of the remote workers are needed, or worth it, beside the local ones."""
        running, (local, remote), needs = self.o.running, self.state.known.each, self.state.needs
        if remote <= 0 or not needs.peaks:
            return running.remote
        others = running.local * local
        least = max(0, math.ceil((self.need / FULL - others) / remote))
        if self.per_hour is not None:  # a wait may be cheaper than the workers that end it
            half = running.remote // 2  # rates are not right for far fewer
            least = min(least, optimal_remote(self.per_hour, others, remote, half, running.remote, self.need))
        return min(running.remote, least)

    def guess_remote(self) -> float:
        """Return rows a second of a remote worker before one was seen: local ones may be in each other's way."""
        threads = self.o.threads
        alone = threads[1] / self.o.own_s if self.o.own_s else 0.0
        return max(alone, self.state.known.each[0] * threads[1] / threads[0])

    @property
    def taken_rate(self) -> float:
        """Rows a second that the trainer took since workers came or went, counted from one batch to another."""
        return self.state.taken.rows / max(LOOK_S, self.state.taken.span - self.o.since_taken)

    def cost_per_row(self, *, spare: bool) -> float:
        """Return $ an hour over rows a second since workers came or went; `spare`: without remote ones that may go."""
        assert self.per_hour is not None
        (local, remote), count = self.state.known.each, self.o.running.remote
        others = self.o.running.local * local
        # A backlog hides for long that workers are too few for what is taken.
        rate = max(1e-9, min(self.taken_rate, others + count * remote))
        if spare and remote:
            count = min(count, max(0, math.ceil((rate / FULL - others) / remote)))
        return self.per_hour(count) / rate


def optimal_remote(per_hour: PerHour, others: float, one: float, least: int, most: int, demand: float) -> int:
    """Return how many remote workers make a row cheapest, beside what others supply; rates are rows a second."""
    return min(
        range(least, most + 1),
        key=lambda remote: (per_hour(remote) / max(1e-9, min(demand, others + remote * one)), remote),
    )
