"""Changes the code in small ways and counts the changes that the tests notice: ``python -m tests.mutation --help``.

Each change is tried in a fork, by the tests that run its line: quick files first, up to the first test that fails.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import math
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.mutation.forks import Chosen, Seen, change, ended, forked, is_watched, watch
from tests.mutation.sites import Mutation, drawn, mutations

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ("pecan_ray/plan", "pecan_ray/job", "pecan_ray/sampling", "placement", "reorder", "cache")
FOLDERS = (*DECISIONS, "pecan_ray/sources", "pecan_ray/engines/python")
"""What is changed: where a fault costs data, time or money, and tests need no cluster to see it."""
TESTS = ("tests/unit", "tests/parity")
LIBRARIES = ("boto3", "moto.server", "pyarrow.dataset", "pyarrow.parquet", "ray", "tensorflow", "torch")
"""What many tests need, so that no fork has to import it."""


MISSED, HUNG, NOTICED = range(3)
"""Statuses of a fork; a greater one tells which of the folders of tests noticed.  Whoever hangs ends by 1."""
NOTHING_FAILED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
NAMED = re.compile(r"_?[A-Z][A-Z0-9_]*\b[^=(]* = ")
"""A constant with a name: of a limit or a time somewhat larger little depends.  It counts like any other change."""


@dataclass(frozen=True)
class Trial:
    """A change to a file, and what is asked to notice it: tests of each folder, their files, and when one hangs."""

    path: Path
    mutation: Mutation
    tests: Sequence[str]
    files: Sequence[Sequence[str]]
    limit_s: float

    def __str__(self) -> str:
        return f"by {len(self.tests)} tests: {self.path.relative_to(ROOT)}:{self.mutation.line}: {self.mutation}"

    @property
    def of_constant(self) -> bool:
        """Whether a constant with a name is changed."""
        return NAMED.match(self.path.read_text().splitlines()[self.mutation.line - 1]) is not None

    def run(self, folder: Path) -> int:
        """Change the code of this process and run tests; return what came of it."""
        change(self.path, self.mutation.applied(self.path.read_text()))
        ends = ("-x", "--timeout-method=thread", f"--timeout={self.limit_s}")
        for number, files in enumerate(self.files):
            for now in (files[:3], files[3:15], files[15:]):  # files take time to be imported, and few notice most
                if now and Chosen(self.tests).run(folder, now, *ends) not in NOTHING_FAILED:
                    return NOTICED + number
        return MISSED


def watched(given: argparse.Namespace, folder: Path) -> Seen:
    """Run all tests once, folder by folder, but for those that were run before."""
    places: dict[str, list[str]] = {}
    for file in sorted(file for name in given.tests for file in Path(name).rglob("test_*.py")):
        places.setdefault(str(file.parent), []).append(str(file))
    code = [ROOT / name for name in given.folders]
    running = 0
    for place, files in places.items():
        if is_watched(folder, place):
            continue
        if running == given.processes:
            ended()
            running -= 1
        forked(partial(watch, files, code, folder, place, given.most_s))
        running += 1
    for _ in range(running):
        ended()
    return Seen(folder, places)


def trials(given: argparse.Namespace, folder: Path) -> Iterator[Trial]:
    """Yield changes drawn at random, when all tests have been run once, here or before."""
    code = [ROOT / name for name in given.folders]
    by_file = {str(path): mutations(path.read_text()) for one in code for path in sorted(one.rglob("*.py"))}
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    seen = watched(given, folder)
    for file, mutation in drawn(by_file, given.skip + given.count, given.seed)[given.skip :]:
        tests = seen.tests(file, mutation.statement, given.change_s)
        asked = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        by_folder = [[one for one in asked if Path(one).is_relative_to(name)] for name in given.tests]
        yield Trial(Path(file), mutation, tests, by_folder, seen.limit_s(tests))


def verdicts(given: argparse.Namespace, folder: Path) -> Iterator[tuple[Trial, int]]:
    """Yield changes, and what came of each."""
    running: dict[int, Trial] = {}

    def settled() -> tuple[Trial, int]:
        child, status = ended()
        return running.pop(child), os.waitstatus_to_exitcode(status)

    for trial in trials(given, folder):
        if len(running) == given.processes:
            yield settled()
        running[forked(partial(trial.run, folder))] = trial
    while running:
        yield settled()


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """Return between which shares that of all changes lies in 95 of 100 draws (Wilson's score interval)."""
    z = 1.96  # standard deviations of a normal distribution that hold 95 %
    count = max(1, tried)
    share, spread = noticed / count, z * math.sqrt(noticed * (count - noticed) / count + z * z / 4) / count
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    return (middle - spread) / scale, (middle + spread) / scale


def check_tree(folder: Path, given: argparse.Namespace) -> None:
    """Refuse a folder that keeps which tests run which lines of other files: none would seem to run what is changed."""
    files = [path for name in (*given.folders, *given.tests) for path in sorted((ROOT / name).rglob("*.py"))]
    contents = hashlib.sha256(b"\0".join(str(path).encode() + b"\0" + path.read_bytes() for path in files))
    tree, kept = f"{contents.hexdigest()} in {ROOT}", folder / "tree.txt"
    if kept.exists() and kept.read_text() != tree:
        raise SystemExit(f"{folder} is of {kept.read_text()}, and this is {tree}: give another --seen.")
    kept.write_text(tree)


def main() -> None:
    """Print each mutation that no test notices, and the share that is noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="what is changed")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders of tests, which are asked in this order")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most-s", type=float, default=5.0, help="CPU time; a test that takes more is not asked")
    parser.add_argument("--change-s", type=float, default=60.0, help="CPU time of all tests that a change is tried by")
    parser.add_argument("--skip", type=int, default=0, help="of the changes drawn, to go on after an interruption")
    parser.add_argument("--seen", type=Path, help="keeps which tests run which lines, for other seeds and these files")
    given = parser.parse_args()
    found: Counter[tuple[bool, str]] = Counter()
    names = ["missed", "hung", *given.tests, "run by none"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.seen or Path(temporary)).resolve()
        folder.mkdir(exist_ok=True)
        check_tree(folder, given)
        for trial, status in verdicts(given, folder):
            came = names[status if 0 <= status < len(names) else HUNG] if trial.tests else names[-1]
            found[trial.of_constant, came] += 1
            sys.stdout.write("" if status != MISSED else f"missed {trial}\n")
            sys.stdout.flush()
    for of_constant, title in ((False, "logic"), (True, "named constants")):
        sys.stdout.write(f"{title}: " + ", ".join(f"{name} {found[of_constant, name]}" for name in names) + "\n")
    noticed = sum(count for (_, came), count in found.items() if came in names[HUNG:-1])
    low, high = interval(noticed, found.total())
    share = noticed / max(found.total(), 1)
    sys.stdout.write(f"noticed: {noticed} of {found.total()} = {share:.1%} (of all changes {low:.0%} to {high:.0%})\n")


if __name__ == "__main__":
    main()
