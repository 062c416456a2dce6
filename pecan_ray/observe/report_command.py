"""The command `pecan report`: the report of a job that runs, of one that is over, or of a file."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.stats import JobStats
from pecan_ray.observe.past_jobs import PastJob, past_jobs, read_job, report_folder
from pecan_ray.observe.report import Report
from pecan_ray.observe.status_command import job_stats
from pecan_ray.runtime import cluster
from pecan_ray.runtime.journal_state import journal_stats

LISTED = 20
"""Newest jobs that are listed: a screen has room for them."""


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan report` takes."""
    parser.add_argument(
        "what",
        nargs="?",
        help="a job, or a pipeline, by its name; a file of Report.to_json() or of the folder; a job's *.journal. "
        "Without it: the jobs that run on the cluster at hand, else the one that ended last",
    )
    parser.add_argument("--list", action="store_true", help=f"list the newest {LISTED} jobs that are over")
    parser.add_argument("--json", action="store_true", help="print the report's fields")
    parser.add_argument("--folder", help="that of Config(report_folder=...), if not the usual one")
    parser.set_defaults(run=run_report)


def run_report(asked: argparse.Namespace) -> int:
    """Print what was asked for."""
    folder = report_folder(asked.folder)
    if folder is None:
        raise PlanError("--folder needs the path of a folder.")
    if asked.list:
        for ended in itertools.islice(past_jobs(folder), LISTED):
            sys.stdout.write(f"{line_of(ended)}\n")
        return 0
    for text, fields in found(asked.what, folder):
        sys.stdout.write(f"{json.dumps(fields, indent=1) if asked.json else text}\n")
    return 0


def found(what: str | None, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the text and the fields of reports; raises `PlanError` where there is none."""
    if what is not None and (path := Path(what)).is_file():
        yield of_file(path)
        return
    over = next((one for one in past_jobs(folder) if what in (None, one.job, one.pipeline)), None)
    # A job of this very name is over: no cluster need be asked.
    live = [] if over is not None and over.job == what else _live(what)
    for facts in live:
        yield so_far(facts)
    if live:
        return
    if over is not None:
        yield past_report_text(over), over.report
        return
    named = "" if what is None else f" of {what}"
    raise PlanError(
        f"there is no report{named}: no such job runs on a Ray cluster here, and {folder} has none. `pecan report "
        "--list` lists those that are over."
    )


def of_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the report of a file: one that was saved, or what a journal tells; raises `PlanError` for any other."""
    if path.suffix == ".journal":
        return so_far(journal_stats(path))
    try:
        written = json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PlanError(f"{path} is no report: neither JSON nor a job's journal.") from error
    if isinstance(written, dict) and "format" in written:
        ended = read_job(path)
        return past_report_text(ended), ended.report
    if not isinstance(written, dict) or not isinstance(written.get("text"), str):
        raise PlanError(f"{path} is no report: it has no `text`, which Report.to_json() writes.")
    return written["text"], written


def so_far(facts: JobStats) -> tuple[str, dict[str, Any]]:
    """Return the report of a job whose trainer cannot be asked."""
    batches = sum(worker.batches for worker in facts.workers.values())
    trainer = TrainerProgress(yielded=batches, rows=facts.elements, elapsed_s=facts.seconds)
    report = Report.of_job(facts, trainer, None)
    return f"as its controller sees it, without its trainer's own times:\n{report}", json.loads(report.to_json())


def past_report_text(ended: PastJob) -> str:
    """Return the text of a job that is over."""
    return f"{line_of(ended)}\n{ended.text}"


def line_of(ended: PastJob) -> str:
    """Spell out in one line what a job was, when it ended and how."""
    when = datetime.fromtimestamp(ended.ended).strftime("%Y-%m-%d %H:%M:%S")
    how = f"with {ended.error.splitlines()[0]}" if ended.error else "well"
    return f"{ended.job} (pipeline {ended.pipeline}) ended at {when} {how}"


def _live(what: str | None) -> list[JobStats]:
    """Return what is known of the jobs, or of one of that name, that run on the cluster at hand, if there is one."""
    if not cluster.runs_here():
        return []
    cluster.attach_to_running()
    return [one for one in job_stats() if what in (None, one.job)]
