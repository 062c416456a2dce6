"""What the code of each floor may name: import-linter sees imports among modules, and this sees the rest.

The standard library where decisions are made, files and clocks that are reached without an import, frameworks at import
time, names that are imported as text, and what belongs to tests.  All of it is told from the source alone.

Decisions: docs/decisions/tests.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pecan_ray", "placement", "reorder", "autoscaler", "cache")

WORDS = frozenset(
    {"abc", "bisect", "collections", "dataclasses", "enum", "functools", "heapq"}
    | {"itertools", "math", "numbers", "operator", "re", "statistics", "typing"}
)
LIBRARIES = frozenset({"__future__", "numpy", "pecan_ray"})
PURE = {
    "autoscaler/": WORDS,
    "cache/": WORDS | {"hashlib"},
    "placement/": WORDS | {"pickle"},  # of a policy's state, to compare it
    "reorder/": WORDS,
    "pecan_ray/sampling/": WORDS | {"hashlib", "struct"},
    "pecan_ray/plan/": WORDS | {"copyreg", "dis", "hashlib", "inspect", "types"},  # it looks into users' functions
    "pecan_ray/job/": WORDS | {"array", "base64", "hashlib", "json", "pickle", "types", "zlib"},  # journals are bytes
    "pecan_ray/errors.py": WORDS,
}
"""Floors without threads, clocks, files, sockets and processes, and what they may import of the standard library."""
EXCEPTIONS = {
    "pecan_ray/errors.py": {"threading"},  # which thread was interrupted
    "pecan_ray/job/pass_order.py": {"sys"},  # the largest index
    "pecan_ray/plan/deadline.py": {"datetime"},  # as the user says when the job must end
    "pecan_ray/plan/fingerprint.py": {"pathlib", "sys"},  # where a function's module lies
    "pecan_ray/plan/option_types.py": {"os"},  # the type of paths
    "pecan_ray/sampling/random_keys.py": {"sys", "threading"},  # a generator for each thread
}
"""What else a file of a pure floor may import, and why."""
ACTS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})
REACHES = frozenset(
    {"iterdir", "mkdir", "open", "read_bytes", "read_text", "rmdir", "unlink", "write_bytes", "write_text"}
    | {"fromfile", "fromtimestamp", "memmap", "now", "save", "savez", "set_state", "today", "tofile", "utcnow"}
)
"""Names of methods by which a path, a type of times or NumPy reaches a file, the clock or the state of all."""
SEEDED = frozenset({"BitGenerator", "Generator", "Philox", "SeedSequence", "bit_generator", "default_rng"})
"""What may be named of `np.random`: the rest draws from one state for the whole process."""

FRAMEWORKS = frozenset({"jax", "keras", "starlette", "tensorflow", "torch"})
HEAVY = {
    "pecan_ray/autoorder/tensorflow_runner.py": {"tensorflow"},
    "pecan_ray/engines/tensorflow/": {"tensorflow"},
    "pecan_ray/integrations/cuda_calls.py": {"torch"},
    "pecan_ray/integrations/devices.py": {"torch"},
    "pecan_ray/integrations/jax_arrays.py": {"jax"},
    "pecan_ray/integrations/jax_range.py": {"jax"},
    "pecan_ray/integrations/jax_shapes.py": {"jax"},
    "pecan_ray/integrations/keras_dataset.py": {"keras"},
    "pecan_ray/integrations/keras_state.py": {"keras"},
    "pecan_ray/integrations/tf_dataset.py": {"tensorflow"},
    "pecan_ray/integrations/tf_structure.py": {"tensorflow"},
    "pecan_ray/integrations/torch_dataset.py": {"torch"},
    "pecan_ray/integrations/transformers_trainer.py": {"torch"},
    "pecan_ray/observe/dashboard_app.py": {"starlette"},
}
"""Files that may import a framework when they are imported, as they themselves are imported where it is used."""
IMPORTERS = frozenset({"__import__", "import_module", "importlib.import_module"})
BY_TEXT = {
    "pecan_ray/cli/__init__.py",  # the command that is typed
    "pecan_ray/engines/registry.py",
    "pecan_ray/engines/without_keras.py",
    "pecan_ray/integrations/lightning_data.py",
    "pecan_ray/lazy.py",
    "pecan_ray/sources/hugging_face.py",
    "pecan_ray/sources/lance_table.py",
    "pecan_ray/sources/libraries.py",
    "pecan_ray/sources/tf_random_state.py",
    "pecan_ray/storage/fsspec_files.py",
    "pecan_ray/storage/gcs.py",
    "pecan_ray/storage/s3.py",
}
"""Files that may import by text: libraries without types, and what is chosen at run time."""
NOT_INSTALLED = frozenset(
    {"autoscaler", "cache", "placement", "reorder"}
    | {"benchmarks", "conftest", "examples", "hypothesis", "moto", "pytest", "tests"}
)
FACADE = {"pecan_ray/__init__.py", "pecan_ray/cli.py"}
"""Who may import the package's public names as a user does: they stand above all floors."""


def violations(root: Path = ROOT) -> list[str]:
    """Return what a tree holds that its floors forbid, a line for each: `file:line: what`."""
    found: list[str] = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not any(folder.is_symlink() for folder in path.parents):
                found += [f"{name}:{line}: {what}" for line, what in judge(name, path.read_text(), root)]
    return found


def judge(name: str, source: str, root: Path = ROOT) -> Iterator[tuple[int, str]]:
    """Yield lines of a file that its floor forbids, with why; `name`: from the root on."""
    tree = ast.parse(source)
    at_import = set(_at_import(tree.body))
    pure = next((allowed for floor, allowed in PURE.items() if name.startswith(floor)), None)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for module in _imported(node):
                yield from ((node.lineno, why) for why in _of_import(name, module, pure, at_import=node in at_import))
        if isinstance(node, ast.ImportFrom) and node.module == "pecan_ray" and name not in FACADE:
            public = [one.name for one in node.names if not _is_module(root / "pecan_ray" / one.name)]
            yield from ((node.lineno, f"imports {one} from the facade") for one in public)
        if isinstance(node, ast.Import) and "pecan_ray" in _imported(node) and name not in FACADE:
            yield node.lineno, "imports the facade"
        if isinstance(node, ast.Call) and name not in BY_TEXT and ast.unparse(node.func) in IMPORTERS:
            yield node.lineno, "imports by text"
        if pure is not None:
            yield from _of_acts(node)


def _of_import(name: str, module: str, pure: frozenset[str] | None, *, at_import: bool) -> Iterator[str]:
    top = module.partition(".")[0]
    if top in NOT_INSTALLED:
        yield f"imports {module}, which is not installed with the package"
    if pure is not None and top not in pure | LIBRARIES | EXCEPTIONS.get(name, set()):
        kind = "of the standard library" if top in sys.stdlib_module_names else "of others"
        yield f"imports {module} {kind} in a pure floor"
    heavy = {one for file, allowed in HEAVY.items() if name.startswith(file) for one in allowed}
    if at_import and top in FRAMEWORKS - heavy:
        yield f"imports {module} when it is imported itself"


def _of_acts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield what reaches out of a pure floor through what it may import."""
    if isinstance(node, ast.Import) and "numpy.random" in _imported(node):
        yield node.lineno, "imports numpy.random whole, by whose functions it draws from the state of the process"
    if isinstance(node, ast.ImportFrom):
        names = {one.name for one in node.names}
        forbidden = {"numpy": names & (REACHES | {"random"}), "numpy.random": names - SEEDED}
        yield from ((node.lineno, f"imports {one} of NumPy") for one in sorted(forbidden.get(node.module or "", ())))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ACTS:
        yield node.lineno, f"calls {node.func.id}() in a pure floor"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REACHES:
        yield node.lineno, f"calls .{node.func.attr}() in a pure floor"
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np.random" and node.attr not in SEEDED:
        yield node.lineno, f"draws by np.random.{node.attr}, from the state of the process"


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module or "."]


def _at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements that run when their module is imported: not those of functions and of types alone."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _at_import(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _at_import(handler.body)


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()
