"""Which jobs read the same datasets, wherever their workers run: as these report, again and again."""

from __future__ import annotations

from collections.abc import Iterable

# docs/decisions/shared-cache-and-pipe.md#54-cached-first-by-offers: forgotten after a minute; workers report
# every two seconds.
READS_S = 60.0
"""A job that was not heard for so long reads a dataset no more."""


class Readers:
    """Jobs by the datasets that they read."""

    def __init__(self) -> None:
        self._last_seen: dict[str, dict[str, float]] = {}
        """When, by dataset and job."""

    def __len__(self) -> int:
        return len(self._last_seen)

    def report(self, job: str, datasets: Iterable[str], now: float) -> tuple[str, ...]:
        """Take what a job reads; return what of that other jobs read too."""
        shared: list[str] = []
        for dataset in datasets:
            jobs = self._last_seen.setdefault(dataset, {})
            jobs[job] = now
            self._forget(dataset, now)
            if len(jobs) > 1:
                shared.append(dataset)
        return tuple(shared)

    def forget_old(self, now: float) -> None:
        """Forget the jobs that were not heard for long."""
        for dataset in list(self._last_seen):
            self._forget(dataset, now)

    def _forget(self, dataset: str, now: float) -> None:
        jobs = self._last_seen[dataset]
        for job in [job for job, heard in jobs.items() if now - heard > READS_S]:
            del jobs[job]
        # Datasets come and go for as long as a node lives.
        if not jobs:
            del self._last_seen[dataset]
