"""Our actors belong to no placement group, and what groups have reserved is told."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from pecan_ray.runtime.placement_groups import reserved_cpus

PACKAGE = Path(__file__).resolve().parents[3] / "pecan_ray"
THE_PLACE = PACKAGE / "runtime" / "actors.py"


def makes_actors(tree: ast.AST) -> list[int]:
    """Return the lines of a module that take `ray.remote`, which makes actors and tasks, or say how they are placed."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("ray"), attr="remote"):
                found.append(node.lineno)
            case ast.ImportFrom(module="ray", names=names) if "remote" in {name.name for name in names}:
                found.append(node.lineno)
            case ast.keyword(arg="scheduling_strategy"):
                found.append(node.value.lineno)
    return found


def test_actors_and_tasks_are_made_in_one_place() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path != THE_PLACE]
    assert len(files) > 300
    speaking = {path: text for path in files if re.search("remote|scheduling_strategy", text := path.read_text())}
    others = {str(path): lines for path, text in speaking.items() if (lines := makes_actors(ast.parse(text)))}
    assert others == {}, f"make these by {THE_PLACE.name}: a placement group would capture them"
    assert len(makes_actors(ast.parse(THE_PLACE.read_text()))) == 4


def test_reserved_cpus_are_those_of_the_nodes_in_question() -> None:
    table = {
        "a1": {
            "name": "trial",
            "state": "CREATED",
            "bundles": {0: {"CPU": 1.0}, 1: {"CPU": 2.0}, 2: {"GPU": 1.0}},
            "bundles_to_node_id": {0: "head", 1: "other", 2: "head"},
        },
        "b2": {"name": "", "state": "CREATED", "bundles": {0: {"CPU": 0.5}}, "bundles_to_node_id": {0: "head"}},
        "c3": {"name": "gone", "state": "REMOVED", "bundles": {0: {"CPU": 4.0}}, "bundles_to_node_id": {0: "head"}},
        "d4": {"name": "waits", "state": "PENDING", "bundles": {0: {"CPU": 4.0}}, "bundles_to_node_id": {}},
    }
    assert reserved_cpus(table, {"head"}) == {"trial": 1.0, "b2": 0.5}
    assert reserved_cpus(table, {"other"}) == {"trial": 2.0}
