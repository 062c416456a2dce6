"""Names of packages that are imported when they are used: all of them are there, and an actor imports few of them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import pecan_ray
from pecan_ray import sources


@pytest.mark.parametrize("package", [pecan_ray, sources])
def test_every_name_that_is_offered_is_there_and_told(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    assert {"PecanPipeline", "Workers", "Config", "errors", "sources"} <= set(pecan_ray.__all__)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("actor", ["controller", "worker"])
def test_what_an_actor_does_not_need_is_not_imported(actor: str) -> None:
    """A quarter of a second of each start, once."""
    program = f"import sys, pecan_ray.runtime.{actor}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert f"pecan_ray.runtime.{actor}" in modules
    assert not modules & {"pecan_ray.pipeline", "pecan_ray.batches", "pecan_ray.sources.csv_table", "pyarrow.compute"}
