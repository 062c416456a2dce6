"""Changes the code in small ways and counts the changes that the tests notice: ``python -m tests.mutation --help``.

Each mutation is tried in a copy of the checkout, by the tests that run its line.  They end with the first that fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeAlias

from tests.mutation.sites import Mutation, drawn, mutations
from tests.mutation.tests_of_lines import TestsOfLines

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "pecan_ray/plan",
    "pecan_ray/job",
    "pecan_ray/sampling",
    "pecan_ray/sources",
    "pecan_ray/engines/python",
    "placement",
    "reorder",
    "cache",
)
"""What is changed: where a fault costs data, time or money, and tests need no cluster to see it."""
MOST_S = 600
"""Tests of a mutation take no longer; one that hangs is noticed, as a person notices it."""

Verdict: TypeAlias = Literal["noticed", "missed", "not run"]


@dataclass(frozen=True)
class Trial:
    """A mutation and what the tests say of it."""

    file: str
    mutation: Mutation
    verdict: Verdict
    tests: int
    """Tests that run the line."""


def copied(target: Path) -> Path:
    """Copy what git knows of the checkout, links as links."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place, follow_symlinks=False)
    return target


def pytest_in(tree: Path, *arguments: str, most_s: float | None = None) -> int:
    """Run pytest in a copy; return its exit status, 1 if it takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *arguments]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=most_s, check=False)
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def seen(tree: Path, tests: str, processes: int) -> TestsOfLines:
    """Run all tests once, and return which of them run which line."""
    sources = [f"--cov={tree / folder}" for folder in FOLDERS]
    spread = ["--numprocesses", str(processes), "--dist", "loadfile"]
    pytest_in(tree, tests, *spread, "--cov-context=test", "--cov-report=", *sources)
    return TestsOfLines(tree / ".coverage")


def tried(tree: Path, file: str, mutation: Mutation, tests: Sequence[str]) -> Verdict:
    """Return whether one of the tests fails when the code is changed."""
    if not tests:
        return "not run"
    path, chosen = tree / file, tree / "tests-of-mutation.txt"
    text = path.read_text()
    path.write_text(mutation.applied(text))
    chosen.write_text("\n".join(tests))
    try:
        return "missed" if pytest_in(tree, "-x", f"@{chosen}", most_s=MOST_S) == 0 else "noticed"
    finally:
        path.write_text(text)


def trials(tests: str, count: int, seed: int, processes: int, folder: Path) -> Iterator[Trial]:
    """Yield trials of mutations drawn at random."""
    tree = copied(folder / "seen")
    by_file = {
        str(path.relative_to(tree)): mutations(path.read_text())
        for name in FOLDERS
        for path in sorted((tree / name).rglob("*.py"))
    }
    lines = seen(tree, tests, processes)
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(processes):
        copies.put(copied(folder / str(number)))

    def run(file: str, mutation: Mutation) -> Trial:
        chosen = lines.of(os.path.realpath(tree / file), mutation.line)
        place = copies.get()
        try:
            return Trial(file, mutation, tried(place, file, mutation, chosen), len(chosen))
        finally:
            copies.put(place)

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(lambda one: run(*one), drawn(by_file, count, seed))


def main() -> int:
    """Print each mutation that no test notices, and the share that is noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--tests", default="tests/unit", help="file or folder")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutation", help="for copies; it is emptied")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    verdicts: Counter[str] = Counter()
    for trial in trials(given.tests, given.count, given.seed, given.processes, given.folder):
        verdicts[trial.verdict] += 1
        if trial.verdict != "noticed":
            place = f"{trial.file}:{trial.mutation.line}"
            sys.stdout.write(f"{trial.verdict} by {trial.tests} tests: {place}: {trial.mutation}\n")
            sys.stdout.flush()
    total = sum(verdicts.values())
    sys.stdout.write(f"noticed: {verdicts['noticed']} of {total} = {verdicts['noticed'] / max(total, 1):.1%}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
