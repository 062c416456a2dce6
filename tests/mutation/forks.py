"""pytest in forks of this process, which has imported libraries and nothing of ours."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
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


class Chosen:
    """Runs these tests alone, or all, and looks for no smaller example where a property fails."""

    def __init__(self, tests: Collection[str] | None = None) -> None:
        self._tests = tests
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        settings.register_profile("mutation", settings(), phases=(Phase.explicit, Phase.generate), derandomize=True)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._tests is None or item.nodeid in self._tests]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began, failed = time.process_time(), item.session.testsfailed
        yield
        is_well = item.session.testsfailed == failed
        self.seconds[item.nodeid] = time.process_time() - began if is_well else float("inf")

    def run(self, folder: Path, files: Sequence[str], *arguments: str) -> int:
        """Run the tests of some files here and now; return pytest's status."""
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        usual = ["-m", "not slow", "-p", "no:cacheprovider", f"--basetemp={folder / str(os.getpid())}"]
        return int(pytest.main([*usual, *arguments, *files], plugins=[self]))
