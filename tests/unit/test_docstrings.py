"""What constants, and the locks of threads, say of themselves."""

from __future__ import annotations

import ast
import itertools
import re

from tests.unit.test_names import PACKAGE, ROOT, python_files, statements


def unexplained_locks(source: str) -> list[int]:
    """Lines that make a lock without a docstring below them, or a comment above or behind them, on what it guards."""
    lines, found = source.splitlines(), []
    scope_types = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for body in [node.body for node in statements(ast.parse(source)) if isinstance(node, scope_types)]:
        for statement, below in itertools.zip_longest(body, body[1:]):
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not makes_lock(statement.value):
                continue
            said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            commented = "#" in lines[statement.lineno - 1] or lines[statement.lineno - 2].lstrip().startswith("#")
            if not said and not commented:
                found.append(statement.lineno)
    return found


def makes_lock(value: ast.expr | None) -> bool:
    """Tell whether a value is a new lock, or a condition with a lock of its own."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)] if value is not None else []
    names = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute) and not call.args]
    return bool({"Lock", "RLock", "Condition"} & set(names))


def test_each_lock_says_what_it_guards() -> None:
    makers = [path for path in python_files(PACKAGE) if re.search("Lock|Condition", path.read_text())]
    found = {path: unexplained_locks(path.read_text()) for path in makers}
    assert {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines} == {}
    assert unexplained_locks("import threading\n\nlock = threading.Lock()\nnumber = 0\n") == [3]
    assert unexplained_locks('import threading\n\nlock = threading.Lock()\n"""Guards it."""\n') == []
