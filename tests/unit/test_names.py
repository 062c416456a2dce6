"""One meaning per type name: no class and no type alias is defined in two files of the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache")


def python_files() -> Iterator[Path]:
    """Every Python file of the package once: the links in pecan_ray are not followed."""
    folders = [ROOT / name for name in FOLDERS]
    while folders:
        for entry in sorted(folders.pop().iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            elif entry.suffix == ".py":
                yield entry


def is_type_name(name: str) -> bool:
    """Tell a type's name from a constant's and from a type variable's."""
    return name[:1].isupper() and not name.isupper()


def types_of(source: str) -> set[str]:
    """Names of the classes and type aliases that a module defines."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if is_type_name(name.lstrip("_"))}


def shared_names() -> dict[str, list[str]]:
    """Type names that several files define, with the files."""
    files = defaultdict(list)
    for path in python_files():
        for name in types_of(path.read_text()):
            files[name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in files.items() if len(found) > 1}


def test_a_type_name_has_one_meaning() -> None:
    assert shared_names() == {}
