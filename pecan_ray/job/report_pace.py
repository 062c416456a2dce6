"""When a trainer's next report is due: how soon depends on who waits for it, and on how many trainers there are."""

from __future__ import annotations

from dataclasses import dataclass

REPORT_S = 0.25
"""Shortest time between two reports while nobody waits for them."""
# docs/scaling.md: a call costs the controller about 1 ms of CPU, so calls become rarer where members are many.
REPORT_PER_TRAINER_S = 0.01
"""With many trainers a longer one: the job hears of no more than 100 a second that nobody waits for."""
HARDLY_ANY = 4
"""Of many trainers each tells when it has received so many batches for each that it may still use."""
TOLD_AT_ONCE = 100
"""Number of trainers up to which each tells at once what others wait for."""
CLOSING_PER_TRAINER_S = 0.001
"""Least seconds between two reports of a trainer at an epoch's end, for each trainer above `TOLD_AT_ONCE`.  About
1,000 reports come a second."""
PRESSING_PER_TRAINER_S = 0.011
"""The same in an epoch's middle, where queues have room for the batches of the meantime.  About 100 reports come a
second."""
IDLE_REPORT_S = 1.0
"""Longest time without a report, with few trainers: numbers that people see are no older."""


def longest_silence(world_size: int) -> float:
    """Return the longest time between two reports of a trainer that has nothing to tell."""
    return max(IDLE_REPORT_S, REPORT_PER_TRAINER_S * world_size)


@dataclass(frozen=True)
class Need:
    """Who waits for a trainer's next report."""

    closing: bool = False
    """The job does, to end an epoch or to settle about a lost worker."""
    others_may_wait: bool = False
    """Other trainers do, that may use only what all have received."""
    held: bool = False
    """This trainer waits: it may not use what it has."""
    full: bool = False
    """It can take no more meanwhile."""
    waits_for_rows: bool = False
    """It waits for the next rows, and has others behind them: a second worker may have to make these."""


NO_NEED = Need()


@dataclass(frozen=True)
class ReportPace:
    """How soon each of so many trainers tells the job its news."""

    world_size: int

    @property
    def alone(self) -> bool:
        """Return whether nobody waits for this trainer but the job."""
        return self.world_size == 1

    @property
    def _beyond_at_once(self) -> int:
        """Trainers beyond those that may all tell at once."""
        return max(0, self.world_size - TOLD_AT_ONCE)

    def others_may_wait(self, untold: int, headroom: int) -> bool:
        """Tell whether others may soon wait for `untold` batches, with so many left here that may be used.

        Ranks use batches in step.  Many of them tell later, when hardly any is left: else all would tell all the time.
        """
        return untold >= max(1, headroom * (HARDLY_ANY if self._beyond_at_once else 1))

    def delay(self, need: Need, told: Need, has_news: bool) -> float:
        """Return the seconds from the last report to the next one; `told`: what the last one said of this rank."""
        # Of many trainers only those with a full queue hear at once that they may use more, so the job must know of it.
        if need.held and need.full and not (told.full if self._beyond_at_once else told.held):
            return 0.0
        tells_held = need.held and not told.held
        if need.closing and (has_news or tells_held):
            return CLOSING_PER_TRAINER_S * self._beyond_at_once
        if tells_held or (need.others_may_wait and has_news):
            return PRESSING_PER_TRAINER_S * self._beyond_at_once
        return self._unhurried(need, has_news)

    def _unhurried(self, need: Need, has_news: bool) -> float:
        """Return the seconds between two reports for which nobody waits."""
        if has_news or need.waits_for_rows:
            return max(REPORT_S, REPORT_PER_TRAINER_S * self.world_size)
        return longest_silence(self.world_size)
