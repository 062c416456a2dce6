"""Where a run stood whose whole program was killed: a state out of the journal that it has left."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

from pecan_ray.errors import JournalError, StateError, told
from pecan_ray.job.journal import ReplayedJob, entries, pages, replay
from pecan_ray.job.saved_state import SavedState, no_state_of
from pecan_ray.runtime.journal_file import JournalPlace, file_name, kept_job
from pecan_ray.runtime.messages import Job

logger = logging.getLogger("pecan_ray")


def journal_state(folder: str | os.PathLike[str], job: str) -> dict[str, Any]:
    """Return the state of a job that was killed with all its trainers, for ``iter_batches(state=...)``.

    `folder`: the one of ``Config(journal=...)``; `job`: the name in ``iter_batches(job=...)``.  Trainers tell how many
    batches they have used once a second or more often: what they used after that is not known to be used, and comes
    again, as it must for a model of which nothing was saved since.  To go on exactly where a checkpoint of the model
    was taken, save ``Batches.state_dict()`` with it.

    The job and its journal are pickled, so read only what your own jobs have written.  Raises JournalError where there
    is no journal, or a damaged one, and StateError where the job had no state.
    """
    place = JournalPlace(Path(folder), file_name(job), "")
    found = kept_job(place.job_file)
    if found is None:
        raise JournalError(
            f"{place.folder} holds no journal of job {job}: it has ended, had another name, or ran without "
            "Config(journal=...) of this folder.",
            path=str(place.folder),
        )
    ran: Job = _unpickled(place, found[1])
    if why := no_state_of(ran.options):
        raise StateError(f"job {job} has no state, since {why}.")
    at_end = _replayed(place, ran)
    used = min((one.progress.yielded for one in at_end.state.trainers.ranks.values()), default=0)
    point = at_end.state.resume_point(used)
    if point is None:
        raise StateError(f"job {job} has no state: it was killed before all its trainers had told of their batches.")
    for one in at_end.state.quarantine.waiting:
        logger.warning(
            "job %s had left out %s in %s, and has kept it in no file: %s", job, one.where, one.op, one.error
        )
    batches = ran.batches_before + used
    return SavedState(point, batches, ran.seed, ran.engine, ran.parts, ran.options.order).to_json()


def _unpickled(place: JournalPlace, data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling what another version has written raises anything
        raise JournalError(
            f"{place.job_file} cannot be unpickled: {told(error)}. Read it where the pipeline's modules can be "
            "imported, with the version of pecan_ray that has written it.",
            path=str(place.job_file),
        ) from error


def _replayed(place: JournalPlace, ran: Job) -> ReplayedJob:
    try:
        written = place.journal.read_bytes()  # first: each page is written before the entry about it
        listed = place.listings.read_bytes()
    except OSError as error:
        raise JournalError(f"the journal {place.journal} cannot be read: {error}.", path=str(place.journal)) from error
    return replay((entry for entry, _ in entries(written)), ran.spec, [page for page, _ in pages(listed)])
