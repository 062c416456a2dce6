"""How many batches a run gives: in an epoch, and altogether."""

from __future__ import annotations

from pecan_ray.job.saved_state import SavedState
from pecan_ray.options import IterOptions


class BatchLimits:
    """Counts the batches of one trainer against ``epoch_batches=`` and ``steps=`` of its loop."""

    def __init__(self, options: IterOptions, saved: SavedState | None) -> None:
        self._of_epoch, self._steps, self._end_epoch = options.epoch_batches, options.steps, options.end_epoch
        self._epoch = options.first_epoch if saved is None else saved.point.epoch
        self._in_epoch, self.total = 0, 0 if saved is None else saved.given
        # Counted from the first run on: docs/decisions/randomness-and-passes.md#163-epochs-of-a-fixed-length.
        if saved is not None and self._of_epoch is not None:
            ended = self._epoch - saved.first_epoch
            self._in_epoch = max(0, self.total - ended * self._of_epoch)  # shorter epochs are not cut
        self.starts_full = self._of_epoch is not None and self._in_epoch >= self._of_epoch
        """The state was taken between the last batch of an epoch and the next epoch: there is the rest to leave."""
        all_epochs = self.starts_full and self._epoch + 1 == self._end_epoch
        self.finished = all_epochs or (self._steps is not None and self.total >= self._steps)
        """The loop has all that it asked for, whatever others still wait for."""

    def take(self, epoch: int) -> bool:
        """Count a batch that the loop gets; return whether nothing more of its epoch is wanted."""
        if epoch != self._epoch:
            self._epoch, self._in_epoch = epoch, 0
        self._in_epoch += 1
        self.total += 1
        full = self._of_epoch is not None and self._in_epoch >= self._of_epoch
        self.finished = self.total == self._steps or (full and epoch + 1 == self._end_epoch)
        return full


def total_batches(options: IterOptions, batches: int | None, saved: SavedState | None) -> int | None:
    """Return how many batches a trainer gets, of epochs of so many (None: not known); None where that has no end."""
    if options.epoch_batches is not None:
        batches = options.epoch_batches if batches is None else min(batches, options.epoch_batches)
    total = None if batches is None or options.epochs is None else batches * options.epochs
    if options.steps is not None and (total is not None or options.epochs is None):
        total = options.steps if total is None else min(total, options.steps)
    return None if total is None else max(0, total - (0 if saved is None else saved.given))
