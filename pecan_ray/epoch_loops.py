"""Epoch by epoch through a running job: to the end of each, or up to where the loop leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic

from pecan_ray.batch_limits import BatchLimits
from pecan_ray.errors import PlanError
from pecan_ray.grain_state import GrainState
from pecan_ray.job.trainer_events import EndOfEpoch
from pecan_ray.options import IterOptions

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from pecan_ray.observe.progress import Progress
    from pecan_ray.order_follow_up import OrderFollowUp
    from pecan_ray.run import TrainingRun

    BatchT = TypeVar("BatchT", covariant=True, default=dict[str, Any])
else:
    from typing import TypeVar

    BatchT = TypeVar("BatchT", covariant=True)


class EpochLoops(GrainState, Generic[BatchT]):
    """The part of `pecan_ray.Batches` that knows of epochs."""

    _run: TrainingRun

    def __init__(self, options: IterOptions, limits: BatchLimits, progress: Progress, order: OrderFollowUp) -> None:
        self._options, self._limits, self._progress, self._order = options, limits, progress, order
        self._epoch = options.first_epoch
        """The epoch in which the training loop is."""

    def _take(self, within: int | None) -> Any:
        raise NotImplementedError

    def one_epoch(self) -> Iterator[BatchT]:
        """Iterate over what is left of the epoch in which the run stands; the next call gives the next epoch.

        The job goes on meanwhile: workers prepare the next epoch while a model is validated.  A loop that was left
        before the end of its epoch is gone on with by the next call, unless `leave_epoch` has ended it.  Behind the
        last epoch nothing is left.  Raises `PlanError` for a reader that shares, whose epochs may begin in the middle
        of the group's.
        """
        self._check_has_epochs("one_epoch")
        epoch = self._epoch
        while self._epoch <= epoch:  # else another loop has left it
            try:
                batch = self._take(epoch)
            except StopIteration:
                return
            if isinstance(batch, EndOfEpoch):
                epoch += 1
                self._reach(epoch)  # another thread may have left the epoch meanwhile
                if epoch != self._options.end_epoch:
                    return
                continue  # behind the last one comes the end of the job
            yield batch

    def leave_epoch(self) -> None:
        """End the epoch in which the run stands before its end: the next batch is the first one of the next epoch.

        What was prepared of it is dropped, and its workers go on with the next one.  Of several ranks those that go on
        in the epoch get their batches of it; the next one begins once all have left it, or are at its end.  Behind the
        last epoch, and for a reader that shares, there is nothing to leave: the latter raises `PlanError`.
        """
        self._check_has_epochs("leave_epoch")
        if self._epoch == self._options.end_epoch:
            return
        self._run.leave_epoch(self._epoch)
        self._order.leave_epoch(first_epoch=self._epoch == self._options.first_epoch)
        self._progress.leave_epoch()
        self._epoch += 1

    def _reach(self, epoch: int) -> None:
        """Note that the loop is in an epoch, or behind it."""
        self._epoch = max(self._epoch, epoch)

    def _count(self, batch: Any) -> None:
        """Count what the loop gets; leave its epoch where nothing more of that is wanted."""
        if not isinstance(batch, EndOfEpoch) and self._limits.take(self._epoch):
            self.leave_epoch()
        # Other ranks go on: they must not wait for one whose loop has all of its steps.
        if self._limits.finished:
            self._run.may_leave()

    @property
    def _job_ends(self) -> bool:
        """Return whether the job comes to its end by itself, since its only loop has left the last epoch."""
        return self._run.ends_by_itself and self._epoch == self._options.end_epoch

    def _check_has_epochs(self, method: str) -> None:
        if self._options.share:
            raise PlanError(f"{method}: a reader that shares may begin in the middle of an epoch: iterate over it.")
