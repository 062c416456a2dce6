"""One meaning per type name: no class and no type alias is defined in two files of the package; locks say what for.

Benchmarks and examples keep to it too, but may repeat an alias, so that they can be read and copied alone.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ("pecan_ray", "placement", "reorder", "autoscaler", "cache")
PROGRAMS = ("benchmarks", "examples")


def python_files(names: Sequence[str]) -> Iterator[Path]:
    """Every Python file of some folders once: the links in pecan_ray are not followed."""
    folders = [ROOT / name for name in names]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            elif entry.suffix == ".py":
                yield entry


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module, say, and all statements in it, however deep: nine tenths of a tree are expressions."""
    yield node
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for below in getattr(node, name, ()):
            yield from statements(below)


def is_type_name(name: str) -> bool:
    """Tell a type's name from a constant's and from a type variable's."""
    return name[:1].isupper() and not name.isupper()


def types_of(source: str) -> dict[str, str]:
    """Names of the classes and type aliases that a module defines; of aliases also what they stand for."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = ""
        elif isinstance(node, ast.Assign):
            found |= {target.id: ast.unparse(node.value) for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = ast.unparse(node.value) if node.value else ""
    return {name: meaning for name, meaning in found.items() if is_type_name(name.lstrip("_"))}


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Type names that several files define, with the files; not aliases that programs repeat."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for file, text in sources.items():
        for name, meaning in types_of(text).items():
            found[name][file] = meaning
    return {name: list(files) for name, files in found.items() if len(files) > 1 and not repeats(files)}


def repeats(meanings: Mapping[str, str]) -> bool:
    """Tell whether all of these definitions are one alias, of which the package has no second copy."""
    of_package = [file for file in meanings if not file.startswith(PROGRAMS)]
    return len(of_package) < 2 and "" not in meanings.values() and len(set(meanings.values())) == 1


def test_a_type_name_has_one_meaning_and_programs_may_repeat_an_alias_and_nothing_else() -> None:
    paths = python_files(PACKAGE + PROGRAMS)
    assert shared_names({str(path.relative_to(ROOT)): path.read_text() for path in paths}) == {}
    alias, other, made = "One = Any", "One = int", "class One: ..."
    assert shared_names({"examples/a.py": alias, "benchmarks/b.py": alias, "pecan_ray/c.py": alias}) == {}
    for one, another in ((alias, other), (made, made)):
        assert shared_names({"examples/a.py": one, "benchmarks/b.py": another}) == {
            "One": ["examples/a.py", "benchmarks/b.py"]
        }
    assert shared_names({"cache/a.py": alias, "pecan_ray/b.py": alias}) != {}


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
