"""Caps on the length of functions, files and classes: it is the longest ones that make code hard to read."""

from __future__ import annotations

import ast
from typing import TypeAlias

import numpy as np

from tests.unit.test_names import ROOT, python_files, statements

FOLDERS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache", "examples", "benchmarks")
FUNCTION_CAP, FUNCTION_P95_CAP = 80, 40
FILE_CAP = 500
CLASS_CAP, CLASS_FOLDERS = 250, ("pecan_ray/job/", "pecan_ray/runtime/")
BRANCH_CAP, BRANCH_FOLDERS = 12, FOLDERS[:5]
ABOVE = {
    "pecan_ray/engines/own_results.py:own_element",  # runs for each element, and counts who refers to its values
}
"""Functions of what is installed that have more branches."""
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.match_case)

Sizes: TypeAlias = dict[str, int]
Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(node: ast.stmt) -> int:
    """Lines from `def` or `class` on; the docstring of a function does not count."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if not isinstance(node, Functions) or ast.get_docstring(node) is None:
        return lines
    return lines - lines_of(node.body[0])


def branches(function: ast.stmt) -> int:
    """Count ways through a function as McCabe does, and each `and`, `or` and loop in an expression for one, too."""
    nodes = list(ast.walk(function))
    count = 1 + sum(isinstance(node, BRANCHES) for node in nodes)
    count += sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return count + sum(1 + len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))


def without_comments(source: str) -> str:
    """A cap shall not keep anybody from saying why."""
    return "".join(line for line in source.splitlines(keepends=True) if not line.lstrip().startswith("#"))


def sizes(source: str, kinds: type[ast.stmt] | tuple[type[ast.stmt], ...], file: str = "") -> Sizes:
    """Lines of every function or class of a file, nested ones included; comments do not count."""
    found = [node for node in statements(ast.parse(without_comments(source))) if isinstance(node, kinds)]
    return {f"{file}:{node.name}:{node.lineno}": lines_of(node) for node in found}  # type: ignore[attr-defined]


def longer(found: Sizes, cap: int) -> Sizes:
    return {name: lines for name, lines in found.items() if lines > cap}


def test_what_is_measured_is_what_is_meant() -> None:
    for spoken in ("", '    """Return\n\n    one.\n    """\n'):
        assert sizes(f"def f():\n{spoken}    # why\n    return 1\n", Functions) == {":f:1": 2}, "these do not count"
    found = sizes("class A:\n    def f(self):\n        return 1\n\n\nclass B: ...\n", ast.ClassDef)
    assert found == {":A:1": 3, ":B:6": 1} and longer(found, 2) == {":A:1": 3}


def test_no_function_has_too_many_branches() -> None:
    (known,) = ast.parse("def f(a, b):\n    if a and b:\n        return [c for c in a if c]\n    return a or b\n").body
    assert branches(known) == 6
    found: Sizes = {}
    for path in python_files(BRANCH_FOLDERS):
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, Functions):
                name = f"{path.relative_to(ROOT)}:{node.name}"
                found[name] = max(branches(node), found.get(name, 0))
    assert longer(found, BRANCH_CAP).keys() == ABOVE


def test_no_function_no_file_and_no_class_of_the_job_and_the_cluster_is_too_long_and_few_functions_are_long() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in python_files((*FOLDERS, "tests"))}
    assert {name.split("/")[0] for name in sources} == {*FOLDERS, "tests"}
    assert longer({name: len(without_comments(text).splitlines()) for name, text in sources.items()}, FILE_CAP) == {}
    functions: Sizes = {}
    classes: Sizes = {}
    for name, text in sources.items():
        functions |= {} if name.startswith("tests/") else sizes(text, Functions, name)
        classes |= sizes(text, ast.ClassDef, name) if name.startswith(CLASS_FOLDERS) else {}
    assert longer(functions, FUNCTION_CAP) == longer(classes, CLASS_CAP) == {} != classes
    assert np.percentile([*functions.values()], 95, method="inverted_cdf") <= FUNCTION_P95_CAP
