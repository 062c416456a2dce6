"""What tests of caches find: nothing counted yet, and a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pecan_ray.options import Cache
from tests.unit.engines.cache_rig import CALLS, READS


@pytest.fixture(autouse=True)
def counted() -> None:
    READS.clear()
    CALLS.clear()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 64 << 20)
