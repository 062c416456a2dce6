"""Which of the batches that Keras asks a `PyDataset` for begin a new pass.

Keras makes iterators over a data set, and asks it for batches; of an iterator it says nothing.  But it reads
`num_batches` whenever it makes one, and at no other time, and it tells where its epochs begin and end.  Some iterators
it makes only to *look* at the first batches, for their shapes, or in vain, at the end of each epoch.  What was only
looked at comes again with the next iterator: nothing of the pass was used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class KerasIterators:
    """What Keras has had of a pass, and what its next iterator is given."""

    def __init__(self, steps: int, fetch: Callable[[], Any], leave: Callable[[], None]) -> None:
        """`steps`: batches of an epoch of Keras; `fetch` returns the next one; `leave` ends the pass that was left."""
        self._steps, self._fetch, self._leave = steps, fetch, leave
        self._given = 0
        """Batches of the pass, or of what `steps` make of it."""
        self._held: list[Any] = []
        """The first batches of the pass, as long as they may come again."""
        self._reused: deque[Any] = deque()
        """Batches that come again."""
        self._fetched = self._has_started = False
        """Whether the iterator that was made last has had a batch, and whether an epoch has begun since."""
        self._looks = True
        """What it has had was not used, as far as is known."""
        self._in_epoch, self._of_epoch = False, 0
        """Within an epoch of Keras, and how many batches it has had in it."""

    def note_created(self, *, by_hand: bool = False) -> None:
        """Note that an iterator is made, or will be; `by_hand`: not by Keras."""
        if self._fetched:
            broken_off = self._in_epoch and 0 < self._of_epoch < self._steps and self._given == 1
            if len(self._held) == self._given and (self._looks or broken_off) and not by_hand:
                self._reused = deque(self._held)
            else:
                if self._given % self._steps:
                    self._leave()
                self.forget()
        # Made within an epoch that has had no batch: this is the one that trains.
        self._looks = not by_hand and not (self._in_epoch and not self._of_epoch)
        self._fetched = self._has_started = False

    def next(self) -> Any:
        """Return the next batch."""
        if self._looks and self._has_started:
            self._looks = False  # it was made when the epoch before ended, and is used after all
        self._fetched = True
        self._of_epoch += self._in_epoch
        if self._reused:
            return self._reused.popleft()
        batch = self._fetch()
        self._given += 1
        if self._looks or self._given == 1:
            self._held.append(batch)
        else:
            self._held.clear()
        return batch

    def fetched(self) -> int:
        """Return the batches of the present epoch of Keras that it has had; 0 between two epochs."""
        return self._of_epoch if self._in_epoch else 0

    def num_prefetched(self, used: int | None) -> int:
        """Return how many of the batches that were fetched are not used.

        `used`: of the present epoch of Keras; None: all that it was given.
        """
        looked_at = len(self._held) if self._looks and len(self._held) == self._given else len(self._reused)
        return looked_at if used is None or self._looks else looked_at + max(self._of_epoch - used, 0)

    def begin_epoch(self) -> None:
        """Note that Keras begins with an epoch."""
        self._in_epoch, self._of_epoch, self._has_started = True, 0, True

    def end_epoch(self) -> None:
        """Note that Keras has ended an epoch, or begins anew."""
        self._in_epoch = False

    def forget(self) -> None:
        """Begin a new pass with the next batch."""
        self._given = 0
        self._held.clear()
        self._reused.clear()
