"""What every test finds: a cache folder of its own, and actors that are no slower than their trainer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Ray's own choice is 15: on a machine with something else to do actors starve while the tests that wait do not.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, as long as the test runs."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
