"""A pipeline's epochs, one for each time that it is iterated over, as data sets of frameworks give them.

The epochs are counted by `pecan_ray.pass_numbers`; here is counted how many of them were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from pecan_ray.errors import PlanError, StateError
from pecan_ray.job.delivery_log import MOST_AHEAD

PassesState: TypeAlias = Mapping[str, Any]


class EpochByEpoch(Protocol):
    """A running job, as `pecan_ray.Batches`."""

    def one_epoch(self) -> Iterator[Any]:
        """Iterate over what is left of the epoch in which the run stands."""
        ...

    def state_dict(self, *, ahead: int = 0) -> dict[str, Any]:
        """Return where the run stands; `ahead`: so many of the last batches are not used yet."""
        ...

    def close(self) -> None:
        """End the job."""
        ...


class Passes:
    """Epochs of one job, which begins when they are iterated over first and goes on between two of them.

    A pass that was left early is gone on with by the next one: every element of an epoch comes once.  One that was left
    with the last batch of its epoch is over, whether or not the loop has asked for more.
    """

    def __init__(self, begin: Callable[..., EpochByEpoch], *, what: str, epochs: int | None) -> None:
        """`begin`: called with `epochs`, and a state to go on from or None; `what` names these to the user."""
        self._begin, self._what, self._epochs = begin, what, epochs
        self._batches: EpochByEpoch | None = None
        self._given = 0
        """Epochs that were given to their ends."""
        self._left = False
        """The loop has had a batch of the epoch in which it stands."""
        self._given_by: deque[int] = deque(maxlen=MOST_AHEAD)
        """When the last batches were yielded."""
        self._state: PassesState | None = None
        """Of the job that is to begin."""

    @property
    def running(self) -> bool:
        """Whether the job has begun."""
        return self._batches is not None

    def __iter__(self) -> Iterator[Any]:
        left, yielded = self._left, False
        while not yielded:
            self._must_go_on()
            if self._batches is None:
                self._batches = self._begun()
            batches = self._batches
            for batch in batches.one_epoch():
                yielded = self._left = True
                self._given_by.append(self._given)
                yield batch
            if self._batches is not batches:
                return
            self._given += 1
            self._left = False
            if not left:
                return
            left = False  # the pass before had the last batch of its epoch: this is the next one's

    def _must_go_on(self) -> None:
        if self._epochs is not None and self._given >= self._epochs:
            raise PlanError(
                f"{self._what}: all of its epochs={self._epochs} were given. Pass more, or epochs=None for as many as "
                "are asked for; close() lets it begin again."
            )

    def _begun(self) -> EpochByEpoch:
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
        """Go on where a state was taken: what runs now ends, and the next pass begins another job.

        Raises StateError for what is no state of such passes.
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


def _epochs_of(state: PassesState) -> int:
    """Return how many epochs of a job had been given to their ends when its state was taken."""
    return int(state["epoch"]) - int(state.get("first_epoch", 0))
