"""The command `pecan run`: a program as Python runs it, with the reports of its jobs at the end."""

from __future__ import annotations

import argparse
import contextlib
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.observe.ending import end_all, record_runs
from pecan_ray.observe.report import Report


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `pecan run` takes."""
    parser.add_argument("file", help="Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program finds behind its name")
    parser.set_defaults(run=run_run)


class JobOutput:
    """Standard output, and the lines about jobs that a program has printed there."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.about_jobs: list[str] = []

    def write(self, text: str) -> int:
        """Write a text."""
        if "pecan job " in text:
            self.about_jobs += [line for line in text.splitlines() if "pecan job " in line]
        written: int = self._stream.write(text)
        return written

    def has(self, report: Report) -> bool:
        """Tell whether a report was printed behind the last batch of its job: then that is known already."""
        return any(f"{report.subject} " in line for line in self.about_jobs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run_run(asked: argparse.Namespace) -> int:
    """Run a program; returns its exit status."""
    path = Path(asked.file)
    module, code = ModuleType("__main__"), executable_code(path)
    module.__file__ = str(path)
    sys.argv = [str(path), *asked.arguments]
    sys.path[0] = str(path.resolve().parent)  # as when Python runs it
    # Where pickle looks for what the program defines.
    sys.modules["__main__"] = module
    output: Any = JobOutput(sys.stdout)
    with record_runs() as runs, contextlib.redirect_stdout(output):
        try:
            status = _run(code, module)
        finally:
            end_all()
            output.flush()
            for report in runs.reports:
                if not output.has(report):
                    output.write(f"{report}\n")
            output.flush()
    lost = len(runs.started) - len(runs.reports)
    if lost and not status:  # else what the program raised says why
        sys.stderr.write(
            f"pecan: {lost} of its jobs left no report, since their batches were dropped in the middle of a loop: "
            "iterate within `with pipe.iter_batches(...) as batches:`.\n"
        )
    if not runs.started:
        sys.stderr.write(f"pecan: {path} has begun no job.\n")
    return status


def executable_code(path: Path) -> CodeType:
    """Return the code of a program; raises `PlanError` where there is none."""
    try:
        code: CodeType = compile(path.read_bytes(), str(path), "exec")
        return code
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}.") from error
    except (SyntaxError, ValueError) as error:  # which of them zeros in it are depends on Python's version
        if isinstance(error, SyntaxError) and error.lineno:
            raise PlanError(f"{path}, line {error.lineno}: {error.msg}.") from error
        raise PlanError(f"{path} is not a Python file: {error}.") from error


def _run(code: CodeType, module: ModuleType) -> int:
    """Run a program's code; what it raises is told as Python does, and its exit status is returned."""
    try:
        exec(code, vars(module))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        trace = error.__traceback__
        # Without the frame of this function, which is none of the program's.
        traceback.print_exception(error.with_traceback(None if trace is None else trace.tb_next))
        return 1
    return 0
