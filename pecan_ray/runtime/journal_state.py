"""Where a run stood whose whole program was killed: a state out of the journal that it has left."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pecan_ray.errors import JournalError, StateError, describe_error
from pecan_ray.job.journal import RestoredJob, entries, pages, replay
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.saved_state import SavedState, no_state_of
from pecan_ray.job.stats import JobStats
from pecan_ray.runtime.journal_copy import JOB, read_copy
from pecan_ray.runtime.journal_file import JournalPlace, bucket_folder, file_name, job_of, kept_job
from pecan_ray.runtime.messages import Job
from pecan_ray.storage import is_remote

NONE = TrainerProgress()
"""Of a job whose trainers have not come."""
logger = logging.getLogger("pecan_ray")


def journal_state(folder: str | os.PathLike[str], job: str) -> dict[str, Any]:
    """Return the state of a job that was killed with all its trainers, for ``iter_batches(state=...)``.

    `folder`: the one of ``Config(journal=...)``, or the bucket; `job`: the name in ``iter_batches(job=...)``.  Trainers
    tell how many batches they have used once a second or more often: what they used after that is not known to be used,
    and comes again, as it must for a model of which nothing was saved since.  To go on exactly where a checkpoint of it
    was taken, save ``Batches.state_dict()`` with it.

    The job and its journal are pickled, so read only what your own jobs have written.  Raises JournalError where there
    is no journal, or a damaged one, and StateError where the job had no state.
    """
    kept = _in_bucket(folder, job) if is_remote(os.fspath(folder)) else _in_folder(folder, job)
    if kept is None:
        raise JournalError(
            f"{os.fspath(folder)} holds no journal of job {job}: it has ended, had another name, or ran without "
            "Config(journal=...) of this folder.",
            path=os.fspath(folder),
        )
    ran: Job = _unpickle(kept)
    if why := no_state_of(ran.options):
        raise StateError(f"job {job} has no state, since {why}.")
    at_end = kept.replay_result(ran)
    # Of epochs that a loop has left, batches are passed over, and count as used: all ranks leave them together.
    # The rank that has used least decides: what others have used beyond it comes again.
    behind = min((one.progress for one in at_end.state.trainers.ranks.values()), key=lambda one: one.used, default=NONE)
    used = behind.used
    point = at_end.state.resume_point(used)
    if point is None:
        raise StateError(f"job {job} has no state: it was killed before all its trainers had told of their batches.")
    for one in at_end.state.quarantine.waiting:
        logger.warning(
            "job %s had left out %s in %s, and has kept it in no file: %s", job, one.where, one.op, one.error
        )
    batches = ran.batches_before + used
    options = ran.options
    order, first, passed = options.order or "relaxed", options.first_epoch, ran.passed_before + behind.passed
    return SavedState(point, batches, ran.seed, ran.engine, ran.parts, order, first, passed).to_json()


def journal_stats(file: Path) -> JobStats:
    """Return what a journal in a folder tells of its job, as of its last entry; raises JournalError for a damaged one.

    It is pickled, so read only what your own jobs have written.
    """
    # Whose journal it is does not matter for reading. A process that goes on from one names its actor here.
    place = JournalPlace(file.parent, file.name.removesuffix(".journal"), "")
    found = kept_job(place.job_file)
    if found is None:
        raise JournalError(f"{file} is no journal of a job: there is no {place.job_file}.", path=str(file))
    kept = _KeptJournal(str(place.job_file), found[1], partial(_read, place))
    at_end = kept.replay_result(_unpickle(kept))
    return at_end.state.stats(at_end.at)


@dataclass(frozen=True)
class _KeptJournal:
    """A job, and what is written of it."""

    where: str
    """Of the job itself."""
    job: bytes
    read: Callable[[], tuple[bytes, bytes]]
    """Returns its entries, and the pages of its listings."""

    def replay_result(self, ran: Job) -> RestoredJob:
        written, listed = self.read()
        return replay((entry for entry, _ in entries(written)), ran.spec, [page for page, _ in pages(listed)])


def _in_folder(folder: str | os.PathLike[str], job: str) -> _KeptJournal | None:
    place = JournalPlace(Path(folder), file_name(job), "")
    found = kept_job(place.job_file)
    return None if found is None else _KeptJournal(str(place.job_file), found[1], partial(_read, place))


def _read(place: JournalPlace) -> tuple[bytes, bytes]:
    try:
        written = place.journal.read_bytes()  # first: each page is written before the entry about it
        return written, place.listings.read_bytes()
    except OSError as error:
        raise JournalError(f"the journal {place.journal} cannot be read: {error}.", path=str(place.journal)) from error


def _in_bucket(root: str | os.PathLike[str], job: str) -> _KeptJournal | None:
    copied = read_copy(bucket_folder(root, job))
    if copied is None:
        return None
    where = f"{copied.where}/{JOB}"
    return _KeptJournal(where, job_of(copied.job, where)[1], lambda: (copied.journal, copied.listings))


def _unpickle(kept: _KeptJournal) -> Any:
    try:
        return pickle.loads(kept.job)
    except Exception as error:  # unpickling what another version has written raises anything
        raise JournalError(
            f"{kept.where} cannot be unpickled: {describe_error(error)}. Read it where the pipeline's modules can be "
            "imported, with the version of pecan_ray that has written it.",
            path=kept.where,
        ) from error
