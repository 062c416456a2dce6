"""The tests that an environment with few libraries can run: `python -m tests.lower_bounds` runs them.

`make test-lower` does so at the lower bounds of pyproject.toml, and runs the first program of the README before.  A
file is run where all is there that it imports at its top; a test that asks for more is skipped.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from pecan_ray.errors import MissingExtraError

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("tensorflow", "torch")
FIRST_PROGRAM = re.compile(r"```python run\n(.*?)```", re.DOTALL)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a library that is not here."""
    report = yield
    if report.failed and "ModuleNotFoundError" in report.longreprtext:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "Skipped: it imports a library that is not here")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that asks for a library that is not here."""
    try:
        return (yield)
    except (ModuleNotFoundError, MissingExtraError) as error:
        pytest.skip(f"{type(error).__name__}: {error}")


def main() -> int:
    """Run the first program, and then the tests that need no cluster; return the exit status."""
    present = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
    if present:
        raise SystemExit(f"{sys.prefix} has {' and '.join(present)}: use an environment without them")
    first = FIRST_PROGRAM.search((ROOT / "README.md").read_text())
    assert first is not None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "first.py")
        program.write_text(first[1])
        subprocess.run([sys.executable, program], cwd=ROOT, check=True)
    options = ["-q", "-m", "not slow", "--numprocesses", "2", "--dist", "loadfile", "-p", "tests.lower_bounds"]
    return subprocess.run([sys.executable, "-m", "pytest", *options, "tests/unit"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
