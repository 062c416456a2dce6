"""pytest in forks of this process, which has imported libraries and nothing of ours; which tests run a line."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TypeAlias

import pytest
from coverage import CoverageData
from hypothesis import Phase, settings


def forked(work: Callable[[], int | None]) -> int:
    """Do something in a fork, without a word; return its process id, by which its status can be awaited."""
    if child := os.fork():
        return child
    status = 1
    try:
        os.setsid()
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        status = work() or 0
    finally:
        os._exit(status)


def ended() -> tuple[int, int]:
    """Wait for a fork; return its process id and its status.  What it has started ends with it."""
    child, status = os.wait()
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return child, status


def change(path: Path, text: str) -> None:
    """Give a module that is yet to be imported another text."""
    usual = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        changed = os.path.realpath(loader.path) == str(path)
        return compile(text, loader.path, "exec") if changed else usual(loader, name)

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010 - mypy takes no assignment to a method


Seconds: TypeAlias = "tuple[float, float]"
"""Of the CPU, and by the clock."""


class Chosen:
    """Runs these tests alone, or all, and looks for no smaller example where a property fails."""

    def __init__(self, tests: Collection[str] | None = None) -> None:
        self._tests = tests
        self.seconds: dict[str, Seconds] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        settings.register_profile("mutation", settings(), phases=(Phase.explicit, Phase.generate), derandomize=True)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._tests is None or item.nodeid in self._tests]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began, failed = (time.process_time(), time.monotonic()), item.session.testsfailed
        yield
        if item.session.testsfailed == failed:
            self.seconds[item.nodeid] = (time.process_time() - began[0], time.monotonic() - began[1])

    def run(self, folder: Path, files: Sequence[str], *arguments: str) -> int:
        """Run the tests of some files here and now; return pytest's status."""
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        usual = ["-m", "not slow", "-p", "no:cacheprovider", f"--basetemp={folder / str(os.getpid())}"]
        return int(pytest.main([*usual, *arguments, *files], plugins=[self]))


class Seen:
    """What was seen when all tests were run once."""

    def __init__(self, folder: Path) -> None:
        """`folder`: has coverage of some tests by context, and seconds of those that may be asked."""
        self._data, self._seconds = CoverageData(no_disk=True), dict[str, Seconds]()
        for path in folder.glob("coverage-*"):
            one = CoverageData(str(path))
            one.read()
            self._data.update(one)
        for path in folder.glob("seconds-*"):
            self._seconds |= json.loads(path.read_text())

    def tests(self, file: str, line: int) -> list[str]:
        """Return the tests that run a line; of one that an import runs, those that run any line of the file.

        What is run before a test can be for others of its file too, so they are asked as well.
        """
        by_line = self._data.contexts_by_lineno(file)
        contexts = set(filter(None, by_line.get(line, ())))
        if line in by_line and not contexts:
            contexts = {context for some in by_line.values() for context in some}
        before = {context.partition("::")[0] for context in contexts if context.endswith("|setup")}
        tests = {context.rpartition("|")[0] for context in contexts}
        return sorted(test for test in self._seconds if test in tests or test.partition("::")[0] in before)

    def limit_s(self, tests: Iterable[str]) -> float:
        """Return after how long one of some tests hangs: some time for a busy machine, and three times the longest."""
        return 20 + 3 * max((self._seconds[test][1] for test in tests), default=0.0)

    def files(self, tests: Iterable[str]) -> list[str]:
        """Return the files of tests, that of the quickest one first."""
        quick_first = sorted(tests, key=self._seconds.__getitem__)  # those of the least CPU time
        return list(dict.fromkeys(test.partition("::")[0] for test in quick_first))


def watched(files: Sequence[str], code: Iterable[Path], folder: Path, processes: int, most_s: float) -> Seen:
    """Run all tests of some files; what fails, or takes more CPU time than `most_s`, is not asked later on."""
    coverage = ["--cov-context=test", "--cov-report=", *(f"--cov={path}" for path in code)]

    def watch(share: int) -> None:
        os.environ["COVERAGE_FILE"] = str(folder / f"coverage-{share}")
        chosen = Chosen()
        chosen.run(folder, files[share::processes], *coverage)
        asked = {test: seconds for test, seconds in chosen.seconds.items() if seconds[0] <= most_s}
        (folder / f"seconds-{share}").write_text(json.dumps(asked))

    for _ in [forked(partial(watch, share)) for share in range(processes)]:
        ended()
    return Seen(folder)
