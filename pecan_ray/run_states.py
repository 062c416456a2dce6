"""The states of one run: where it stands, to go on from there, and where it stood when it ended."""

from __future__ import annotations

from typing import Any

from pecan_ray.errors import PecanError, PlanError
from pecan_ray.job.delivery_log import MOST_AHEAD
from pecan_ray.job.saved_state import SavedState, no_state_of, start_of_run
from pecan_ray.options import EngineName, IterOptions
from pecan_ray.run import TrainingRun


class RunStates:
    """Makes states as `SavedState` reads them, and keeps the last one."""

    def __init__(
        self,
        options: IterOptions,
        saved: SavedState | None,
        *,
        seed: int,
        engine: EngineName,
        parts: tuple[tuple[str, str], ...],
        here: bool,
    ) -> None:
        """`saved`: where the run goes on; `parts`: what its plan consists of; `here`: all is made in this process."""
        self._options, self._seed, self._engine, self._parts = options, seed, engine, parts
        self.first_epoch, self._batches_before = start_of_run(options, saved)
        """The epoch in which the run begins."""
        self._why_none = "debug=True and headspace make all in this process" if here else no_state_of(options)
        """Why there is no state; empty if there is one."""
        self._last: dict[str, Any] | None = None
        """Where the run stood when it ended."""

    def take(self, run: TrainingRun, given: int, ahead: int = 0) -> dict[str, Any]:
        """Return where the run stands.

        Args:
            run: It.
            given: Batches that its loop was given, those of runs before this one included.
            ahead: So many of the last of these are not used yet.

        Raises:
            PlanError: There is none.
        """
        if not 0 <= ahead <= MOST_AHEAD:
            raise PlanError(f"state_dict: ahead must be from 0 to {MOST_AHEAD}, but got {ahead}.")
        if self._last is not None and ahead == 0:
            return self._last
        if self._why_none:
            raise PlanError(f"state_dict: there is no state, since {self._why_none}.")
        if self._last is not None:
            raise PlanError(f"state_dict(ahead={ahead}): the job has ended, of which only the last state is known.")
        point, used = run.resume_point(ahead)
        batches = self._batches_before + used
        order, first = self._options.order or "relaxed", self._options.first_epoch
        passed = max(0, batches - (given - ahead))
        return SavedState(point, batches, self._seed, self._engine, self._parts, order, first, passed).to_json()

    def keep_last(self, run: TrainingRun, given: int) -> None:
        """Keep where a run stands that is about to be closed, if it has a state."""
        if self._why_none or self._last is not None or run.closed:
            return
        try:
            if not run.answers():
                self._why_none = "it was closed while its controller did not answer"
                return
            self._last = self.take(run, given)
        except PecanError as error:
            self._why_none = f"it was closed, and its last state could not be taken: {error.message}"
