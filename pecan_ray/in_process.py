"""A run in the trainer's own process, as ``iter_batches(debug=True)`` asks for it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from pecan_ray.autoorder.accepted import Ordered
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.in_process import InProcessEpoch
from pecan_ray.engines.users_order import UsersOrder, run_order_of
from pecan_ray.errors import PlanError
from pecan_ray.job.trainer_events import EndOfEpoch
from pecan_ray.observe.headspace import one_batch
from pecan_ray.observe.report import Report
from pecan_ray.options import IterOptions, PipelineSettings, Workers
from pecan_ray.pass_numbers import RunPasses
from pecan_ray.plan.operators import Plan
from pecan_ray.run import Deliver, LoopSoFar, TrainingRun
from pecan_ray.sampling.budget import BadCount, over_budget

logger = logging.getLogger("pecan_ray")


class InProcessRun(TrainingRun):
    """Makes the batches of a pipeline in this process, epoch by epoch."""

    def __init__(
        self,
        plan: Plan,
        settings: PipelineSettings,
        *,
        options: IterOptions,
        passes: RunPasses,
        convert: Callable[[dict[str, Any]], Any],
        keep_bad: Callable[[Sequence[BadElement]], None],
    ) -> None:
        """`convert`: makes of columns what the loop gets; `keep_bad`: called with elements that were left out."""
        self._plan, self._settings, self._options, self._passes = plan, settings, options, passes
        self._convert, self._keep_bad = convert, keep_bad
        self._stream: Iterator[Any] = iter(())
        self.elements = 0
        """Elements that were made."""
        self.bad = BadCount()
        """Elements that were left out."""
        self.dropped = 0
        """Elements of remainders that were dropped."""
        self._last_bad = ""
        """The newest bad element, in words."""
        self._left = 0
        """Nobody wants epochs before this one."""
        self._users_order: UsersOrder | None = None
        """The order that the user wrote, as long as another one is run."""

    def drop_order(self, message: str) -> None:
        """Go back to the user's order of operators, if another one is run."""
        if self._users_order is not None:
            self._users_order.go_back(message)

    def leave_epoch(self, epoch: int) -> None:
        """Make nothing more of an epoch."""
        self._left = max(self._left, epoch + 1)

    def check_process(self) -> None:
        """Do nothing: a forked process may go on by itself."""

    def find_order(self, order: Callable[[], Ordered]) -> Ordered:
        """Return what is found before the first batch."""
        return order()

    def begin(self, ordered: Ordered, note_fallback: Callable[[str], None]) -> None:
        """Begin with the first epoch; `note_fallback`: called where the run goes back to the user's order."""
        rank, ranks = self._options.rank, self._options.world_size
        if ranks > 1:
            logger.warning(
                "%s: debug=True: rank %d of %d gets all batches, not a part", self._settings.name, rank, ranks
            )
        plan = self._plan
        if ordered.plan is not None:
            self._users_order = UsersOrder(ordered.plan, run_order_of(plan), lambda: plan)
        batches = self._batches(plan if ordered.plan is None else ordered.plan, note_fallback)
        headspace = self._options.headspace
        self._stream = one_batch(batches, self._plan, self._options, self._is_left) if headspace else batches

    def take(self, within: int | None, deliver: Deliver) -> Any:
        """Return the next batch, which was converted where it was made, or the end of an epoch."""
        return next(self._stream)

    def may_leave(self) -> None:
        """Do nothing: there are no other ranks."""

    def scale(self, workers: Workers) -> NoReturn:
        """Raise PlanError: there are none."""
        raise PlanError("scale: there are no workers in debug mode.")

    def set_remote_io(self, bytes_per_s: float | None) -> NoReturn:
        """Raise PlanError: there are no workers."""
        raise PlanError("set_remote_io: there are no workers in debug mode.")

    def report(self, loop: LoopSoFar) -> Report:
        """Return what was made, and left out, in this process."""
        one = bool(self._options.headspace)
        elements = self.elements * (loop.batches if one else 1)
        counted = loop.batches, elements, self.bad, self.dropped, loop.spent.total_s, loop.epochs_begun, one
        return Report.of_debug(self._settings.name, *counted).with_time(loop.spent, debug=True, headspace=one)

    def explain(self) -> str:
        """Say that there are no workers, and in which order batches come."""
        here = f"{self._settings.name} runs in this process (debug=True, or headspace): there are no workers to place."
        return f"{here}\n  order: batches come in one sequence."

    def close(self, *, well: bool) -> str:
        """Drop what is under way; what has gone back to the user's order has said so."""
        self._stream = iter(())
        return ""

    def _batches(self, running: Plan, note_reverted: Callable[[str], None]) -> Iterator[Any]:
        end = self._options.end_epoch
        users_order = self._users_order
        for epoch in self._epochs():
            before = self.elements
            if users_order is not None and users_order.taken:
                running, users_order = self._plan, None
            here = self._epoch(running, epoch, users_order)
            for produced in here.produced():
                if self._is_left(epoch):
                    break
                if users_order is not None and users_order.reason:
                    note_reverted(users_order.reason)
                self.elements += produced.rows
                self.dropped += produced.dropped
                self._note_bad(produced.bad, here.in_hand)
                if produced.rows:
                    self._passes.note_epoch(epoch)
                    yield self._convert(produced.columns)
            if self._is_left(epoch):
                continue
            if end is None and self.elements == before:
                return  # Epochs without an element would follow each other for ever.
            self._check_budget()  # what was in hand has come, or was dropped
            yield EndOfEpoch()

    def _epochs(self) -> Iterable[int]:
        first, end = self._options.first_epoch, self._options.end_epoch
        return itertools.count(first) if end is None else range(first, end)

    def _is_left(self, epoch: int) -> bool:
        return epoch < self._left

    def _epoch(self, plan: Plan, epoch: int, users_order: UsersOrder | None) -> InProcessEpoch:
        on_error = self._options.on_error
        return InProcessEpoch(
            plan,
            engine=self._settings.engine,
            seed=self._settings.seed,
            epoch=epoch,
            on_error=on_error,
            users_order=users_order,
        )

    def _note_bad(self, bad: Sequence[BadElement], in_hand: Callable[[], int]) -> None:
        """Do with bad elements in this process what the controller does on a cluster."""
        if not bad:
            return
        for one in bad:
            self.bad = self.bad.plus(one.elements_left_out, estimated=one.estimated, open_end=one.open_end)
        for one in bad:
            logger.warning("left out %s in %s: %s", one.where, one.op, one.error)
        self._keep_bad(bad)
        self._last_bad = f"{bad[-1].where} in {bad[-1].op}: {bad[-1].error}"
        self._check_budget(in_hand)

    def _check_budget(self, in_hand: Callable[[], int] | None = None) -> None:
        """Raise ErrorBudgetError where too many elements are bad among those that were processed.

        `in_hand`: tells how many elements were read and are in no batch yet; None: none.
        """
        name, share, last = self._settings.name, self._settings.config.error_budget, self._last_bad
        good = self.elements + self.dropped
        over = over_budget(name, self.bad, good, share, last)
        if over is not None and in_hand is not None:
            over = over_budget(name, self.bad, good + in_hand(), share, last)
        if over is not None:
            raise over
