"""The placement controller: how many workers run beside the trainers and how many on other nodes.

    control(state, observation, now, per_hour) -> decision, state

Pure: equal inputs give equal outputs.  It steers by two facts: how long the trainer waited, and which share of their
time nothing held the workers back (`load`).  With FULL, the load up to which workers are given,

    workers needed = workers * load / FULL          while nobody waits
                   >= workers / (1 - wait) / FULL   while the trainer waits

If supply grows slower than linearly with the workers, neither step passes what is needed.  Local CPUs are paid for
already: they are used at once, and given back when nobody waits.  Each removal and each remote worker is a trial:
judged with all workers present, undone if it was wrong, and remembered.

Decisions: docs/decisions/placement.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pecan_ray.placement.accelerator import AcceleratorRules
from pecan_ray.placement.looks import (
    FULL,
    LOOK_S,
    ROWS,
    STEPS,
    LookSums,
    Observation,
    drop_old_looks,
)
from pecan_ray.placement.objective import NO_WAIT_SHARE
from pecan_ray.placement.trial_history import (
    QUIET_S,
    ControlState,
    Floor,
)
from pecan_ray.placement.trials import (
    PAUSE_STEPS,
    PerHour,
    Ruling,
    batch_interval_s,
    cost_window_s,
    hold,
)
from pecan_ray.plan.windows import Deployment

ALONE = 0.5
"""A worker that would need less than this share of its time alone is held up by something shared: half is lost."""
KNEE = 1.5
"""Workers that are kept, over those that would do if nobody waited for what is shared: a closed network of queues then
gives 0.9 of its bound."""
LEAP = 4.0
"""Remote supply grows by this factor at most: beside a program that runs ahead, a wait says nothing about demand.  Four
makes starts and surplus together cheapest, where nodes take 3 minutes and a host costs 10 workers."""
GUESS_S = 0.02
"""No trainer's step is taken for shorter before one was seen: ResNet18's, the fastest known, takes 22 ms."""
MISSED_S = LOOK_S / 4
"""Nothing is added until the trainer has waited for so much longer than NO_WAIT_SHARE allows: half of a look, so that
a trainer without rows is seen by the next one, and beats of accumulation are not taken for a lack of workers."""
LAGS = (1 - FULL) / 2
"""Share of its time that the trainer's thread may stand in line for a CPU: half of what FULL leaves free."""


def begin(row_s: float | None, batch: int, room: int) -> int:
    """Return the local workers to begin with: those that make a batch in GUESS_S, by a sample's seconds of a row.

    None: nothing was sampled; infinite: a sample takes so long that all CPUs are needed.
    """
    if row_s is None:
        return min(1, room)
    return max(min(1, room), math.ceil(min(room, batch * row_s / GUESS_S)))


def control(state: ControlState, o: Observation, now: float, per_hour: PerHour | None = None) -> Ruling:
    """Return what shall run, and what to remember.

    Args:
        state: What the last call has returned.
        o: What was seen since then.
        now: Seconds since the job began.
        per_hour: What remote workers cost; None: only the trainer's wait counts, and then the number of workers.
    """
    decision, state = _rule(state, o, now, per_hour)
    return replace(decision, accelerator=state.accelerator.on), state


def _rule(state: ControlState, o: Observation, now: float, per_hour: PerHour | None) -> Ruling:
    if _does_something_else(state, o):
        return hold(state, o, "measure", "the trainer does something else")
    if o.accelerator not in (None, state.accelerator.on):
        return hold(state, o, "measure", "workers are being replaced")
    case = _Rules(_seen(state, o, now), o, now, per_hour)
    first = (case.evaluate_accelerator, case.unresolved, case.go_on, case.evaluate_cost, case.evaluate)
    for rule in (*first, case.too_few, case.unknown, case.in_line):
        answer = rule()
        if answer is not None:
            return answer
    return case.remove_extra()


def _does_something_else(state: ControlState, o: Observation) -> bool:
    """Tell a pause (an evaluation, a checkpoint, compilation) from steps: the absence of a step is no news."""
    usual_s = max(state.known.step_s, LOOK_S / PAUSE_STEPS)
    return not o.steps and not o.waited and o.since_taken > PAUSE_STEPS * usual_s


def _seen(state: ControlState, o: Observation, now: float) -> ControlState:
    """Add a look to what was seen."""
    # Looks at other workers say nothing about these.
    same = state.running == o.running
    times = state.times if same and o.requested == o.running else replace(state.times, changed=now)
    look = LookSums.of(o)
    looks = drop_old_looks((*(state.looks if same else ()), look), 2 * ROWS, 2 * batch_interval_s(state, o))
    # What was taken before the last batch belongs to the workers before.
    stretch = state.stretch.add(look, 2 * cost_window_s(state, o)) if same else LookSums(o.since_taken)
    missed_s = max(0.0, (state.missed_s if same else 0.0) + o.waited - NO_WAIT_SHARE * o.dt)
    sums, known = LookSums.over(looks), state.known
    if sums.steps >= STEPS and o.steps:
        known = replace(known, step_s=(sums.span - min(sums.span, sums.waited)) / sums.steps)
    each = [_rate_of_one(stretch, o, side, known.each[side]) for side in (0, 1)]
    return replace(
        state,
        running=o.running,
        times=times,
        looks=looks,
        missed_s=missed_s,
        known=replace(known, each=(each[0], each[1])),
        stretch=stretch,
    )


def _rate_of_one(sums: LookSums, o: Observation, side: int, before: float) -> float:
    """Return rows a second of one worker of a side that nothing holds back; the rate before, while rows are few.

    A worker tells rows by the batch: with less than one of each, chance decides how many fall into the work, and
    work of less than a microsecond is none.
    """
    count = (o.running.local, o.running.remote)[side]
    # After a pause, batches that were begun before it came in seconds in which hardly anybody worked.
    # Workers seemed four times as fast, and a job that runs ahead changed its workers 82 times in two hours.
    made, busy_s = ((sums.made_local, sums.busy_local), (sums.made_remote, sums.busy_remote))[side]
    if busy_s <= 1e-6 or (before and made < max(ROWS, o.grain * count)):
        return before
    return made / busy_s


class _Rules(AcceleratorRules):
    """The rules read what a call has computed, in their order; the first that answers decides."""

    def unresolved(self) -> Ruling | None:
        """Judge nothing while local workers start, or everything stands still: storage has hiccups of seconds."""
        if self.sums.span < LOOK_S:
            return self.hold("too little was seen")
        starting, more = self.o.requested.local > self.o.running.local, self.o.room.local > self.o.requested.local
        # Local CPUs are paid for: while the trainer waits, more are asked for beside those that start.
        if starting and not (self.waiting and more):
            return self.hold("local workers are starting")
        promised = self.sums.work_done * self.available_rate / max(1, self.o.running.workers)
        if self.waiting and self.sums.rows < ALONE * promised:
            return self.hold("workers stand still")
        return None

    def too_few(self) -> Ruling | None:
        """Add workers while the trainer waits and workers do not."""
        busy = self.o.busy_waiting
        # Workers with finished batches do not hold the trainer up: more of them would not end its wait.
        if not self.waiting or (busy is not None and busy <= FULL):
            return None
        if self.o.running.workers and self.sums.work_done <= 0:
            return self.hold("workers have not begun")
        if self.state.missed_s < MISSED_S:
            return self.hold("the trainer has hardly waited")
        self.state = replace(self.state, calm_s=0.0)
        short = 1 / max(1 - self.wait, 1e-3) / FULL
        self._miss_removed()
        answer = self._shared_limit()
        if answer is not None:
            return answer
        self._time(held_since=None)
        # Local workers first, because their CPUs are paid for already.
        answer = self._add_local(short)
        for rule in (self._add_remote, self._use_accelerator, self._remove_dear, self.try_lower_cost):
            answer = answer or rule()
        return answer or self.hold("nothing is left to add", self.phase)

    def _miss_removed(self) -> None:
        """Remember that workers which went are missed: this doubles the time of quiet, and leaves a floor."""
        before, running = self.state.removed_from, self.o.running
        if before is None or not self.whole:
            return
        least = Deployment(
            running.local + 1 if before.local > running.local else 0,
            running.remote + 1 if before.remote > running.remote else 0,
        )
        self._learn(floor=Floor(least, self.taken_rate, self.now + self.holds_s))
        self._time(quiet_s=self.state.times.longer())
        self.state = replace(self.state, removed_from=None)

    def _shared_limit(self) -> Ruling | None:
        """Try fewer workers where storage, a link or a quota holds them up: more of them would only wait for it."""
        state, running = self.state, self.o.running
        alone = self._alone()
        side = 1 if running.remote and alone[1] < ALONE else 0
        count, share = (running.local, running.remote)[side], alone[side]
        if count < 2 or share >= ALONE or not self._are_rates_known(side):
            return None
        held_s = self._held_s()
        knee = max(1, (self.o.least.local, self.o.least.remote)[side], math.ceil(KNEE * count * share))
        why = f"something shared lets a worker work for {share:.0%} of its time"
        if knee >= count:
            # Local workers may hold each other up: others, elsewhere, do not share their CPUs.
            return self._add_remote() or self.hold(why)
        if held_s < state.times.quiet_s:
            return self.hold(why)
        target = Deployment(running.local, knee) if side else Deployment(knee, running.remote)
        self._learn(bounds=self.bounded(target, running, self.rate))
        self._time(held_since=None)
        self._try("fewer")
        return self.ask(target.local, target.remote, "trial", why)

    def _are_rates_known(self, side: int) -> bool:
        """Tell whether a whole look at busy workers has shown that each works less than when it was measured."""
        known = self.state.known.each[side] < FULL * self.state.trial_history.measured_rates[side]
        # The first batches of all workers say too little of one: a batch and a half of each do.
        enough_rows = self.sums.rows >= max(ROWS, 1.5 * self.o.grain * self.o.running.workers)
        return known and enough_rows and self.whole and self.sums.load > FULL

    def _held_s(self) -> float:
        """Return for how long workers, or the trainer, have been held up: from the first look on that has seen it."""
        clocks = self.state.times
        since = self.now if clocks.held_since is None else clocks.held_since
        self._time(held_since=since)
        return self.now - since

    def _alone(self) -> tuple[float, float]:
        """Return which share of its time a worker of each side would need if nobody was in its way."""
        own, (local, remote), threads = self.o.own_s, self.state.known.each, self.o.threads
        if own is None:
            return 1.0, 1.0
        return local * own / threads[0], remote * own / threads[1]

    def _top(self, side: int) -> float:
        o = self.o
        room, beside = ((o.room.local, o.running.remote), (o.room.remote, o.running.local))[side]
        return min(room, self.state.trial_history.bounds[side].most(self.now, self.rate, room, beside))

    def _add_local(self, short: float) -> Ruling | None:
        running, top = self.o.running, self._top(0)
        more = int(min(top, max(running.local + 1, math.ceil(running.local * short))))
        if more <= self.o.requested.local:
            return None
        # No trial, because local CPUs are paid for.  One of the bill goes on: once nobody judged what it had asked for.
        return self.ask(
            more, self.o.requested.remote, "add_local", f"the trainer waits {self.wait:.0%}, and CPUs are idle"
        )

    def _add_remote(self) -> Ruling | None:
        """Add remote workers where they are worth it; never while some are awaited, or some at hand are idle."""
        running, top, known = self.o.running, self._top(1), self.state.known
        starts = self.state.stretch.span < QUIET_S  # a wait that will be over before a node is there
        # By time, which is bounded: of workers that take a minute for a batch, looks hold fewer than one each, and a
        # trainer waited 80 % of its time beside all local workers.  What is asked for is a multiple of what is seen.
        seen = self.sums.rows >= ROWS and self.sums.span >= 1.5 * self.batch_interval_s
        if starts or running.remote >= top or not self.whole or not seen or self.sums.load <= FULL:
            return None
        one = known.each[1] or self.guess_remote()
        wanted = min(LEAP * self.rate, self.state.stretch.demand / FULL)
        wanted = min(wanted, self.o.required_rate / FULL)
        # Where more have brought nothing once, few are asked for: over a full link six came again after ten minutes.
        if running.remote >= self.state.trial_history.bounds[1].count:
            wanted = min(wanted, self.rate / FULL)
        more = int(min(top, running.remote + max(1, math.ceil((wanted - self.rate) / one))))
        if self.per_hour is not None:
            others = self.rate - running.remote * known.each[1]
            # A bill counts what is taken: with room for drift, workers seemed to pay that end a wait of 2 %.
            more = self.optimal_remote(others, one, running.remote, more, FULL * wanted)
        if more <= running.remote:
            return None
        self._try("add")
        return self.ask(
            running.local, more, "add_remote", f"the trainer waits {self.wait:.0%} beside all local workers"
        )

    def _use_accelerator(self) -> Ruling | None:
        """Try the accelerator, unless remote workers may still be added that only have to be asked for."""
        return None if self.per_hour is None and self.o.running.remote < self._top(1) else self.use_accelerator()

    def _remove_dear(self) -> Ruling | None:
        """Let remote workers go that cost more than they bring: only dear nodes have room, or what is sent costs."""
        running, one, dear = self.o.running, self.state.known.each[1], self.o.overpaid or self.o.row_transfer
        if self.per_hour is None or not dear or not self.whole or not one:
            return None
        if self.state.stretch.span < self.cost_window_s:
            return self.hold("the bill is looked at")
        others = max(0.0, self.rate - running.remote * one)
        demand = min(self.state.stretch.demand, self.o.required_rate)
        worth = self.optimal_remote(others, one, self.o.least.remote, running.remote, demand)
        if worth >= running.remote:
            return None
        fewer = Deployment(running.local, worth)
        # Else they would be bought again: without them nobody pays for dear nodes.
        self._learn(bounds=self.bounded(fewer, running, self.rate))
        why = "nodes with room cost" if self.o.overpaid else "what remote workers send costs"
        return self.ask(running.local, worth, "remove", f"{why} more than their workers bring")

    def unknown(self) -> Ruling | None:
        """Judge nothing without steps of the trainer, or with other workers than were asked for."""
        if self.sums.steps >= STEPS and self.whole and self.sums.work_done > 0 and not self.waiting:
            return None
        self._time(held_since=None)
        return self.hold("too little is known")

    def in_line(self) -> Ruling | None:
        """Try fewer local workers where the trainer's own thread stands in line for a CPU."""
        lag, running = self.o.lag or 0.0, self.o.running
        fewer = min(running.local - 1, math.ceil(running.local * (1 - lag)))
        fewer = max(1, fewer, self.floor.local, self.o.least.local)
        if lag <= LAGS or fewer >= running.local:
            self._time(held_since=None)
            return None
        why = f"the trainer stands in line for a CPU for {lag:.0%} of its time"
        if self._held_s() < self.state.times.quiet_s:
            return self.hold(why)
        self._try("fewer")
        self._time(held_since=None)
        # Other programs may be what it stands in line for: without this, workers came and went 500 times an hour.
        self.state = replace(self.state, removed_from=running)
        return self.ask(fewer, running.remote, "trial", why)

    def remove_extra(self) -> Ruling:
        """Remove workers that are not needed: nobody waits."""
        o, state = self.o, self.state
        # A remote worker that is missed takes its start to come back, so needs count for at least as long.
        keep_s = max(self.quiet_s, o.start_remote_s if o.running.remote else 0.0)
        self.state = replace(self.state, calm_s=state.calm_s + o.dt)
        local, remote = o.running.local, o.running.remote
        if self.state.calm_s >= keep_s - LOOK_S:
            local, remote = self._fewest()
        local = max(local, min(o.running.local, self.floor.local), o.least.local)
        remote = max(remote, min(o.running.remote, self.floor.remote), o.least.remote)
        most = FULL**2 if self.phase == "converged" else FULL  # what drift explains stays
        stays = remote == o.running.remote and local > o.running.local * most
        if stays or (local, remote) == (o.running.local, o.running.remote):
            return self.try_lower_cost() or self.hold("nobody waits, and no worker is too many", self.phase)
        why = f"nobody waits, and workers are busy for {self.sums.load:.0%} of their time"
        if remote < o.running.remote and self.per_hour is not None:
            return self.try_bill(Deployment(local, remote), "remove", why)
        self.state = replace(self.state, removed_from=o.running)
        return self.ask(local, remote, "remove", why)

    def _fewest(self) -> tuple[int, int]:
        """Return the fewest workers for what is needed: remote ones go first."""
        running, local = self.o.running, self.state.known.each[0]
        if running.remote:
            return running.local, self.fitted_remote()
        fewest = math.ceil(self.need / (FULL * local)) if local > 0 else running.local
        return min(running.local, max(1, fewest)), 0
