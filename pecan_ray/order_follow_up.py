"""What an order of operators still wants of a run that has begun: looks beside it, estimates to correct, notes."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from pecan_ray.autocache.decision import EpochEstimate
from pecan_ray.autoorder.accepted import Ordered, ReorderAfterEpoch, ReorderResult
from pecan_ray.errors import describe_error
from pecan_ray.in_process import InProcessRun
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.stats import JobEvent
from pecan_ray.observe.epoch_watch import EpochWatch
from pecan_ray.observe.run_clock import RunClock
from pecan_ray.run import TrainingRun
from pecan_ray.run_of_job import JobRun

logger = logging.getLogger("pecan_ray")


class OrderFollowUp:
    """Follows one run, from when its order was found; used by one thread at a time."""

    def __init__(self, name: str, clock: RunClock) -> None:
        """`name`: of the pipeline."""
        self._name, self._clock, self._watch = name, clock, EpochWatch()
        self.events: list[JobEvent] = []
        """What no controller tells of the order."""
        self._ordered = Ordered()
        self._end_looks: Callable[[], None] | None = None
        self._after_epoch: ReorderAfterEpoch | None = None
        """Looks once the first epoch has counted what goes through operators."""
        self._estimate: EpochEstimate | None = None

    def hold(self, ordered: Ordered) -> None:
        """Keep what was found, whose looks end with the run, also where nobody closes that."""
        self._ordered, self._end_looks = ordered, weakref.finalize(self, ordered.end.finish)

    def begin(self, run: TrainingRun, *, alone: bool) -> None:
        """Begin what is done beside a run that has begun; `alone`: its trainer sees whole epochs."""
        ordered = self._ordered
        self.events += (JobEvent(0.0, "reorder", text) for text in ordered.notes)
        self._after_epoch = ordered.reorder_after_epoch
        if ordered.background_search is not None:
            self._look_beside(run, ordered.background_search)
        self._estimate = ordered.epoch_estimate if alone else None

    def note_batch(
        self, run: TrainingRun, epoch: int, progress: Callable[[], TrainerProgress], *, first_epoch: bool
    ) -> None:
        """Note that a batch of an epoch has come; `first_epoch`: it is of the run's first."""
        if self._estimate is not None and not self._watch.over:
            self._correct(self._watch.batch(epoch, progress()))
        if self._after_epoch is not None and not first_epoch and isinstance(run, JobRun):
            look, self._after_epoch = self._after_epoch, None
            self._look_beside(run, lambda: look(run.session.counts()))

    def leave_epoch(self, *, first_epoch: bool) -> None:
        """Note that an epoch was left before its end."""
        if first_epoch:
            self._after_epoch = None  # it wants a whole pass
        self._watch.leave()

    def note_all_batches(self) -> None:
        """Note that the last batch has come."""
        self._correct(self._watch.end())

    def note_fallback(self, why: str) -> None:
        """Let later jobs know, once, that this one went back to the user's order of operators."""
        if why and self._ordered.on_fallback is not None:
            reverted, self._ordered = self._ordered.on_fallback, Ordered()
            reverted(why)
            logger.warning("%s: %s", self._name, why)

    def end_looks(self) -> None:
        """End what looks for another order beside the run."""
        if self._end_looks is not None:
            self._end_looks()

    def _correct(self, seconds: float | None) -> None:
        """Correct what was promised of an epoch by what it took, if that was measured."""
        if seconds is not None and self._estimate is not None:
            text = self._estimate.correct(seconds)
            self.events.append(JobEvent(self._watch.ended_s, "reorder", text))
            logger.info("%s: %s", self._name, text)

    def _look_beside(self, run: TrainingRun, look: Callable[[], ReorderResult | None]) -> None:
        clock, events = self._clock, self.events

        def note(text: str) -> None:  # no method: a look that never returns would keep the run from being dropped
            events.append(JobEvent(clock.so_far().total_s, "reorder", text))

        run_when_found(run, self._name, look, note)


def run_when_found(
    run: TrainingRun, name: str, look: Callable[[], ReorderResult | None], note: Callable[[str], None]
) -> None:
    """Run, from an epoch on, the order that a look finds beside the training; or the user's at once.

    Args:
        run: The run; a group that shares batches has looked before.
        name: Its pipeline.
        look: Returns what it has found; None: nothing that is worth telling.
        note: Is told what no controller tells: that a look has ended and the order stays, what is dropped in this
            process.
    """

    def search_order() -> None:
        try:
            found = look()
            if found is None or run.closed:
                return
            _apply_order(run, found, note)
            logger.log(logging.WARNING if found.dropped else logging.INFO, "%s: %s", name, found.reason)
        except Exception as error:  # whatever a user's function, a source or an ended job can raise
            if not run.closed:
                logger.warning("%s: the order of operators stays: %s", name, describe_error(error))

    # A daemon: the program may end while a look is under way.
    threading.Thread(target=search_order, name="pecan-reorder", daemon=True).start()


def _apply_order(run: TrainingRun, found: ReorderResult, note: Callable[[str], None]) -> None:
    """Let a run have what was found; note what no controller tells."""
    if not isinstance(run, JobRun):
        if found.dropped and isinstance(run, InProcessRun):
            run.drop_order(found.reason)
        note(found.reason)
        return
    if found.dropped:
        run.session.drop_order(found.reason)
    if found.plan is not None:
        run.session.change_plan(found.plan, found.order, found.reason, found.decoders, found.order_text)
    elif not found.dropped:
        note(found.reason)
