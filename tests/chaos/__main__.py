"""Chaos on a real cluster of several raylets, for so many minutes.

    python -m tests.chaos [--minutes M] [--runs N] [--seed S] [--only K ...] [--folder F] [--busy LOOPS]

The seed is printed, and draws the same jobs again, `--only K` one of them; when faults meet it is up to the machine.
Beside the jobs run loops that take every CPU three times over, as preprocessing does; `--busy 0` runs none.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from benchmarks.faults.__main__ import run_all, table
from benchmarks.faults.links import apart
from benchmarks.faults.run import FaultOutcome
from tests.chaos.draw import chaos_case

DEADLINE_S = 120.0
"""A run hangs to which nothing has come for so long."""
LOOP = "import os\nos.nice(15)\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
"""As nice as Ray's own actors; it ends with its parent."""


def main() -> int:
    """Run them, with a line each, and sum up; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--runs", type=int, help="so many; without --minutes: 200")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", type=int, nargs="*", help="these runs of the seed")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "pecan-chaos")
    parser.add_argument("--busy", type=int, default=3 * (os.cpu_count() or 1), help="loops that take CPUs meanwhile")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.apart and (command := apart()):
        sys.stdout.flush()
        os.execvp(command[0], [*command, sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--apart"])
    runs = given.runs or (None if given.minutes < float("inf") else 200)
    numbers: Iterable[int] = given.only or (count() if runs is None else range(runs))
    sys.stdout.write(f"seed {given.seed}, {given.busy} loops\n")
    if not given.apart:
        sys.stdout.write("no links, full disks or full /dev/shm: this user may not make networks and mounts\n")
    with busy(given.busy):
        outcomes = run_all(given.seed, numbers, given.folder, given.minutes * 60, DEADLINE_S, chaos_case, given.apart)
    sys.stdout.write(f"{table(outcomes)}\n\n{summary(outcomes)}\n")
    return 1 if any(one.problems for one in outcomes) else 0


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Let so many loops take CPUs meanwhile."""
    with contextlib.ExitStack() as stack:
        for _ in range(loops):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", LOOP]))
            stack.callback(loop.terminate)
        yield


def summary(outcomes: Sequence[FaultOutcome]) -> str:
    """Say what happened how often, what was delivered, and how soon workers were replaced."""
    kinds = Counter(fault.partition(" at ")[0] for one in outcomes for fault in one.done)
    told = ", ".join(f"{times} {kind}" for kind, times in sorted(kinds.items()))
    seconds = statistics.median(one.seconds for one in outcomes) if outcomes else 0.0
    lines = [f"{kinds.total()} faults in {len(outcomes)} runs: {told or 'none'}"]
    batches, lost = sum(one.batches for one in outcomes), sum(one.lost for one in outcomes)
    failed = sum(bool(one.problems) for one in outcomes)
    lines.append(f"{batches:,} batches delivered, {lost} workers lost, {failed} runs with a failure")
    lines.append(f"a run took {seconds:.1f} s in the median")
    recovered = sorted(seconds for one in outcomes for seconds in one.recovered_s)
    if recovered:
        slow = recovered[int(0.9 * (len(recovered) - 1))]
        lines.append(
            f"from the loss of a worker until another one ran: {statistics.median(recovered):.1f} s in the median, "
            f"{slow:.1f} s in nine of ten"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
