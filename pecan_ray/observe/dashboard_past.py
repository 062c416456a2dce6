"""Reports of past jobs that are kept on this machine, as the dashboard shows them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from pecan_ray.errors import PecanError
from pecan_ray.observe.dashboard.from_report import past_line, record_of_report
from pecan_ray.observe.dashboard.job_list import list_page
from pecan_ray.observe.dashboard.record import JobLine, JobRecord, PastRun
from pecan_ray.observe.past_jobs import PastJob, read_job, report_folder

logger = logging.getLogger(__name__)

BROKEN = (PecanError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a file can do that is no report, or one of numbers that no page can show."""


class PastReports:
    """The folder of reports; a file does not change, so each is read once for the list."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: None is the usual one."""
        self._folder = folder or report_folder()
        self._lines: dict[str, JobLine | None] = {}

    def lines(self) -> list[JobLine]:
        """Return the past jobs, the newest first."""
        names = self._names()
        self._lines = {name: self._lines[name] if name in self._lines else self._line(name) for name in names}
        return [line for line in self._lines.values() if line is not None]

    def record(self, key: str) -> JobRecord | None:
        """Return what a page shows of one; None where there is no such report."""
        if key not in self._names():
            return None
        assert self._folder is not None
        try:
            kept = read_job(self._folder / key)
            return record_of_report(self._line_of(key, kept), kept.report, kept.text)
        except BROKEN as error:
            logger.info("%s cannot be shown: %s", key, error)
            return None

    def _names(self) -> list[str]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return sorted((path.name for path in self._folder.glob("[0-9]*.json")), reverse=True)

    def _line(self, name: str) -> JobLine | None:
        assert self._folder is not None
        try:
            line = self._line_of(name, read_job(self._folder / name))
            list_page("", [], [line], [])  # one that cannot be shown would take the others with it
            return line
        except BROKEN as error:
            logger.info("%s is left out: %s", name, error)
            return None

    def _line_of(self, name: str, kept: PastJob) -> JobLine:
        ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(kept.ended))
        return past_line(kept.job, kept.pipeline, kept.report, PastRun(ended, name), error=kept.error)
