"""The tests that an environment with few libraries can run: `python -m tests.lower_bounds` runs them.

`make test-lower` does so at the lower bounds of pyproject.toml, and runs the first program of the README before.  A
file is run where all is there that it imports at its top, itself or by other files of ours; a test that asks for more
is skipped.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from pecan_ray.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "unit"
"""The tests that need no cluster."""
OURS = ("tests", "benchmarks", "examples")
FRAMEWORKS = ("tensorflow", "torch")
FIRST_PROGRAM = re.compile(r"```python run\n(.*?)```", re.DOTALL)


def runnable() -> list[Path]:
    """Return the files of tests of which this environment has all that they import at their tops."""
    return [path for path in sorted(FOLDER.rglob("test_*.py")) if not missing(path)]


@functools.cache
def missing(path: Path) -> frozenset[str]:
    """Return the packages that a file of ours imports at its top, itself or by others, and that are not here."""
    found = set[str]()
    for name in imported(path):
        package = name.partition(".")[0]
        file = ROOT / Path(*name.split(".")).with_suffix(".py")
        if package in OURS:
            found |= missing(file) if file.exists() else set()
        elif importlib.util.find_spec(package) is None:
            found.add(package)
    return frozenset(found)


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports at its top; of a package also what might be a module of it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that asks for a library that is not here."""
    try:
        return (yield)
    except (ModuleNotFoundError, MissingExtraError) as error:
        pytest.skip(f"{type(error).__name__}: {error}")


def main() -> int:
    """Run the first program, and then the tests; return the exit status."""
    present = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
    if present:
        raise SystemExit(f"{sys.prefix} has {' and '.join(present)}: use an environment without them")
    first = FIRST_PROGRAM.search((ROOT / "README.md").read_text())
    assert first is not None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "first.py")
        program.write_text(first[1])
        subprocess.run([sys.executable, program], cwd=ROOT, check=True)
    files = [str(path.relative_to(ROOT)) for path in runnable()]
    options = ["-q", "-m", "not slow", "--numprocesses", "2", "--dist", "loadfile", "-p", "tests.lower_bounds"]
    return subprocess.run([sys.executable, "-m", "pytest", *options, *files], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
