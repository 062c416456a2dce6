"""Reports of jobs that are over: one JSON file for each, in a folder that `pecan report` and pages read.

A file holds an object: `format` (1), `job`, `pipeline`, `cluster` (the name of Ray's session), `node`, `began` and
`ended` (seconds of the epoch of Unix), `error` (what the job ended with; empty: it ended well), `text` (the report as
it is printed) and `report` (its fields, as `Report.to_json` gives them).  The newest files are kept, and one that
cannot be read is as good as none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.user_files import user_cache_folder, written_beside

logger = logging.getLogger("pecan_ray")

# Of the files in which ended jobs are noted.
FORMAT = 1
# docs/decisions/observing.md#62-reports-are-files.
KEPT = 200
"""Newest files that stay in the folder."""
_NAME = re.compile(r"\d{14}-.+\.json")


@dataclass(frozen=True)
class PastJob:
    """What is kept of one job."""

    job: str
    pipeline: str
    cluster: str
    node: str
    began: float
    """In seconds of the epoch of Unix, as `ended`."""
    ended: float
    error: str
    """What the job ended with; empty: it ended well."""
    text: str
    """Its report, as it is printed."""
    report: dict[str, Any] = field(default_factory=dict)
    """The report's fields."""

    @property
    def file_name(self) -> str:
        """Name of its file: those of later jobs sort behind it."""
        # In bytes, of which a name has 255 at most: a letter may take four.
        readable = re.sub(r"[^\w.-]+", "_", self.job).encode()[:100].decode(errors="ignore")
        # Milliseconds with leading zeros: by name is by time.
        return f"{int(self.began * 1000):014d}-{readable}.json"

    def to_json(self) -> str:
        """Return what the file holds."""
        return json.dumps({"format": FORMAT, **asdict(self)})


def report_folder(given: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder that ``Config(report_folder=...)`` means; None: reports are not kept."""
    if given is not None:
        return Path(given) if os.fspath(given) else None
    return user_cache_folder("jobs")


def keep_job(ended: PastJob, folder: Path) -> None:
    """Write a job's file, and remove the oldest ones; a folder that cannot be written keeps nothing."""
    try:
        # Under a name that `_files` does not list, until all of it is there.
        with written_beside(folder / ended.file_name, ended.to_json()) as written:
            os.replace(written, folder / ended.file_name)
        for old in _files(folder)[KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.info("the report of job %s is not kept in %s: %s", ended.job, folder, error)


def past_jobs(folder: Path) -> Iterator[PastJob]:
    """Yield the jobs of a folder, the newest first."""
    for path in _files(folder):
        with contextlib.suppress(PlanError):
            yield read_job(path)


def read_job(path: Path) -> PastJob:
    """Return the job of a file; raises `PlanError` where it is none."""
    try:
        written = json.loads(path.read_text())
        if written["format"] != FORMAT:
            raise PlanError(f"{path} is of format {written['format']}, and this version reads {FORMAT}.")
        return PastJob(**{name: written[name] for name in PastJob.__dataclass_fields__})
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{path} is no report of a job.") from error


def _files(folder: Path) -> list[Path]:
    """Return the folder's files, the newest first."""
    try:
        return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    except OSError:
        return []
