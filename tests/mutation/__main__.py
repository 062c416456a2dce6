"""Changes the code in small ways and counts the changes that the tests notice: ``python -m tests.mutation --help``.

Each change is tried in a fork, by the tests that run its line: quick files first, up to the first test that fails.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.mutation.forks import Chosen, change, ended, forked, watched
from tests.mutation.sites import Mutation, drawn, mutations

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ("pecan_ray/plan", "pecan_ray/job", "pecan_ray/sampling", "placement", "reorder", "cache")
FOLDERS = (*DECISIONS, "pecan_ray/sources", "pecan_ray/engines/python")
"""What is changed: where a fault costs data, time or money, and tests need no cluster to see it."""
LIBRARIES = ("boto3", "moto.server", "pyarrow.dataset", "pyarrow.parquet", "ray", "tensorflow", "torch")
"""What many tests need, so that no fork has to import it."""


def tried(path: Path, mutation: Mutation, tests: Sequence[str], files: Sequence[str], folder: Path) -> int:
    """Change the code of this process and run tests; return 0 if none fails."""
    change(path, mutation.applied(path.read_text()))
    for now in (files[:3], files[3:15], files[15:]):  # files take time to be imported, and few notice most changes
        if now and Chosen(tests).run(folder, now, "-x", "--timeout-method=thread"):  # which ends what hangs
            return 1
    return 0


def verdicts(given: argparse.Namespace, folder: Path) -> Iterator[tuple[bool, str]]:
    """Yield whether mutations drawn at random are noticed, and what they are."""
    code = [ROOT / name for name in given.folders]
    by_file = {str(path): mutations(path.read_text()) for one in code for path in sorted(one.rglob("*.py"))}
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    files = sorted(map(str, Path(given.tests).rglob("test_*.py")))
    seen = watched(files, code, folder, given.processes, given.most_s)
    running: dict[int, str] = {}

    def settled() -> tuple[bool, str]:
        child, status = ended()
        return status != 0, running.pop(child)

    for file, mutation in drawn(by_file, given.count, given.seed):
        tests = seen.tests(file, mutation.line)
        text = f"by {len(tests)} tests: {Path(file).relative_to(ROOT)}:{mutation.line}: {mutation}"
        if len(running) == given.processes:
            yield settled()
        running[forked(partial(tried, Path(file), mutation, tests, seen.files(tests), folder))] = text
    while running:
        yield settled()


def main() -> None:
    """Print each mutation that no test notices, and the share that is noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="what is changed")
    parser.add_argument("--tests", default="tests/unit", help="a folder of tests")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most-s", type=float, default=5.0, help="CPU time; a test that takes more is not asked")
    given = parser.parse_args()
    found: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        for noticed, text in verdicts(given, Path(folder)):
            found.append(noticed)
            sys.stdout.write("" if noticed else f"missed {text}\n")
            sys.stdout.flush()
    sys.stdout.write(f"noticed: {sum(found)} of {len(found)} = {sum(found) / max(len(found), 1):.1%}\n")


if __name__ == "__main__":
    main()
