"""The pipeline of a user's program, for commands that look at it."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.observe.read_script import REACHED, load, run_main_part
from pecan_ray.pipeline import PecanPipeline

MAKERS = ("example_pipeline", "pipeline", "make_pipeline")
"""Functions that a program may offer to make its pipeline."""


def add_script_arguments(added: argparse.ArgumentParser) -> None:
    """Add which program has the pipeline."""
    added.add_argument("file", help="Python file that has the pipeline")
    added.add_argument("--name", help="variable or function of the file that is, or makes, the pipeline")


def read_pipeline(asked: argparse.Namespace) -> PecanPipeline:
    """Return the pipeline of a user's program, which begins no job while it is read."""
    path = Path(asked.file)
    module = load(path)
    if asked.name is None and not has_pipeline(module):
        run_main_part(module)
    return find_pipeline(module, asked.name)


def has_pipeline(module: ModuleType) -> bool:
    """Tell whether a module has a pipeline, or a function that makes one."""
    if REACHED in vars(module):
        return True
    makers = any(callable(made := getattr(module, maker, None)) and not _needed(made) for maker in MAKERS)
    return makers or any(isinstance(value, PecanPipeline) for value in vars(module).values())


def find_pipeline(module: ModuleType, name: str | None = None) -> PecanPipeline:
    """Return the pipeline of a module: one that a function makes, or a variable.

    Raises `PlanError` if there is none, or several.
    """
    if name is not None:
        if not hasattr(module, name):
            raise PlanError(f"{module.__file__} has no {name!r}.")
        return _build_pipeline(module, name, getattr(module, name))
    for maker in MAKERS:
        made = getattr(module, maker, None)
        if callable(made) and not _needed(made):
            return _build_pipeline(module, maker, made)
    if REACHED in vars(module):
        return _build_pipeline(module, "the first pipeline", vars(module)[REACHED])
    found = {name: value for name, value in vars(module).items() if isinstance(value, PecanPipeline)}
    if len({id(value) for value in found.values()}) > 1:
        raise PlanError(f"{module.__file__} has several pipelines: {', '.join(sorted(found))}. Choose one by --name.")
    for variable, value in found.items():
        return _build_pipeline(module, variable, value)
    raise PlanError(
        f"{module.__file__} has no pipeline: give it a function {MAKERS[0]}() that returns one and needs no argument, "
        "or a variable that holds one."
    )


def _build_pipeline(module: ModuleType, name: str, thing: Any) -> PecanPipeline:
    if isinstance(thing, PecanPipeline):
        return thing
    if not callable(thing) or _needed(thing):
        raise PlanError(f"{name} of {module.__file__} is neither a pipeline nor a function that needs no argument.")
    made = thing()
    if not isinstance(made, PecanPipeline):
        raise PlanError(f"{name}() of {module.__file__} returned {type(made).__name__}, not a PecanPipeline.")
    return made


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a function cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
