"""Reading the pipeline out of a user's program: it runs as far as its first job, which does not begin."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from pecan_ray.errors import PecanError, PlanError, describe_error
from pecan_ray.observe.run_clock import RunClock

_reading: ContextVar[bool] = ContextVar("pecan_reading_program", default=False)
REACHED = "__pecan_pipeline__"
"""In a program's module: the pipeline of which it wanted batches first."""


class JobReached(BaseException):
    """A program that is being read wants batches; no `Exception`, which it might handle itself."""

    def __init__(self, pipeline: Any) -> None:
        super().__init__("this program is being read: no job begins")
        self.pipeline = pipeline


def clock_of_run(pipeline: Any) -> RunClock:
    """Return the clock of a run that begins now; raises `JobReached` where the program is only read."""
    if _reading.get():
        raise JobReached(pipeline)
    return RunClock()


@contextlib.contextmanager
def _without_jobs(module: ModuleType) -> Iterator[None]:
    """Enclose what runs a program, up to the first job that it wants."""
    token = _reading.set(True)
    try:
        yield
    except JobReached as reached:
        vars(module)[REACHED] = reached.pipeline
    finally:
        _reading.reset(token)


def load(path: Path) -> ModuleType:
    """Import a file as a module, not as a program, up to its first job; raises `PlanError` where that cannot be.

    Its functions are sent to workers by their code: these need not find the file, and do not run it.
    """
    if not path.is_file():
        raise PlanError(f"there is no file {path}.")
    name = path.stem if path.stem.isidentifier() else "pecan_program"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # As when Python runs it: it finds what lies beside it.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    cloudpickle.register_pickle_by_value(module)
    with _script_context(module, path):
        spec.loader.exec_module(module)
    return module


def run_main_part(module: ModuleType) -> None:
    """Run what a file that was imported does under ``if __name__ == "__main__"``, up to its first job."""
    path = Path(str(module.__file__))
    parts: list[ast.stmt] = [part for part in ast.parse(path.read_bytes()).body if _is_name_check(part)]
    vars(module)["__name__"] = "__main__"
    with _script_context(module, path):
        exec(compile(ast.Module(parts, type_ignores=[]), str(path), "exec"), vars(module))


def _is_name_check(part: ast.stmt) -> bool:
    return isinstance(part, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(part.test)
    )


@contextlib.contextmanager
def _script_context(module: ModuleType, path: Path) -> Iterator[None]:
    """Enclose what runs a file: it finds no arguments, and no job begins."""
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        with _without_jobs(module), _one_line_errors(path):
            yield
    finally:
        sys.argv = arguments


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Raise what a program raises as a `PlanError` that says in which line."""
    try:
        yield
    except (JobReached, KeyboardInterrupt, PecanError):
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise PlanError(f"{path} has ended with status {error.code!r} before it called iter_batches().") from error
    except SyntaxError as error:
        raise PlanError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    except BaseException as error:
        trace, whole = traceback.extract_tb(error.__traceback__), path.resolve()
        frames = [one for one in trace if Path(one.filename).resolve() == whole]
        where = f"{path}, line {frames[-1].lineno}" if frames else str(path)
        raise PlanError(f"{where}: {describe_error(error)}") from error
