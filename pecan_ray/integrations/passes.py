"""A pipeline's passes, one for each iterator over it, as data sets of frameworks give them.

The passes are counted by `pecan_ray.pass_numbers`; here is counted how many of them were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias, get_args

from pecan_ray.errors import PlanError, StateError
from pecan_ray.job.delivery_log import MOST_AHEAD

PassesState: TypeAlias = Mapping[str, Any]
OnBreak: TypeAlias = Literal["new", "continue"]
"""What a new iterator gives where a loop has left a pass in the middle: a new pass, or what is left of that one."""


class EpochByEpoch(Protocol):
    """A running job, as `pecan_ray.Batches`."""

    def one_epoch(self) -> Iterator[Any]:
        """Iterate over what is left of the epoch in which the run stands."""
        ...

    def leave_epoch(self) -> None:
        """End the epoch in which the run stands before its end."""
        ...

    def state_dict(self, *, ahead: int = 0) -> dict[str, Any]:
        """Return where the run stands; `ahead`: so many of the last batches are not used yet."""
        ...

    def close(self) -> None:
        """End the job."""
        ...


class Passes:
    """Epochs of one job, which begins when they are iterated over first and goes on between two of them.

    Each iterator begins a new pass, as those of a DataLoader or of tf.data do.  A pass that was left is over: what was
    prepared of it is dropped, and the workers go on with the next one.  A state that was taken in its middle goes on
    there.  With ``on_break="continue"`` a new iterator gives what is left of the pass before it, if anything is.
    """

    def __init__(
        self, begin: Callable[..., EpochByEpoch], *, what: str, epochs: int | None, on_break: OnBreak = "new"
    ) -> None:
        """`begin`: called with `epochs`, and a state to go on from or None; `what` names these to the user."""
        check_on_break(what, on_break)
        self._begin, self._what, self._epochs, self._on_break = begin, what, epochs, on_break
        self._batches: EpochByEpoch | None = None
        self._given = 0
        """Epochs that were given to their ends, or left."""
        self._left = False
        """The loop has had a batch of the epoch in which it stands."""
        self._latest: object = None
        """Stands for the iterator that has begun last."""
        self._given_by: deque[int] = deque(maxlen=MOST_AHEAD)
        """When the last batches were yielded."""
        self._state: PassesState | None = None
        """Of the job that is to begin."""

    @property
    def running(self) -> bool:
        """Return whether the job has begun."""
        return self._batches is not None

    def __iter__(self) -> Iterator[Any]:
        mine = self._latest = object()
        if self._left and self._on_break == "new":
            self._leave()
        left, yielded = self._left, False
        while not yielded:
            self._check_epochs_remaining()
            if self._batches is None:
                self._batches = self._start()
            batches = self._batches
            for batch in batches.one_epoch():
                yielded = self._left = True
                self._given_by.append(self._given)
                yield batch
                self._check_is_latest(mine)
            if self._batches is not batches:
                return
            self._check_is_latest(mine)
            self._given += 1
            self._left = False
            if not left:
                return
            left = False  # the pass before had the last batch of its epoch: this is the next one's

    def _leave(self) -> None:
        """End the pass that was left."""
        if self._batches is not None:
            self._batches.leave_epoch()
        self._given += 1
        self._left = False

    def _check_is_latest(self, iterator: object) -> None:
        """Raise PlanError where another iterator has begun a new pass meanwhile: this one would take its batches."""
        if iterator is not self._latest and self._on_break == "new":
            raise PlanError(
                f"{self._what}: another iterator over it has begun, with a new pass, so the pass of this one is over. "
                'For two passes at a time make two of it; on_break="continue" lets iterators share one pass.'
            )

    def _check_epochs_remaining(self) -> None:
        if self._epochs is not None and self._given >= self._epochs:
            raise PlanError(
                f"{self._what}: all of its epochs={self._epochs} were given. Pass more, or epochs=None for as many as "
                "are asked for; close() lets it begin again."
            )

    def _start(self) -> EpochByEpoch:
        state, self._state = self._state, None
        batches = self._begin(epochs=self._epochs, state=state)
        if state is not None and _epochs_of(state) < self._given:
            deque(batches.one_epoch(), maxlen=0)  # it was taken at the end of that epoch, of which nothing is left
        return batches

    def state_dict(self, *, ahead: int = 0) -> dict[str, Any]:
        """Return where the passes stand, between two batches: plain values, to be saved with the model.

        `ahead`: so many of the last batches were fetched and are not used yet.
        """
        if self._batches is None:
            return {"epochs": self._given, "batches": self._state}
        state = self._batches.state_dict(ahead=ahead)
        given = self._given_by[-ahead] if ahead else self._given
        return {"epochs": max(given, _epochs_of(state)), "batches": state}

    def load_state_dict(self, state: PassesState) -> None:
        """Go on where a state was taken: what runs now ends, and the next iterator begins another job.

        One that was taken in the middle of a pass goes on there.  Raises StateError for what is no state of such
        passes.
        """
        if not isinstance(state, Mapping) or not isinstance(state.get("epochs"), int) or "batches" not in state:
            raise StateError(
                f"{self._what}: this is no state of it: pass what its own state_dict() has returned. A state of "
                "iter_batches goes on with iter_batches(state=...)."
            )
        self.close()
        self._given, self._state = state["epochs"], state["batches"]

    def close(self) -> None:
        """End the job; the next pass begins another one, with the next epoch."""
        batches, self._batches = self._batches, None
        self._given, self._left, self._state = 0, False, None
        if batches is not None:
            batches.close()


def check_on_break(what: str, given: str) -> None:
    """Raise PlanError for what says nothing about passes that are left."""
    if given not in get_args(OnBreak):
        raise PlanError(f'{what}: on_break={given!r} is neither "new" (each iterator is a new pass) nor "continue".')


def _epochs_of(state: PassesState) -> int:
    """Return how many epochs of a job had been given to their ends when its state was taken."""
    return int(state["epoch"]) - int(state.get("first_epoch", 0))
