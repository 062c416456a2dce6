"""Caps on the length of functions, files and classes: it is the longest ones that make code hard to read."""

from __future__ import annotations

import ast
import math

import pytest

from tests.unit.test_names import ROOT, python_files, statements

FOLDERS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache", "examples", "benchmarks")
CAPPED_FILES = (*FOLDERS, "tests")
FUNCTION_CAP, FUNCTION_P95_CAP = 80, 40
FILE_CAP = 500
CLASS_CAP, CLASS_FOLDERS = 250, ("pecan_ray/job/", "pecan_ray/runtime/")
LONG_FILES: dict[str, int] = {}
"""Files that are longer and wait to be cut: they may not grow."""
LONG_CLASSES: dict[str, int] = {}
"""Classes that are longer and wait to be cut: they may not grow."""

Sizes = dict[str, int]


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from `def` on, its docstring excluded."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def functions_of(source: str) -> Sizes:
    """Lines of every function, nested ones and methods included."""
    found = [
        node for node in statements(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return {f"{function.name}:{function.lineno}": function_lines(function) for function in found}


def classes_of(source: str) -> Sizes:
    """Lines of every class."""
    found = [node for node in statements(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return {one.name: (one.end_lineno or one.lineno) - one.lineno + 1 for one in found}


def too_long(sizes: Sizes, cap: int, waiting: Sizes) -> Sizes:
    """What exceeds a cap, or what it had when it was allowed to wait."""
    return {name: lines for name, lines in sizes.items() if lines > max(cap, waiting.get(name, 0))}


def percentile_95(sizes: Sizes) -> int:
    """The 95th percentile by nearest rank."""
    return sorted(sizes.values())[math.ceil(0.95 * len(sizes)) - 1]


@pytest.fixture(scope="module")
def functions() -> Sizes:
    """Lines of every function of the code."""
    return {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in python_files(FOLDERS)
        for name, lines in functions_of(path.read_text()).items()
    }


@pytest.fixture(scope="module")
def files() -> Sizes:
    """Lines of every file, tests included."""
    return {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files(CAPPED_FILES)}


@pytest.fixture(scope="module")
def classes() -> Sizes:
    """Lines of every class that has a cap."""
    return {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in python_files(FOLDERS)
        if str(path.relative_to(ROOT)).startswith(CLASS_FOLDERS)
        for name, lines in classes_of(path.read_text()).items()
    }


def test_every_folder_is_measured_once(files: Sizes) -> None:
    assert {name.split("/")[0] for name in files} == set(CAPPED_FILES)
    assert not [name for name in files if name.startswith(("pecan_ray/placement/", "pecan_ray/cache/"))]


def test_no_function_is_too_long(functions: Sizes) -> None:
    assert {name: lines for name, lines in functions.items() if lines > FUNCTION_CAP} == {}


def test_few_functions_are_long(functions: Sizes) -> None:
    assert percentile_95(functions) <= FUNCTION_P95_CAP


def test_no_file_is_too_long(files: Sizes) -> None:
    assert too_long(files, FILE_CAP, LONG_FILES) == {}


def test_no_class_of_the_job_and_the_cluster_is_too_long(classes: Sizes) -> None:
    assert {name.rpartition("/")[0] + "/" for name in classes} == set(CLASS_FOLDERS)
    assert too_long(classes, CLASS_CAP, LONG_CLASSES) == {}


def test_nothing_waits_to_be_cut_that_is_short_or_gone(files: Sizes, classes: Sizes) -> None:
    assert [name for name in LONG_FILES if files.get(name, 0) <= FILE_CAP] == []
    assert [name for name in LONG_CLASSES if classes.get(name, 0) <= CLASS_CAP] == []


def test_a_docstring_does_not_count() -> None:
    bare = "def f():\n    return 1\n"
    spoken = 'def f():\n    """Return\n\n    one.\n    """\n    return 1\n'
    assert functions_of(bare) == functions_of(spoken) == {"f:1": 2}


def test_a_class_is_measured_from_its_name_to_its_end() -> None:
    assert classes_of("class A:\n    def f(self):\n        return 1\n\n\nclass B: ...\n") == {"A": 3, "B": 1}


def test_what_waits_to_be_cut_may_not_grow() -> None:
    assert too_long({"a": 6, "b": 9, "c": 5}, 5, {"b": 9}) == {"a": 6}
    assert too_long({"b": 10}, 5, {"b": 9}) == {"b": 10}


def test_the_percentile_is_that_of_the_nearest_rank() -> None:
    assert percentile_95({str(size): size for size in range(1, 101)}) == 95
    assert percentile_95({"only": 7}) == 7
