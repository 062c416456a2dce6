"""The trials of the placement controller: what is on trial, how it is judged, and what is learned from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from pecan_ray.placement.looks import FULL, LOOK_S, LookSums, Observation
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
        self.wait = min(self.sums.wait, LookSums.over(state.looks[-2:]).wait)
        # A rate that meets the deadline is enough, though the trainer waits.
        self.waiting = self.wait > NO_WAIT_SHARE and self.rate < o.required_rate
        self.cost_window_s = cost_window_s(state, o)
        self.batch_interval_s = batch_interval_s(state, o) if any(state.known.each) else 0.0
        # Decision 126: workers tell rows by the batch, so a verdict waits for two batches of each.
        self.quiet_s = max(state.times.quiet_s, 2 * self.batch_interval_s)
        self.holds_s = MAX_QUIET_S * state.times.quiet_s / QUIET_S
        """How long what a trial shows holds: the longer, the more of those before it were wrong."""
        settled = now - state.times.changed > SETTLED_S and state.trial is None and self._next_on_trial() is None
        self.phase = "converged" if settled else "measure"

    @property
    def whole(self) -> bool:
        """Return whether all workers run that were asked for."""
        return self.o.requested == self.o.running

    @property
    def available_rate(self) -> float:
        """Rows a second that the running workers can make."""
        local, remote = self.state.known.each
        return self.o.running.local * local + self.o.running.remote * remote

    @property
    def floor(self) -> Deployment:
        """The fewest workers, as far as was shown for what is taken."""
        # By the whole stretch: trainers take batches in beats, and floors were given up for a look with few of them.
        return self.state.trial_history.floor.workers(self.now, self.taken_rate)

    @property
    def need(self) -> float:
        """Rows a second that are needed, where nobody waits."""
        # What is taken, and not what is made: workers may fill a queue for minutes, or wait until it has drained.
        return min(self.taken_rate, self.o.required_rate)

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
        if target == self.o.requested:
            return self.hold(why)
        clocks = replace(self.state.times, changed=self.now)
        state = replace(self.state, looks=(), stretch=LookSums(self.o.since_taken), calm_s=0.0, times=clocks)
        return Decision(target, phase, f"{why}: {target} in place of {self.o.requested}."), state

    def go_on(self) -> Ruling | None:
        """Let workers go once those that replace them are there."""
        trial = self.state.trial
        if trial is not None and self.whole and self.o.running.remote < trial.remote:
            # Nodes did not come, or were lost: this is not what was to be tried, and no local workers go for it.
            self.state = replace(self.state, trial=None, next_deployment=None)
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
        if self.state.stretch.span < self.cost_window_s or not self.state.stretch.taken:
            return self.hold("the bill is on trial", "trial")
        before, running = trial.before, self.o.running
        replaces = before.local != running.local
        bill = self.cost_per_row(spare=replaces)
        cheaper = bill < trial.measure
        self.state = replace(self.state, trial=None, removed_from=None)
        if replaces:
            self._narrow(before, running, cheaper)
        elif not cheaper:
            self._learn(floor=Floor(Deployment(0, running.remote + 1), self.taken_rate, self.now + self.holds_s))
        if cheaper:
            # The wait beside them is cheaper than those that went: unbounded, these came and went each 40 s.
            self._learn(bounds=self.bounded(running, before, self.rate))
            return None
        return self._replace(before, "back", f"a row costs {bill / trial.measure - 1:+.1%} with {running}")

    def _replace(self, target: Deployment, phase: str, why: str) -> Ruling:
        """Ask for other workers; those that go stay until those that come are there."""
        running = self.o.running
        both = Deployment(max(running.local, target.local), max(running.remote, target.remote))
        first = target if both == running else both
        self.state = replace(self.state, next_deployment=None if first == target else target)
        return self.ask(first.local, first.remote, phase, why)

    def _narrow(self, before: Deployment, running: Deployment, cheaper: bool) -> None:
        """Remember beside which local workers a row has proved dearer."""
        # The bracket of what ran before: that of what runs might leave out all that lies between.
        least, most = self._bracket(before.local)
        worse, better = (before.local, running.local) if cheaper else (running.local, before.local)
        self._learn(bracket=(max(least, worse), most) if worse < better else (least, min(most, worse)))

    def evaluate(self) -> Ruling | None:
        """Undo a trial that has brought nothing, or has cost something."""
        trial = self.state.trial
        if trial is None or trial.kind == "bill" or not self.whole:
            return None
        # Judged by one batch of two, remote workers came and went 64 times in 8,000 batches.
        if self.sums.span < 2 * max(LOOK_S, self.batch_interval_s):
            # Those that come back before the verdict would leave nothing to learn: a trial of fewer was made each 15 s.
            return self.hold("fewer workers are on trial", "trial") if trial.kind == "fewer" else None
        self.state = replace(self.state, trial=None)
        adds, running = trial.kind == "add", self.o.running
        wanted = trial.measure * (1 + GAIN if adds else 1 - 2 * GAIN)
        # Those that have just come have begun more than they have told: half a batch of each counts as made.
        if self.rate + adds * self.not_reported >= wanted or not self.waiting:
            return None
        self._update_from(trial)
        before, change = trial.before, self.rate / max(trial.measure, 1e-9) - 1
        return self.ask(before.local, before.remote, "back", f"{running} have changed the rate by {change:+.1%}")

    def _update_from(self, trial: PlacementTrial) -> None:
        """Remember a trial that was wrong."""
        before, running, each = trial.before, self.o.running, self.state.known.each
        if trial.kind == "add":
            self._learn(bounds=self.bounded(before, running, max(self.rate, trial.measure)))
        else:
            local, remote = self.state.trial_history.measured_rates
            local = each[0] if running.local < before.local else local
            self._learn(measured_rates=(local, each[1] if running.remote < before.remote else remote))
        self._time(quiet_s=self.state.times.longer(), held_since=None)
        self.state = replace(self.state, removed_from=None)

    def _learn(self, **shown: Any) -> None:
        self.state = replace(self.state, trial_history=replace(self.state.trial_history, **shown))

    def _time(self, **times: Any) -> None:
        self.state = replace(self.state, times=replace(self.state.times, **times))

    def bounded(self, enough: Deployment, more: Deployment, rate: float) -> tuple[Bound, Bound]:
        """Return bounds at what is enough, for the sides of which there were more, and the old ones else."""
        (local, remote), room, until = self.state.trial_history.bounds, self.o.room, self.now + self.holds_s
        if enough.local < more.local or local.count == enough.local:
            local = Bound(enough.local, rate, room.local, until, enough.remote)
        if enough.remote < more.remote or remote.count == enough.remote:
            remote = Bound(enough.remote, rate, room.remote, until, enough.local)
        return local, remote

    def _try(self, kind: TrialKind) -> None:
        adds, running = kind == "add", self.o.running
        told = self.rate - adds * self.not_reported
        self.state = replace(self.state, trial=PlacementTrial(kind, running, told, adds * (running.remote + 1)))

    def try_lower_cost(self) -> Ruling | None:
        """Try the bill of other workers: other local ones, or fewer remote ones beside which the trainer waits."""
        target = self._next_on_trial()
        if target is None or not self.whole:
            return None
        return self.try_bill(target, "trial", f"{target} may make a row cheaper")

    def try_bill(self, target: Deployment, phase: str, why: str) -> Ruling:
        """Try the bill of other workers once that of those that run is known."""
        if self.state.stretch.span < self.cost_window_s:
            return self.hold("the bill is looked at")
        spare = target.local != self.o.running.local
        trial = PlacementTrial("bill", self.o.running, self.cost_per_row(spare=spare), target.remote)
        self.state = replace(self.state, trial=trial)
        return self._replace(target, phase, why)

    def _next_on_trial(self) -> Deployment | None:
        """Return what to try the bill of next; None: nothing more."""
        running, (each_local, each_remote) = self.o.running, self.state.known.each
        if self.per_hour is None or not self.o.room.remote:
            return None
        each_remote = each_remote or self.guess_remote()
        local = self._next_local()
        if local is not None and each_remote:
            # Neighbours may slow the trainer: remote workers come in the place of those that go.
            lacks = math.ceil((self.taken_rate / FULL - local * each_local) / each_remote)
            return Deployment(local, max(running.remote, min(self.o.room.remote, lacks)))
        # A wait of a few shares may be cheaper than the workers that would end it, and those that shorten it.
        fewer = running.remote - math.ceil((1 - FULL) * running.remote)
        least = max(self.o.least.remote, self.floor.remote)
        if self.waiting and self.wait < 1 - FULL and least <= fewer < running.remote and fewer + running.local:
            return Deployment(running.local, fewer)
        return None

    def _bracket(self, local: int) -> tuple[int, int]:
        """Return numbers of local workers, below and above those that run, beside which a row is dearer."""
        least, most = self.state.trial_history.bracket
        return (least, most) if least < local < most else (self.o.least.local - 1, local + 1)

    def _next_local(self) -> int | None:
        """Return with how many local workers to try the bill next: the middle of the wider side; None: no more."""
        local, remote = self.o.running.local, self.o.running.remote
        if local < 2 and not remote:
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
        running, (local, remote) = self.o.running, self.state.known.each
        if remote <= 0:
            return running.remote
        others = running.local * local
        least = max(0, math.ceil((self.need / FULL - others) / remote))
        if self.per_hour is not None:  # a wait may be cheaper than the workers that end it
            least = min(least, self.optimal_remote(others, remote, 0, running.remote, self.need))
        return min(running.remote, least)

    def guess_remote(self) -> float:
        """Return rows a second of a remote worker before one was seen: local ones may be in each other's way."""
        threads = self.o.threads
        alone = threads[1] / self.o.own_s if self.o.own_s else 0.0
        return max(alone, self.state.known.each[0] * threads[1] / threads[0])

    @property
    def taken_rate(self) -> float:
        """Rows a second that the trainer took since workers came or went, counted from one batch to another."""
        return self.state.stretch.taken / max(LOOK_S, self.state.stretch.span - self.o.since_taken)

    def cost_per_row(self, *, spare: bool) -> float:
        """Return $ an hour over rows a second since workers came or went; `spare`: without remote ones that may go."""
        assert self.per_hour is not None
        (local, remote), count = self.state.known.each, self.o.running.remote
        others = self.o.running.local * local
        # A backlog hides for long that workers are too few for what is taken.
        rate = max(1e-9, min(self.taken_rate, others + count * remote))
        if spare:
            count = self.optimal_remote(others, remote, 0, count, rate)
        return self._row_cost(count, others, remote, rate)

    def optimal_remote(self, others: float, one: float, least: int, most: int, demand: float) -> int:
        """Return how many remote workers make a row cheapest, beside what others supply; rates are rows a second."""
        return min(range(least, most + 1), key=lambda remote: (self._row_cost(remote, others, one, demand), remote))

    def _row_cost(self, remote: int, others: float, one: float, demand: float) -> float:
        """Return $ an hour over rows a second beside so many remote workers, which send their share of the rows."""
        assert self.per_hour is not None
        supply = max(1e-9, others + remote * one)
        return self.per_hour(remote) / max(1e-9, min(demand, supply)) + self.o.row_transfer * remote * one / supply
