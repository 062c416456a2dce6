"""Which jobs read the same data through one folder of a node at the same time: by notes in the folder's index.

A note is renewed while a process of the job reads, or looks for work; one that was not for a minute counts no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pecan_ray.caching.store import EntryStore

# Seconds: a note is renewed twelve times before it counts as forgotten (PRESENT_S), and looked for once a
# second.
RENEW_S = 5.0
LOOK_S = 1.0  # seconds between two looks for notes
# Decision 54: a process that dies takes no note back.
PRESENT_S = 60.0


def dataset_of(path: str) -> str:
    """Return what objects are taken for one dataset by: their bucket and the first folder in it."""
    parts = path.split("/", 4)
    return "/".join(parts[:4] if len(parts) == 5 else parts[:3])


class ReaderRegistry:
    """A job among others on its node; for one thread at a time."""

    def __init__(self, store: EntryStore, job: str, clock: Callable[[], float] = time.time) -> None:
        """`job`: its name, the same in all its processes."""
        self._store, self._job, self._clock = store, job, clock
        self._written_at: dict[str, float] = {}
        """When this process has last noted that it reads a dataset."""
        self._last_lookup: dict[str, tuple[float, bool]] = {}
        """Of each dataset, when this process last looked for others that read it, and whether it found some."""

    @property
    def datasets(self) -> list[str]:
        """What this process has read lately."""
        return [dataset for dataset, noted in self._written_at.items() if abs(self._clock() - noted) < PRESENT_S]

    def reads(self, dataset: str) -> None:
        """Note that the job reads a dataset."""
        now = self._clock()
        # The wall clock, since other processes read the notes. `abs`, because it may be set back.
        if abs(now - self._written_at.get(dataset, 0.0)) > RENEW_S:
            self._written_at[dataset] = now
            self._store.note(f"reads\n{dataset}\n{self._job}", repr(now))

    def several(self, dataset: str) -> bool:
        """Tell whether other jobs read a dataset, too."""
        now = self._clock()
        looked, found = self._last_lookup.get(dataset, (0.0, False))
        if abs(now - looked) > LOOK_S:
            found = self._look(dataset, now)
            self._last_lookup[dataset] = now, found
        return found

    def is_read_elsewhere(self) -> bool:
        """Tell whether other jobs read a dataset that this process reads; renew what it has noted of itself.

        Before it has read anything it may be so.
        """
        mine = self.datasets
        for dataset in mine:
            self.reads(dataset)
        return not self._written_at or any(map(self.several, mine))

    def _look(self, dataset: str, now: float) -> bool:
        prefix, others = f"reads\n{dataset}\n", False
        for job, text in self._store.notes(prefix).items():
            if abs(now - float(text)) > PRESENT_S:
                self._store.forget_note(prefix + job)
            else:
                others = others or job != self._job
        return others
