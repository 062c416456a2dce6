"""The jobs of the cluster at this moment: every job's controller is asked, all at once."""

from __future__ import annotations

import logging
from typing import Any

import ray

from pecan_ray.job.job_views import LiveJob
from pecan_ray.runtime import cluster

logger = logging.getLogger(__name__)


def live_jobs(timeout_s: float) -> tuple[list[LiveJob], list[str]]:
    """Return the jobs by name, and the names of those whose controllers have not answered after so many seconds."""
    asked: dict[Any, str] = {}
    silent = []
    for job, name in sorted(cluster.other_jobs("").items()):
        try:
            controller: Any = ray.get_actor(name, namespace=cluster.NAMESPACE)
            asked[controller.live.remote()] = job
        except (ValueError, AttributeError):  # it has ended meanwhile, or is of a version without this
            silent.append(job)
    answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s) if asked else ([], [])
    silent += [asked[one] for one in late]
    found: list[LiveJob] = []
    for one in answered:
        try:
            if (live := ray.get(one)) is not None:  # else its processes wait for the next pass
                found.append(live)
        except ray.exceptions.RayError as error:  # it ends, or begins
            logger.info("job %s tells nothing: %s", asked[one], error)
            silent.append(asked[one])
    return sorted(found, key=lambda job: job.job), sorted(silent)
