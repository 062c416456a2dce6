"""From the steps of trainers to the windows that the placement policies read; live and in the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pecan_ray.job.lockstep import KEPT_STEPS, SampledStep, looked_at, merged, own_share
from pecan_ray.plan.windows import Window

LEAST_BATCHES = 10
"""Of each trainer, in a window that is closed for its age."""
HURRY_S = 1.0
"""While the best deployment is sought, a trainer that has waited for so long"""
STARVED = 0.5
"""and for more than this share of the time need not wait for the window's end to be given more workers."""
AT_ONCE_S = 2.5
"""The first window of a trainer that does not wait at all ends after this time: one worker is enough, and a measurement
of more batches would not make it fewer. It holds"""
AT_ONCE_BATCHES = 3
"""so many batches at least."""
NO_WAIT = 0.01
"""A smaller share of a trainer's time in which it waits is none."""
FROM_STOCK = 0.1
"""A stock of ready batches that shrinks by less than this share of a window's batches varies by chance, as does"""
STOCK_LEFT = 0.5
"""one of which more than this share, or all but one batch, is left."""
MOST_DISTURBED = 3
"""Windows in a row that ends of epochs and pauses may spoil: where every window has one, it belongs to the job."""
PAUSE_AFTER = 10
"""Steps after which the usual one is known, so that a pause can be told from it."""
PAUSE_FACTOR = 20.0
"""A pause is so many times the usual time of the trainer's own,"""
PAUSE_S = 2.0
"""and longer than this;"""
RARE = 3
"""and rare: of so many such steps"""
WITHIN = 50
"""within so many steps the last is none, nor are those that follow: the trainer has become slow, or is always so."""


def is_long(own: float, batches: int, own_before: float) -> bool:
    """Tell whether a step is far out of line, as it is when a trainer evaluates or writes a checkpoint.

    `own`: its own seconds of this step; `own_before`: those of the `batches` steps before.
    """
    return own > PAUSE_S and batches >= PAUSE_AFTER and own * batches > PAUSE_FACTOR * own_before


def is_pause(long: tuple[int, ...]) -> bool:
    """Tell whether the last one of these long steps, given by their numbers, was a pause."""
    return len(long) < RARE or long[-1] - long[-RARE] >= WITHIN


@dataclass(frozen=True)
class StepTotals:
    """Sums over the steps of a trainer since its job began; a step is from one batch in hand to the next."""

    batches: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    """Sum of the squares of the steps' seconds."""
    waited: float = 0.0
    """Of the seconds, those in which the trainer waited for a batch."""
    queued: float = 0.0
    """Sum of the batches that lay ready when the trainer asked."""
    ready: float = 0.0
    """Batches that lay ready when the trainer asked last; in a difference, by how many they have grown."""
    pauses: int = 0
    """Steps that were left out since the trainer did something else meanwhile: evaluation, a checkpoint."""
    long: tuple[int, ...] = ()
    """Numbers of the last steps that were far out of line."""
    waited_last: float = 0.0
    """Seconds in which the trainer waited for the batch that it has in hand."""
    sampled: tuple[SampledStep, ...] = ()
    """The last steps that were looked at singly, to be laid beside those of other trainers."""

    def since(self, before: StepTotals) -> StepTotals:
        """Return the sums of what came after."""
        first = before.batches + before.pauses
        return StepTotals(
            self.batches - before.batches,
            self.seconds - before.seconds,
            self.squares - before.squares,
            self.waited - before.waited,
            self.queued - before.queued,
            self.ready - before.ready,
            self.pauses - before.pauses,
            sampled=tuple(one for one in self.sampled if one.number >= first),
        )

    def uncounted(self, waited: float) -> StepTotals:
        """Return the sums after a step that does not count: the next one begins with its batch in hand."""
        return replace(self, waited_last=waited)

    def step(
        self, seconds: float, waited: float, queued: float, *, may_pause: bool = True, alone: bool = False
    ) -> StepTotals:
        """Return the sums with one more step; one that is far out of line counts as a pause, if there may be any.

        `alone`: there are no other trainers beside whose steps this one could be laid.
        """
        long, number = self.long, self.batches + self.pauses
        if may_pause and is_long(seconds - waited, self.batches, self.seconds - self.waited):
            long = (*long, number)[-RARE:]
            if is_pause(long):
                return replace(self, pauses=self.pauses + 1, long=long, waited_last=waited)
        total = self.seconds + seconds
        sampled = self.sampled
        if not alone and looked_at(number, total, self.batches + 1):
            sampled = (*sampled[1 - KEPT_STEPS :], SampledStep(number, self.waited_last, seconds - waited))
        return StepTotals(
            self.batches + 1,
            total,
            self.squares + seconds * seconds,
            self.waited + waited,
            self.queued + queued,
            queued,
            self.pauses,
            long,
            waited,
            sampled,
        )


class WindowMeter:
    """Cuts the running totals of all trainers of a job into windows."""

    def __init__(self, trainers: int, batches: int, seconds: float) -> None:
        """A window ends after `batches` batches of every trainer, or after `seconds`, whichever is first."""
        self._trainers, self._batches, self._seconds = trainers, batches, seconds
        self._latest: dict[int, StepTotals] = {}
        self._begun: dict[int, StepTotals] = {}
        self._sampled: dict[int, tuple[SampledStep, ...]] = {}
        """Of the window, what reports no longer hold."""
        self._full: set[int] = set()
        """Trainers with all batches of the window,"""
        self._old: set[int] = set()
        """and those for which it is old enough."""
        self._touched = False
        self._paused = False
        self._draining = False
        self._disturbed = False
        self._in_a_row = 0
        self.hurried = False
        """Windows in which the trainers starve end early, and so does the first one if they do not wait at all."""
        self._first = True
        self.spoilt_by = ""
        """What happened during the window that was closed last; empty if it can be used."""

    def add(self, rank: int, totals: StepTotals) -> None:
        """Take over a trainer's totals."""
        self._latest[rank] = totals
        begun = self._begun.setdefault(rank, totals)
        if self._trainers > 1:
            self._sampled[rank] = merged(self._sampled.get(rank, ()), totals.sampled)
        batches = totals.batches - begun.batches
        if batches >= self._batches:
            self._full.add(rank)
        part = totals.since(begun)
        if (batches >= LEAST_BATCHES and self._lasted(part)) or self._at_once(part):
            self._old.add(rank)
        self._paused = self._paused or totals.pauses > begun.pauses

    def _lasted(self, part: StepTotals) -> bool:
        """Tell whether a window is old enough for a trainer."""
        starved = self.hurried and part.waited >= max(HURRY_S, STARVED * part.seconds)
        return part.seconds >= self._seconds or starved

    def _at_once(self, part: StepTotals) -> bool:
        """Tell whether a trainer's first steps suffice to say that it does not wait."""
        if not (self.hurried and self._first and part.waited <= NO_WAIT * part.seconds):
            return False
        return part.batches >= AT_ONCE_BATCHES and part.seconds >= min(AT_ONCE_S, self._seconds)

    def touch(self) -> None:
        """Note that workers came, went or died: the window under way ends here, and nothing was measured by it."""
        self._touched = True

    def drain(self) -> None:
        """Note that workers are going: what they have finished is still being delivered."""
        self._draining = True

    def disturb(self) -> None:
        """Note that an epoch ends: workers have nothing to do for a moment."""
        self._disturbed = True

    def due(self) -> bool:
        """Tell whether the window is complete, or cannot be used any more."""
        trainers = len(self._latest)
        if trainers < self._trainers:
            return False
        return self._touched or self._paused or trainers in (len(self._full), len(self._old))

    def so_far(self, least: int) -> Window | None:
        """Return what has been measured since the last window, if it is so many batches of each trainer; it goes on."""
        if len(self._latest) < self._trainers or self._touched or self._paused:
            return None
        parts = self._parts()
        if min(part.batches for part in parts) < least:
            return None
        return window_of(parts, [self._begun[rank].ready for rank in self._latest], touched=True)

    def _parts(self) -> list[StepTotals]:
        return [
            replace(totals, sampled=self._sampled.get(rank, ())).since(self._begun[rank])
            for rank, totals in self._latest.items()
        ]

    def close(self) -> Window | None:
        """Return the window if it is complete, or cannot be used any more, and begin the next one."""
        if not self.due():
            return None
        parts = self._parts()
        least = min(part.batches for part in parts)
        stocks = [self._begun[rank].ready for rank in self._latest]
        self._begun = dict(self._latest)
        self._sampled.clear()
        paused, self._paused = self._paused, False
        self._full.clear()
        self._old.clear()
        if least < 1:
            self._touched = False
            return None
        bearable = self._in_a_row < MOST_DISTURBED
        events = {
            "workers came or went during it": self._touched or self._draining,
            "the trainer did something else during it": paused and bearable,
            "an epoch ended during it": self._disturbed and bearable,
        }
        self._first = self._first and bool(self.spoilt_by)
        self._in_a_row = self._in_a_row + 1 if (paused or self._disturbed) and bearable else 0
        self.spoilt_by = next((event for event, happened in events.items() if happened), "")
        self._touched = self._draining = self._disturbed = False
        return window_of(parts, stocks, touched=bool(self.spoilt_by))


def window_of(parts: Sequence[StepTotals], stocks: Sequence[float], *, touched: bool) -> Window:
    """Return the window of several trainers: their means, averaged (Pecan §5.1, several clients).

    What one of them waits for another is no work of its own: see `pecan_ray.job.lockstep`.  `stocks`: the batches that
    lay ready at each of them when the window began.
    """
    trainers = len(parts)
    times = [part.seconds / delivered(part, stock) for part, stock in zip(parts, stocks, strict=True)]
    share = own_share([part.sampled for part in parts]) if trainers > 1 else None
    owns = [(part.seconds - part.waited if share is None else part.seconds * share) / part.batches for part in parts]
    waits = [time - own for time, own in zip(times, owns, strict=True)]
    variances = [
        max(0.0, part.squares / part.batches - (part.seconds / part.batches) ** 2) / part.batches for part in parts
    ]
    return Window(
        batch_time=sum(times) / trainers,
        queue_size=sum(part.queued / part.batches for part in parts) / trainers,
        batches=min(part.batches for part in parts),
        wait_time=min(sum(times), max(0.0, sum(waits))) / trainers,
        stderr=math.sqrt(sum(variances)) / trainers,
        touched=touched,
    )


def delivered(part: StepTotals, stock: float) -> float:
    """Return how many batches the workers brought during a window.

    A trainer that lives on what more workers have piled up before would hide that these are too few: what the stock
    has lost is taken out, so the batch time is the one that lasts.
    """
    from_stock = -part.ready
    by_chance = min(FROM_STOCK * part.batches, max(1.0, (1 - STOCK_LEFT) * stock))
    return max(1, part.batches - from_stock) if from_stock > by_chance else part.batches
