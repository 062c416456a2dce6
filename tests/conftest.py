"""What every test finds: a cache folder of its own, and actors that are no slower than their trainer."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.long_form import LONG, SHORT, SHORT_EXAMPLES
from tests.tiers import is_quick

# Ray's own choice is 15: on a machine with something else to do actors starve while the tests that wait do not.
os.environ.setdefault("RAY_worker_niceness", "0")

# How fast examples are drawn and run is the machine's affair.  `--hypothesis-profile long` takes the long form.
USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
settings.register_profile(SHORT, USUAL, max_examples=SHORT_EXAMPLES)
settings.register_profile(LONG, USUAL)
settings.load_profile(SHORT)

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make check`."""
    parser.addoption("--quick", action="store_true", help="only files that need no framework, server or process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that `make check` does not run, before anything is imported."""
    is_tests = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if config.getoption("quick") and is_tests and not is_quick(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among tests and the frameworks that they import: it takes a third of a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each test has its cache folder: pytest looks through all of a folder to number another one in it."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def cache_folder(cache_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, as long as the test runs."""
    folder = cache_folders / str(next(_numbers))
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
