"""Which test files `make check` runs: those that need no framework, no server and no process of their own.

A file says what it needs by what it imports and names, itself or by what it takes from other files of tests and
benchmarks.  Nothing has to be marked, and a file that begins to need more leaves `make check` by that.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_IMAGES = frozenset({"PIL", "albumentations", "cv2", "skimage", "torchvision"})
OF_TABLES = frozenset({"datasets", "lance", "matplotlib", "optuna", "pandas", "sklearn"})
OF_TRAINING = frozenset({"accelerate", "jax", "keras", "pytorch_lightning", "tensorflow", "torch", "transformers"})
FRAMEWORKS = OF_IMAGES | OF_TABLES | OF_TRAINING
"""Libraries that take a tenth of a second and more to import, or to use for the first time."""
SERVERS = frozenset({"boto3", "gcp_storage_emulator", "gcsfs", "http.server", "moto", "uvicorn"})
PROCESSES = frozenset({"multiprocessing", "subprocess"})
NEEDS = FRAMEWORKS | SERVERS | PROCESSES
CALLED = {
    "fork": "multiprocessing",
    "to_keras": "keras",
    "to_tf_dataset": "tensorflow",
    "to_torch": "torch",
}
"""What needs something, whatever it is called on."""
OURS = ("tests.", "benchmarks.", "examples.")
"""What files of tests import and are looked into."""
FIXTURES = frozenset({"bucket", "gcs_endpoint", "s3_endpoint"})
"""Of tests/unit/conftest.py, which start servers."""


def is_quick(path: Path) -> bool:
    """Return whether a file of tests needs nothing that takes long."""
    return not needs(path.resolve())


def needs(path: Path) -> frozenset[str]:
    """Return what a file of tests needs that takes long, itself or by the files of `OURS` that it imports."""
    found, seen, waiting = set[str](), {path}, [path]
    while waiting:
        own, files = _own_needs(waiting.pop())
        found |= own
        waiting += files - seen  # files of tests may import one another in a circle
        seen |= files
    return frozenset(found)


@cache
def _own_needs(path: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """Return what a file itself needs that takes long, and the files of `OURS` that it imports."""
    found: set[str] = set()
    files: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        else:
            names = _named(node)
        for name in names:
            found |= {name, name.partition(".")[0]} & NEEDS
            module = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith(OURS) and name != "tests.tiers" and module.is_file():
                files.add(module)
    return frozenset(found), frozenset(files)


def _named(node: ast.AST) -> list[str]:
    """Return what a node needs without importing it."""
    if isinstance(node, ast.Constant):  # importorskip("torch"), engine="tensorflow"
        return [node.value] if isinstance(node.value, str) and node.value in NEEDS else []
    if isinstance(node, ast.keyword):  # map(fn, processes=True)
        return ["multiprocessing"] if node.arg == "processes" else []
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":  # of whatever a name stands for
        return [] if isinstance(node.args[0], ast.Constant) else ["tensorflow"]
    if isinstance(node, ast.Attribute):
        return [CALLED[node.attr]] if node.attr in CALLED else []
    if isinstance(node, ast.FunctionDef):
        return ["http.server" for one in node.args.args if one.arg in FIXTURES]
    return []
