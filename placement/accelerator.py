"""The accelerator as a place: when workers leave decoding to the trainer's accelerator, and when they take it back.

It is tried where the trainer waits and no CPU is left that might help, and kept if the trainer then takes more rows a
second.  That one figure holds both sides: what decoding by CPUs cost, and by how much the trainer's own step becomes
slower beside an accelerator that decodes.  Later it is given up once the trainer takes fewer rows than before.  Each
time it is given up, the next trial comes after twice the time.

Decision: docs/decisions/placement.md#229-the-accelerator-as-a-place
"""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.placement.looks import FULL, LookSums
from pecan_ray.placement.trial_history import HELD_S, QUIET_S, AcceleratorUse, ControlState, ControlTimes
from pecan_ray.placement.trials import GAIN, SETTLED_S, Ruling, Trials, batch_interval_s
from pecan_ray.plan.windows import Decision


def given_up(state: ControlState, now: float) -> ControlState:
    """Return what to remember once workers have taken decoding back: it makes them other workers."""
    use = state.accelerator
    return ControlState(
        times=ControlTimes(changed=now),
        accelerator=AcceleratorUse(held_s=2 * use.held_s, not_before=now + use.held_s),
    )


def _fewer(change: float) -> str:
    return f"with decoding on the accelerator the trainer takes {change:+.1%} rows a second"


def refused(state: ControlState, now: float) -> ControlState:
    """Return what to remember once an image was refused: it says nothing about whether decoding there is faster."""
    use = state.accelerator
    # One bad image in each epoch must not double the wait until the accelerator is hardly ever used.
    if use.is_kept and now - use.began > HELD_S:
        state = replace(state, accelerator=replace(use, held_s=HELD_S))
    return given_up(state, now)


class AcceleratorRules(Trials):
    """The rules about the accelerator."""

    def evaluate_accelerator(self) -> Ruling | None:
        """Keep the accelerator if the trainer takes more rows with it; give it up once it takes fewer."""
        use, o = self.state.accelerator, self.o
        if not use.on:
            return None
        if o.accelerator is None:  # the trainer that had one is gone
            return self._give_up("there is no accelerator any more")
        known_s = self._measured_s()
        change = self.taken_rate / max(self.state.accelerator.rate_before, 1e-9) - 1
        if use.is_kept:
            # Workers that went may be missed: they come back first.
            is_whole = not self.waiting or o.running.local >= o.room.local
            is_missed = known_s >= self.cost_window_s and is_whole and change < -2 * GAIN
            return self._give_up(_fewer(change)) if is_missed else None
        return self._evaluate_trial(known_s, change)

    def _evaluate_trial(self, known_s: float, change: float) -> Ruling | None:
        """Keep the accelerator, give it up, or wait until enough is known of it.

        Args:
            known_s: Seconds that were measured since it is used.
            change: Of the rows that the trainer takes a second, as a share of those before.
        """
        o = self.o
        # Not from the last batch of the workers before: those that load frameworks take as long to start.
        without_s = min(o.since_taken, self.now - self.state.times.changed)
        if without_s > SETTLED_S and self.whole:
            return self._give_up(f"with decoding on the accelerator no batch has come for {without_s:.0f} s")
        # A trial that is clearly worse need not last any longer: a rate that is lost meanwhile is what it costs.
        is_worse = change < FULL - 1 and known_s >= max(2 * QUIET_S, 2 * batch_interval_s(self.state, o))
        if known_s < self.cost_window_s and not is_worse:
            # Nothing else is tried before the verdict: it would change the rate as well.
            return self.hold("decoding on the accelerator is on trial", "trial")
        if change < GAIN:
            return self._give_up(_fewer(change))
        self.state = replace(self.state, accelerator=replace(self.state.accelerator, is_kept=True))
        return None

    def use_accelerator(self) -> Ruling | None:
        """Try the accelerator where the trainer waits beside all workers that might help."""
        use, o = self.state.accelerator, self.o
        if o.accelerator is not False or use.on or self.now < use.not_before:
            return None
        # Workers that are not always busy wait for something else than CPUs.  A short wait is not worth a trial.
        busy = self.sums.load > FULL and self.wait > 1 - FULL
        if not self.whole or o.running.local < o.room.local or not busy:
            return None
        if self._measured_s() < self.cost_window_s or not self.state.stretch.taken:
            return self.hold("the rate without the accelerator is measured")
        self.state = ControlState(
            times=ControlTimes(changed=self.now),
            accelerator=replace(self.state.accelerator, on=True, began=self.now, rate_before=self.taken_rate),
        )
        why = f"the trainer waits {self.wait:.0%} beside all CPUs, and its accelerator can decode"
        return Decision(o.requested, "accelerator", f"{why}: workers leave decoding to it."), self.state

    def _measured_s(self) -> float:
        """Return for how long the trainer's rate was measured beside workers that are all at work."""
        use = self.state.accelerator
        # Not from the start of workers on: they make nothing for as long as a batch takes them.
        begins = self.state.times.changed + max(QUIET_S, batch_interval_s(self.state, self.o))
        if use.measured_since < begins <= self.now:
            use = replace(use, measured_since=self.now)
            self.state = replace(self.state, stretch=LookSums(self.o.since_taken), accelerator=use)
        return self.state.stretch.span if self.whole and use.measured_since >= begins else 0.0

    def _give_up(self, why: str) -> Ruling:
        decision = Decision(self.o.requested, "back", f"{why}: workers decode again.")
        return decision, given_up(self.state, self.now)
