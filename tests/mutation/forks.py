"""pytest in forks of this process, which has imported libraries and nothing of ours; which tests run a line."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
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

    def __init__(self, folder: Path, places: Iterable[str]) -> None:
        """`folder`: has coverage of some tests by context, and seconds of those that may be asked, for each place."""
        self._data, self._seconds = CoverageData(no_disk=True), dict[str, Seconds]()
        for place in places:
            coverage, seconds = _kept(folder, place)
            one = CoverageData(str(coverage))
            one.read()
            self._data.update(one)
            self._seconds |= json.loads(seconds.read_text())

    def tests(self, file: str, line: int, most_s: float) -> list[str]:
        """Return the tests that run a line, those first that may notice, until they take so much CPU time.

        For a line that an import runs all tests may notice, those first that run another line of the file.  What is run
        before a test can be for others of its file too, so they are asked as well.
        """
        by_line = self._data.contexts_by_lineno(file)
        contexts = set(by_line.get(line, ()))
        imported = "" in contexts  # a test can also be the first to import the module elsewhere
        if imported:
            contexts = {context for some in by_line.values() for context in some}
        before = {context.partition("::")[0] for context in contexts if context.endswith("|setup")}
        tests = {context.rpartition("|")[0] for context in contexts}
        runs = {test for test in self._seconds if test in tests or test.partition("::")[0] in before}
        asked = list(self._seconds if imported else runs)
        asked.sort(key=lambda test: (test not in runs, not _is_about(test, file), self._seconds[test]))
        spent_s = itertools.accumulate(self._seconds[test][0] for test in asked)
        return [test for test, used_s in zip(asked, spent_s, strict=True) if used_s <= most_s]

    def limit_s(self, tests: Iterable[str]) -> float:
        """Return after how long one of some tests hangs: some time for a busy machine, and three times the longest."""
        return 20 + 3 * max((self._seconds[test][1] for test in tests), default=0.0)


def _is_about(test: str, file: str) -> bool:
    """Return whether the folder of a test is named for that of a file of the code."""
    return Path(test.partition("::")[0]).parent.name in Path(file).parts


def _kept(folder: Path, place: str) -> tuple[Path, Path]:
    # Without dots: before the tests of a place run, coverage erases all files whose name begins with its own and a dot.
    name = place.replace("/", "-")
    return folder / f"coverage-{name}", folder / f"seconds-{name}"


def watch(files: Sequence[str], code: Iterable[Path], folder: Path, place: str, most_s: float) -> None:
    """Run the tests of a place; what fails, or takes more CPU time than `most_s`, is not asked later on."""
    coverage, seconds = _kept(folder, place)
    os.environ["COVERAGE_FILE"] = str(coverage)
    chosen = Chosen()
    chosen.run(folder, files, "--cov-context=test", "--cov-report=", *(f"--cov={path}" for path in code))
    asked = {test: used for test, used in chosen.seconds.items() if used[0] <= most_s}
    seconds.write_text(json.dumps(asked))


def is_watched(folder: Path, place: str) -> bool:
    """Return whether the tests of a place were run to their end."""
    return _kept(folder, place)[1].exists()
