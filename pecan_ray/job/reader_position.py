"""What one reader of a shared group has had of its epoch: enough to go on alone if the group is lost.

Some batches bring a state of the group's run, as of that batch or of one before it.  A reader keeps the newest one, and
which data it has had since.  Pure.

Decisions: docs/decisions/sharing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pecan_ray.job.pending_leases import LeaseSpans
from pecan_ray.job.resume_point import BranchPoint, Rest
from pecan_ray.job.saved_state import SavedState
from pecan_ray.job.share_group import Place
from pecan_ray.sampling.spans import Span, merged


@dataclass(frozen=True)
class GroupState:
    """A state of a group's run, as it comes with a batch."""

    state: Mapping[str, Any]
    batches_since: int = 0
    """Batches that the run has given after it, this one included; 0: it was taken behind this one."""


@dataclass(frozen=True)
class RestOfEpoch:
    """How a reader that has lost its group goes on."""

    state: Mapping[str, Any] | None
    """With a run of its own from here to the end of the epoch; None: there is nothing left of that."""
    run_epochs: int = 0
    """Of that run, with those before the state."""


class ReaderPosition:
    """How far a reader has come."""

    def __init__(self, epochs: int | None) -> None:
        self.epochs = epochs
        """To be read from the group that was joined, or is to be; None: without end."""
        self.epoch = -1
        """Of the group, that was read last; -1: nothing was read."""
        self.read = self.skipped = 0
        self._since = Place()
        self._skipped_before = 0
        """In groups before this one."""
        self._of_epoch = 0
        """Batches of the epoch that were read, or skipped."""
        self._state: Mapping[str, Any] | None = None
        self._used: list[LeaseSpans] = []
        """What has come since the state."""
        self._batches = 0
        """Batches that the run has given since the state."""
        self._skipped_at_state = 0
        self.has_begun = False
        """Whether a batch has come since the reader has joined."""

    def join(self, since: Place) -> None:
        """Begin to read a group, from a place on."""
        self._since, self._skipped_before = since, self.skipped
        self.has_begun, self._state = False, None

    def note_skipped(self, skipped: int) -> None:
        """Note how many batches this group has not given to this reader so far."""
        self.skipped = max(self.skipped, self._skipped_before + skipped)

    def take(self, epoch: int, spans: LeaseSpans, skipped: int, state: GroupState | None = None) -> None:
        """Note a batch; `skipped`: as `note_skipped` has it."""
        before = self.skipped
        self.note_skipped(skipped)
        new = 1 + self.skipped - before
        if epoch != self.epoch:
            self._of_epoch, self._state = 0, None  # each epoch begins with a state
        self.epoch, self.has_begun = epoch, True
        self.read, self._of_epoch, self._batches = self.read + 1, self._of_epoch + new, self._batches + new
        if state is not None:
            self._state, self._used, self._batches = state.state, [], state.batches_since
            self._skipped_at_state = self.skipped - max(0, state.batches_since - 1)
        if state is None or state.batches_since:
            self._used.append(spans)

    def rest(self) -> RestOfEpoch | None:
        """Return how to go on if the group is lost, and count what will not come; None: that is not known.

        From then on `epochs` are those behind the rest.
        """
        if not self.has_begun:
            return RestOfEpoch(None)
        left = None if self.epochs is None else self.epochs - (self.epoch - self._since.epoch) - 1
        if left is not None and left < 0:  # it began in the middle of an epoch, and would end in the middle of this one
            self.skipped += max(0, self._since.index - self._of_epoch)
            self.epochs = 0
            return RestOfEpoch(None)
        saved = None if self._state is None else SavedState.from_json(self._state)
        if saved is None or (saved.order == "strict" and self.skipped > self._skipped_at_state):
            return None
        ended = saved.point.epoch > self.epoch
        state = None if ended else self._with_used(saved).to_json()
        if left is not None:
            # A reader that began in the middle of an epoch ends at the end of one after all.
            self.skipped += self._since.index
        self.epochs = left
        return RestOfEpoch(state, self.epoch - saved.first_epoch + 1)

    def _with_used(self, saved: SavedState) -> SavedState:
        """Return a state where all is used that this reader has had since it was taken."""
        point, batches = saved.point, saved.batches + self._batches
        if point.used_batches:  # batches of one sequence
            return replace(
                saved, point=replace(point, used_batches=point.used_batches + self._batches), batches=batches
            )
        # What was skipped since is missing in the state: it comes after all.
        self.skipped = self._skipped_at_state
        branches = tuple(replace(one, used=self._used_of(number, one)) for number, one in enumerate(point.branches))
        return replace(saved, point=replace(point, branches=branches), batches=batches)

    def _used_of(self, branch: int, point: BranchPoint) -> tuple[Rest, ...]:
        used: dict[tuple[int, int], list[Span]] = {(one.pass_index, one.index): [*one.spans] for one in point.used}
        for spans in self._used:
            for (of, pass_index, index), intervals in spans.items():
                if of == branch:
                    used.setdefault((pass_index, index), []).extend(intervals)
        return tuple(Rest(index, pass_index, merged(spans)) for (pass_index, index), spans in sorted(used.items()))
