"""Imports point downwards, frameworks stay out of `import pecan_ray`, and the public names are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache")
FRAMEWORKS = (*tiers.FRAMEWORKS, "IPython", "boto3", "gcsfs")


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that finds `pecan_ray` in a folder."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def lint_imports(folder: Path) -> tuple[bool, str]:
    """Check the contracts of a tree's pyproject.toml; tell whether all are kept, and what the linter said."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = run_python(code, folder)
    return done.returncode == 0, done.stdout + done.stderr


def test_imports_point_downwards() -> None:
    kept, said = lint_imports(ROOT)
    assert kept, said


UPWARDS = [
    ("cache", "import ray"),
    ("reorder", "from pecan_ray.runtime import cluster"),
    ("cache", "import pecan_ray.job.events"),
    ("pecan_ray/job", "import ray"),
    ("pecan_ray/job", "import pecan_ray.simulator"),
    ("placement", "from pecan_ray import cache"),
    ("pecan_ray/job", "import time"),
    ("cache", "from threading import Lock"),
    ("pecan_ray/sampling", "import asyncio"),
    ("pecan_ray/sources", "import pecan_ray.engines.contract"),
    ("pecan_ray/engines", "import ray"),
    ("pecan_ray/engines", "import pecan_ray.transport.ring"),
    ("pecan_ray/transport", "import ray"),
    ("pecan_ray/sources", "import pecan_ray.images"),
    ("pecan_ray/engines", "import pecan_ray.quarantine"),
]
"""Folders, and a line that may stand in none of their modules."""


def planted(folder: str, line: str) -> str:
    """Name the module of a folder that holds that line."""
    return f"{folder}/planted_{UPWARDS.index((folder, line))}.py"


@pytest.fixture(scope="module")
def told_of_planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the linter says of a tree, links as links, with a module for each of these lines."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for folder, line in UPWARDS:
        (tree / planted(folder, line)).write_text(line + "\n")
    kept, said = lint_imports(tree)
    assert not kept
    return said


@pytest.mark.parametrize(("folder", "line"), UPWARDS)
def test_an_import_that_points_upwards_is_caught(told_of_planted: str, folder: str, line: str) -> None:
    module = ".".join(Path(planted(folder, line)).with_suffix("").parts).removeprefix("pecan_ray.")
    assert f"pecan_ray.{module} -> " in told_of_planted


def test_importing_pecan_ray_imports_no_framework() -> None:
    done = run_python(f"import sys, pecan_ray; print([f for f in {FRAMEWORKS!r} if f in sys.modules])", ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
