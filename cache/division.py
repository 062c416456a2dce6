"""The demands of many jobs as arrays, and what policies answer: one place for each job, in the order of the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pecan_ray.cache.demands import ClusterResources, JobDemand
from pecan_ray.cache.store_model import Numbers
from pecan_ray.errors import PlanError


def _dataset_numbers(jobs: Sequence[JobDemand]) -> list[int]:
    """Return which dataset each job reads; without a name it is a dataset of that job alone."""
    numbers: dict[tuple[str, bool], int] = {}
    sizes: dict[int, JobDemand] = {}
    datasets = []
    for job in jobs:
        # A job's name and a dataset's name may be equal, and are still two things.
        key = (job.name, False) if job.dataset is None else (job.dataset, True)
        number = numbers.setdefault(key, len(numbers))
        first = sizes.setdefault(number, job)
        if first.dataset_bytes != job.dataset_bytes:
            raise PlanError(
                f"allocate: dataset {job.dataset!r} has {first.dataset_bytes:g} bytes for job {first.name!r} and "
                f"{job.dataset_bytes:g} for job {job.name!r}; one name means one dataset."
            )
        datasets.append(number)
    return datasets


@dataclass(frozen=True, eq=False)
class Demands:
    """Of each job, what `JobDemand` says."""

    ideal: Numbers
    size: Numbers
    """Bytes of its dataset."""
    dataset: NDArray[np.intp]
    """Which dataset it reads, counted from 0."""
    remaining: Numbers
    gpus: Numbers
    cached: Numbers
    """Bytes that can be hit now; inf: whatever it is allotted."""

    @classmethod
    def of(cls, jobs: Sequence[JobDemand]) -> Demands:
        """Return the demands of some jobs, of which no two have one name, nor datasets of one name two sizes."""
        names = [job.name for job in jobs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise PlanError(f"allocate: two jobs are named {twice!r}.")
        return cls(
            np.array([job.ideal_bytes_per_s for job in jobs], np.float64),
            np.array([job.dataset_bytes for job in jobs], np.float64),
            np.array(_dataset_numbers(jobs), np.intp),
            np.array([job.dataset_bytes if job.remaining_bytes is None else job.remaining_bytes for job in jobs]),
            np.array([job.gpus for job in jobs], np.float64),
            np.array([np.inf if job.cached_bytes is None else job.cached_bytes for job in jobs]),
        )

    def of_datasets(self, values: Numbers) -> Numbers:
        """Add up what jobs with one dataset have."""
        return np.bincount(self.dataset, weights=values).astype(np.float64)

    @cached_property
    def dataset_sizes(self) -> Numbers:
        """Bytes of each dataset."""
        sizes = np.zeros(int(self.dataset.max(initial=-1)) + 1)
        # Jobs with one dataset have said one size: it does not matter which is written last.
        sizes[self.dataset] = self.size
        return sizes

    def gpus_of(self, cluster: ClusterResources) -> float:
        """Return the GPUs of the cluster: what it says, or what the jobs have."""
        # A cluster cannot have fewer GPUs than its jobs use, whatever it says.
        return float(self.gpus.sum()) if cluster.gpus is None else max(float(cluster.gpus), float(self.gpus.sum()))

    def hits(self, cache: Numbers) -> Numbers:
        """Return the share of its reads that each job finds, where so many bytes of its dataset may be cached."""
        return np.minimum(1.0, np.minimum(cache, self.cached) / self.size)

    def throughput(self, hits: Numbers, io: Numbers) -> Numbers:
        """Return what each job reads: min(f*, b / (1 - hits))."""
        missed = 1 - hits
        # A job that misses nothing is bound by its ideal speed alone.
        return np.minimum(self.ideal, np.divide(io, missed, out=np.full_like(io, np.inf), where=missed > 0))


@dataclass(frozen=True, eq=False)
class Division:
    """What each job is given."""

    cache: Numbers
    hits: Numbers
    """Share of its reads that are served by the cache."""
    io: Numbers
