"""Imports point downwards, floors know what they may, and frameworks stay out of `import pecan_ray`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import pecan_ray
from pecan_ray import cache, placement, sources
from tests import floors, tiers
from tests.programs import ROOT, run_python

FOLDERS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache")
FRAMEWORKS = (*tiers.FRAMEWORKS, "IPython", "boto3", "gcsfs")


def lint_imports(folder: Path) -> tuple[bool, str]:
    """Check the contracts of a tree's pyproject.toml; tell whether all are kept, and what the linter said."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = run_python("-c", code, finding=folder)
    return done.returncode == 0, done.stdout + done.stderr


def test_imports_point_downwards() -> None:
    kept, said = lint_imports(ROOT)
    assert kept, said


PLANTED: dict[str, tuple[str, str]] = {
    "a decision starts a thread": ("autoscaler", "import threading"),
    "a decision asks what day it is": ("reorder", "def f(day: type) -> object:\n    return day.today()"),
    "a decision opens a file": ("reorder", "def f() -> object:\n    return open('facts')"),
    "a decision reads a path that it was given": ("placement", "def f(path):\n    return path.read_text()"),
    "a decision reads an array from a file": ("cache", "import numpy as np\nTABLE = np.fromfile('table')"),
    "a decision draws from the state of all": ("pecan_ray/sampling", "import numpy as np\nX = np.random.random()"),
    "a decision draws by a function of NumPy": ("placement", "from numpy.random import shuffle"),
    "a decision draws by NumPy's module": ("reorder", "import numpy.random as chance"),
    "the job opens a socket": ("pecan_ray/job", "def f():\n    import socket"),
    "sampling runs a loop of events": ("pecan_ray/sampling", "import asyncio.events"),
    "the job prints": ("pecan_ray/job", "print('here')"),
    "the job imports Ray by text": ("pecan_ray/job", "ray = __import__('ray')"),
    "a decision imports Ray": ("cache", "import ray"),
    "the job imports Ray in a function": ("pecan_ray/job", "def f():\n    import ray.util"),
    "the plan imports types of Ray": (
        "pecan_ray/plan",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray",
    ),
    "an engine imports Ray": ("pecan_ray/engines", "import ray"),
    "batches travel by Ray": ("pecan_ray/transport", "from ray import ObjectRef"),
    "a decision stands on the cluster": ("reorder", "from pecan_ray.runtime import cluster"),
    "a decision knows another one": ("placement", "from pecan_ray import cache"),
    "a cache's policy opens a store": ("cache", "from pecan_ray.caching.store import EntryStore"),
    "the job stands on the simulation": ("pecan_ray/job", "import pecan_ray.simulator"),
    "an engine stands on the transport": ("pecan_ray/engines", "def f():\n    import pecan_ray.transport.ring"),
    "a source stands on a root module": ("pecan_ray/sources", "import pecan_ray.images"),
    "what is known of libraries stands on the pipeline": ("pecan_ray/known", "import pecan_ray.pipeline"),
    "one engine knows the other": ("pecan_ray/engines/python", "import pecan_ray.engines.tensorflow.engine"),
    "pages of the dashboard ask the cluster": ("pecan_ray/observe/dashboard", "import ray"),
    "a module has no floor": ("pecan_ray", "import math"),
    "code imports the facade": ("pecan_ray/runtime", "def f():\n    from pecan_ray import PecanPipeline"),
    "code imports the facade by its name": ("pecan_ray/engines", "import pecan_ray as pecan"),
    "code imports benchmarks": ("pecan_ray/simulator", "def f():\n    import benchmarks.peers"),
    "a sub-package goes by its folder's name": ("pecan_ray/runtime", "from placement import Prices"),
    "TensorFlow is imported with its user": ("pecan_ray/sources", "import tensorflow as tf"),
    "torch is imported with its user": ("pecan_ray/runtime", "try:\n    import torch\nexcept ImportError:\n    pass"),
    "a decision looks at the clock": ("placement", "from time import monotonic"),
    "the plan knows the time of day": ("pecan_ray/plan", "import datetime"),
    "the job starts a process": ("pecan_ray/job", "from subprocess import run"),
    "an engine imports Ray by text": (
        "pecan_ray/engines",
        "from importlib import import_module\nR = import_module('ray')",
    ),
    "a cache's policy stands on the job": ("cache", "import pecan_ray.job.events"),
    "the cluster stands on the simulation": ("pecan_ray/runtime", "from pecan_ray.simulator import simulate"),
    "a source stands on an engine": ("pecan_ray/sources", "import pecan_ray.engines.contract"),
    "an engine stands on a root module": ("pecan_ray/engines", "import pecan_ray.quarantine"),
    "code imports tests": ("pecan_ray/observe", "from tests import tiers"),
}
"""What no module of a folder may hold."""
CIRCLES = {
    "placement": "from pecan_ray.placement.{next} import X",
    "reorder": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pecan_ray.reorder.{next} import X",
    "pecan_ray/engines": "def f():\n    import pecan_ray.engines.{next}",
    "pecan_ray/observe/dashboard": "from pecan_ray.observe.dashboard import {next}",
}
"""Folders, and how modules in each import one another in a circle: for types, when they are called, ..."""


def planted(what: str) -> Path:
    """Name the module that holds what may not be."""
    return Path(PLANTED[what][0], f"planted_{list(PLANTED).index(what)}.py")


def module_of(path: Path) -> str:
    """Name a module of a folder at the root as pecan_ray knows it."""
    return "pecan_ray." + ".".join(path.with_suffix("").parts).removeprefix("pecan_ray.")


@pytest.fixture
def said_of_planted(tmp_path: Path) -> str:
    """What the checks say of a tree, links as links, into which all of this is planted."""
    tree = tmp_path
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for what, (_, text) in PLANTED.items():
        (tree / planted(what)).write_text(text + "\n")
    for folder, text in CIRCLES.items():
        ring = ["ring_a", "ring_b", "ring_c"]
        for name, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            (tree / folder / f"{name}.py").write_text(text.format(next=following) + "\n")
    kept, said = lint_imports(tree)
    assert not kept
    return said + "\n".join(floors.violations(tree))


def test_all_that_a_floor_forbids_is_caught_and_so_are_circles(said_of_planted: str) -> None:
    for what in PLANTED:
        path = planted(what)
        found = (f"{module_of(path)} -> ", f"{path}:", f"- {module_of(path)}\n")
        assert any(text in said_of_planted for text in found), what
    for package in (module_of(Path(folder)) for folder in CIRCLES):
        _, _, after = said_of_planted.partition(f"No cycles are allowed in {package}.\n")
        assert ".ring_" in after.partition("No cycles")[0], package


def test_the_code_keeps_what_floors_forbid() -> None:
    assert floors.violations() == []


def test_no_exception_outlives_its_reason() -> None:
    for name, modules in floors.EXCEPTIONS.items():
        source = (ROOT / name).read_text()
        assert all(re.search(rf"^(import|from) {module}\b", source, re.MULTILINE) for module in modules), name
    assert all("import_module" in (ROOT / name).read_text() for name in floors.BY_TEXT)


def test_importing_pecan_ray_imports_no_framework() -> None:
    done = run_python("-c", f"import sys, pecan_ray; print([f for f in {FRAMEWORKS!r} if f in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("package", [pecan_ray, sources, cache, placement])
def test_every_name_that_is_imported_when_it_is_used_is_there_and_told(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    assert {"PecanPipeline", "Workers", "Config", "errors", "sources"} <= set(pecan_ray.__all__)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("actor", ["controller", "worker"])
def test_what_an_actor_does_not_need_is_not_imported(actor: str) -> None:
    """A quarter of a second of each start, once."""
    modules = set(run_python("-c", f"import sys, pecan_ray.runtime.{actor}; print(*sys.modules)").stdout.split())
    assert f"pecan_ray.runtime.{actor}" in modules
    assert not modules & {"pecan_ray.pipeline", "pecan_ray.batches", "pecan_ray.sources.csv_table", "pyarrow.compute"}
