"""Runs cases in a process that is watched: ``python -m tests.fuzz --help``."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.fuzz.catalogue import FORMATS
from tests.fuzz.judge import Case
from tests.fuzz.watched import Watched


def cases(names: list[str], seed: int, number: int | None) -> Iterator[Case]:
    for at in count(seed) if number is None else range(seed, seed + number):
        for name in names:
            yield Case(name, at)


def main() -> int:
    """Run cases for so many minutes, or so many of them, or until a signal; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--formats", nargs="+", choices=sorted(FORMATS), default=list(FORMATS))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int, help="so many of each format; without --minutes: 1,000")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--keep", type=Path, help="folder for the files that fail")
    given = parser.parse_args()
    number = given.cases if given.cases or given.minutes < float("inf") else 1000
    until = time.monotonic() + given.minutes * 60
    ran: Counter[str] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    folder = tempfile.TemporaryDirectory()
    watched = Watched(folder.name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        for case in cases(given.formats, given.seed, number):
            if time.monotonic() > until:
                break
            failure = watched.run(case)
            ran[case.format] += 1
            if failure is None:
                continue
            failed[case.format, failure.kind] += 1
            if failed[case.format, failure.kind] <= 5:
                sys.stdout.write(f"{case.format} --seed {case.seed}: {failure.kind}: {failure.text}\n")
                sys.stdout.flush()
            if given.keep is not None:
                given.keep.mkdir(parents=True, exist_ok=True)
                (given.keep / f"{case.format}-{case.seed}").write_bytes(case.data())
    watched.close()
    folder.cleanup()
    for name, files in ran.items():
        told = ", ".join(f"{times} {kind}" for (form, kind), times in failed.items() if form == name)
        sys.stdout.write(f"{name}: {files} files, {told or 'no failure'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
