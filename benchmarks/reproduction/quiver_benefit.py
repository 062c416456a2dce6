"""What caching a dataset brings, measured, and which datasets are cached (Quiver §5.3).

A job is probed: the time of its mini-batches with every look-up refused, against that with the cache.  A dataset is
cached as a whole, or two chunks of it at a time (jobs that read it together then fetch each byte once), or not at all:
of one job that reads two chunks each byte still comes from remote storage, and more than two bring no more than two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pecan_ray.cache.checked import checked_amount, checked_count
from pecan_ray.errors import PlanError

CachedPart: TypeAlias = Literal["whole", "two chunks", "none"]
# In bytes: the chunks of 15 GB and of a tenth of the data set are those of Quiver's own experiments.
MOST_CHUNK_BYTES = 15e9
CHUNK_SHARE = 0.1
"""Of a dataset: a chunk is this, and at most `MOST_CHUNK_BYTES`."""
LEAST_BENEFIT = 1.05
"""Who is helped less than this is not bound by storage, and needs no cache."""


@dataclass(frozen=True)
class ProbedJob:
    """Seconds of a mini-batch of a job, measured over a hundred or so."""

    name: str
    dataset: str
    miss_s: float
    """With every look-up refused."""
    hit_s: float
    """With everything cached."""
    shared_s: float | None = None
    """With two chunks at a time, of which others that read the dataset fetch their part; None: nobody does."""
    gpus: int = 1

    def __post_init__(self) -> None:
        for field in ("miss_s", "hit_s", "shared_s"):
            if field != "shared_s" or self.shared_s is not None:
                checked_amount(f"job {self.name!r}: {field}", getattr(self, field), positive=True)
        checked_count(f"job {self.name!r}: gpus", self.gpus)


@dataclass(frozen=True)
class CachingChoice:
    """What is cached of a dataset."""

    part: CachedPart
    nbytes: float
    benefit: float
    """GPUs saved by it, of all jobs that read the dataset: the sum of n t_m / t_h, less that without a cache."""


def benefit(miss_s: float, hit_s: float, gpus: int = 1) -> float:
    """Return the GPUs' work that a cache lets a job do: n t_m / t_h, so n where it changes nothing."""
    miss = checked_amount("benefit(miss_s=...)", miss_s, positive=True)
    return checked_count("benefit(gpus=...)", gpus) * miss / checked_amount("benefit(hit_s=...)", hit_s, positive=True)


def chunk_bytes(dataset_bytes: float, most: float = MOST_CHUNK_BYTES) -> float:
    """Return the size of a chunk: a tenth of the dataset, but at most so many bytes."""
    return min(most, CHUNK_SHARE * dataset_bytes)


def choose_caching(
    jobs: Sequence[ProbedJob], dataset_bytes: Mapping[str, float], cache_bytes: float
) -> dict[str, CachingChoice]:
    """Return what is cached of each dataset: greedily what brings the greatest benefit for its bytes.

    What does not fit is passed over, and what is cached in two chunks may be cached as a whole later, by what this
    brings in addition.
    """
    room = checked_amount("choose_caching(cache_bytes=...)", cache_bytes)
    whole, shared = _benefit_of(jobs, dataset_bytes)
    chosen = {name: CachingChoice("none", 0.0, 0.0) for name in dataset_bytes}
    steps: list[tuple[float, str, CachingChoice]] = []
    for name, size in dataset_bytes.items():
        two = CachingChoice("two chunks", 2 * chunk_bytes(size), shared[name])
        all_of_it = CachingChoice("whole", size, whole[name])
        # Where a byte of two chunks brings more, they come first, and the rest of the dataset is worth what it adds.
        first = two.benefit * size > all_of_it.benefit * two.nbytes
        more = (whole[name] - two.benefit, size - two.nbytes) if first else (whole[name], size)
        steps.append((two.benefit / two.nbytes, name, two))
        steps.append((more[0] / more[1], name, all_of_it))
    for worth, name, choice in sorted(steps, key=lambda step: -step[0]):
        extra = choice.nbytes - chosen[name].nbytes
        # Passed over and not the end: a smaller dataset behind it may still fit.
        if worth > 0 and 0 < extra <= room:
            room -= extra
            chosen[name] = choice
    return chosen


def _benefit_of(
    jobs: Sequence[ProbedJob], dataset_bytes: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Add up what the whole, and what two chunks would bring to each dataset's jobs."""
    whole: dict[str, float] = defaultdict(float)
    shared: dict[str, float] = defaultdict(float)
    for name, size in dataset_bytes.items():
        checked_amount(f"dataset {name!r}: bytes", size, positive=True)
    for job in jobs:
        if job.dataset not in dataset_bytes:
            raise PlanError(f"job {job.name!r} reads dataset {job.dataset!r}, whose size is not said.")
        for found, seconds in ((whole, job.hit_s), (shared, job.shared_s)):
            if seconds is not None and job.miss_s >= LEAST_BENEFIT * seconds:
                found[job.dataset] += benefit(job.miss_s, seconds, job.gpus) - job.gpus
    return whole, shared
