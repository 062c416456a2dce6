"""Caps on the length of functions and files: it is the longest ones that make code hard to read."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache", "examples", "benchmarks")
FUNCTION_CAP, FUNCTION_P95_CAP = 80, 40
FILE_CAP, FILE_P95_CAP = 700, 500

Sizes = dict[str, int]


def python_files() -> Iterator[Path]:
    """Every Python file once: the links in pecan_ray are not followed."""
    folders = [ROOT / name for name in FOLDERS]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            elif entry.suffix == ".py":
                yield entry


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from `def` on, its docstring excluded."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def functions_of(source: str) -> Sizes:
    """Lines of every function, nested ones and methods included."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {f"{function.name}:{function.lineno}": function_lines(function) for function in found}


def percentile_95(sizes: Sizes) -> int:
    """The 95th percentile by nearest rank."""
    return sorted(sizes.values())[math.ceil(0.95 * len(sizes)) - 1]


@pytest.fixture(scope="module")
def functions() -> Sizes:
    """Lines of every function of the code."""
    return {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in python_files()
        for name, lines in functions_of(path.read_text()).items()
    }


@pytest.fixture(scope="module")
def files() -> Sizes:
    """Lines of every file of the code."""
    return {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}


def test_every_folder_is_measured_once(files: Sizes) -> None:
    assert {name.split("/")[0] for name in files} == set(FOLDERS)
    assert not [name for name in files if name.startswith(("pecan_ray/placement/", "pecan_ray/cache/"))]


def test_no_function_is_too_long(functions: Sizes) -> None:
    assert {name: lines for name, lines in functions.items() if lines > FUNCTION_CAP} == {}


def test_few_functions_are_long(functions: Sizes) -> None:
    assert percentile_95(functions) <= FUNCTION_P95_CAP


def test_no_file_is_too_long(files: Sizes) -> None:
    assert {name: lines for name, lines in files.items() if lines > FILE_CAP} == {}


def test_few_files_are_long(files: Sizes) -> None:
    assert percentile_95(files) <= FILE_P95_CAP


def test_a_docstring_does_not_count() -> None:
    bare = "def f():\n    return 1\n"
    spoken = 'def f():\n    """Return\n\n    one.\n    """\n    return 1\n'
    assert functions_of(bare) == functions_of(spoken) == {"f:1": 2}


def test_the_percentile_is_that_of_the_nearest_rank() -> None:
    assert percentile_95({str(size): size for size in range(1, 101)}) == 95
    assert percentile_95({"only": 7}) == 7
