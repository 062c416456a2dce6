"""Which tests run a line, and how long they take."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from coverage import CoverageData

from tests.mutation.forks import Chosen, ended, forked


class Seen:
    """What was seen when all tests were run once."""

    def __init__(self, folder: Path) -> None:
        """`folder`: has coverage of some tests by context, and seconds of those that may be asked."""
        self._data, self._seconds = CoverageData(no_disk=True), dict[str, float]()
        for path in folder.glob("coverage-*"):
            one = CoverageData(str(path))
            one.read()
            self._data.update(one)
        for path in folder.glob("seconds-*"):
            self._seconds |= json.loads(path.read_text())

    def tests(self, file: str, line: int) -> list[str]:
        """Return the tests that run a line; of one that an import runs, those that run any line of the file."""
        by_line = self._data.contexts_by_lineno(file)
        contexts = set(filter(None, by_line.get(line, ())))
        if line in by_line and not contexts:
            contexts = {context for some in by_line.values() for context in some}
        return sorted({context.rpartition("|")[0] for context in contexts} & self._seconds.keys())

    def files(self, tests: Iterable[str]) -> list[str]:
        """Return the files of tests, that of the quickest one first."""
        quick_first = sorted(tests, key=self._seconds.__getitem__)
        return list(dict.fromkeys(test.partition("::")[0] for test in quick_first))


def watched(files: Sequence[str], code: Iterable[Path], folder: Path, processes: int, most_s: float) -> Seen:
    """Run all tests of some files; what fails, or takes more CPU time than `most_s`, is not asked later on."""
    coverage = ["--cov-context=test", "--cov-report=", *(f"--cov={path}" for path in code)]

    def watch(share: int) -> None:
        os.environ["COVERAGE_FILE"] = str(folder / f"coverage-{share}")
        chosen = Chosen()
        chosen.run(folder, files[share::processes], *coverage)
        asked = {test: s for test, s in chosen.seconds.items() if s <= most_s}
        (folder / f"seconds-{share}").write_text(json.dumps(asked))

    for _ in [forked(partial(watch, share)) for share in range(processes)]:
        ended()
    return Seen(folder)
