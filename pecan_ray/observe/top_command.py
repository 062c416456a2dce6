"""The command `pecan top`: the jobs of the cluster at hand as a table that renews itself."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence

from pecan_ray.errors import PlanError
from pecan_ray.job.job_views import LiveJob
from pecan_ray.observe.live_jobs import live_jobs
from pecan_ray.observe.top_table import summary, top_lines
from pecan_ray.runtime import cluster

ANSWER_S = 5.0
"""A job that has not told after so long is named below the table, which is drawn again every few seconds."""
# Escape sequences: the cursor to the upper left corner, and all behind it cleared.
HOME_AND_CLEAR = "\x1b[H\x1b[J"


def add_top_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan top` takes."""
    parser.add_argument("--once", action="store_true", help="print the table once")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="renew it so often (2)")
    parser.set_defaults(run=run_top)


def run_top(asked: argparse.Namespace) -> int:
    """Show the table, until it is interrupted."""
    if not 0.1 <= asked.every <= 3600:
        raise PlanError(f"--every must be a number of seconds from 0.1 to 3600, but got {asked.every:g}.")
    cluster.attach_to_running()
    terminal = sys.stdout.isatty()
    while True:
        width = shutil.get_terminal_size().columns if terminal else None
        text = "\n".join(job_overview_lines(*live_jobs(ANSWER_S), width))
        sys.stdout.write(f"{HOME_AND_CLEAR}{text}\n" if terminal and not asked.once else f"{text}\n")
        sys.stdout.flush()
        if asked.once:
            return 0
        try:
            time.sleep(asked.every)
        except KeyboardInterrupt:  # which is how it is ended
            return 0


def job_overview_lines(jobs: Sequence[LiveJob], silent: Sequence[str], width: int | None) -> list[str]:
    """Return the lines for jobs; `silent`: those that have not answered."""
    lines = [summary(jobs), *(top_lines(jobs, width) if jobs else ())]
    return [*lines, f"silent: {', '.join(silent)}"] if silent else lines
