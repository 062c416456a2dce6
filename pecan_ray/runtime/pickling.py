"""Sending a plan to workers, and a job to its controller: what cannot be sent, or taken there, is named."""

from __future__ import annotations

import functools
import inspect
import logging
import pickle
import types
from collections.abc import Iterator
from typing import Any

from pecan_ray.by_value import NamedArrays, dumps, dumps_with_arrays, loads_with_arrays
from pecan_ray.errors import ClusterError, PlanError, UnpicklablePlanError, describe_error
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.plan.own_attributes import own_attribute
from pecan_ray.plan.splits import lister_of
from pecan_ray.runtime import cluster
from pecan_ray.runtime.host_names import named

logger = logging.getLogger("pecan_ray")

LARGE_BYTES = 50 << 20
"""A value of more than so many bytes that a function holds is warned of: each worker of a node has one."""


def pickle_plan(plan: Plan, arrays: NamedArrays | None = None) -> bytes:
    """Pickle a plan for the workers; raises `UnpicklablePlanError` naming the op and the variable.

    A large array that a function holds is warned of by name: each worker gets a copy.  `arrays`: large arrays of its
    sources are added to these, and are not in the result; None: they are in it.
    """
    try:
        data = _pickled(plan, arrays)
        if len(data) > LARGE_BYTES:
            _warn_of_large_values(plan)
        return data
    except Exception as error:
        # Only now is it asked which of them is to blame, because that pickles each one by itself.
        for op in plan.all_ops():
            if isinstance(op, ElementOp):
                _check_function(op)
        for source in plan.sources():
            _check_value(source, f"the source {type(source).__name__}", error)
        raise PlanError(f"the pipeline cannot be sent to workers: {type(error).__name__}: {error}") from error


def pickle_sources(plan: Plan, arrays: NamedArrays | None) -> bytes:
    """Pickle what lists the sources of a plan, for the controller; `arrays` as for `pickle_plan`."""
    return _pickled([lister_of(source) for source in plan.split_sources()], arrays)


def _pickled(value: Any, arrays: NamedArrays | None) -> bytes:
    # Memory maps travel as paths, and large arrays of sources by name (decision 132).
    return dumps(value, maps_by_path=True) if arrays is None else dumps_with_arrays(value, arrays)


def _warn_of_large_values(plan: Plan) -> None:
    for op in plan.all_ops():
        for name, value in held_by(op.fn) if isinstance(op, ElementOp) else ():
            # Pickled, because an array may lie within a list, a dict or an object.
            size = len(dumps(value, maps_by_path=True))
            if size > LARGE_BYTES:
                logger.warning(
                    "%s holds %r, %d MB, and each worker gets a copy of it. Write it to a file, and let the function "
                    "hold a memory map, numpy.load(path, mmap_mode='r'): workers open it again, and share its memory",
                    op.name,
                    name,
                    size >> 20,
                )


def unpickle_here(data: bytes, what: str, arrays: NamedArrays | None = None) -> Any:
    """Unpickle what another process has sent; raises `ClusterError` that names what this node lacks for it."""
    try:
        return loads_with_arrays(data, arrays or {})
    except Exception as error:  # it runs code of the user's modules
        lacks = f"no module {error.name!r}" if isinstance(error, ModuleNotFoundError) else describe_error(error)
        raise ClusterError(
            f"{what} cannot be unpickled on node {named(cluster.this_node())}: {lacks}. pecan_ray, and the modules "
            "that the pipeline's source comes from, must be importable on every node: install them there, or send "
            "them by `ray job submit --working-dir .` or a runtime environment."
        ) from error


def _check_function(op: ElementOp) -> None:
    try:
        dumps(op.fn)
    except Exception as error:
        variable = next(unpicklable_variables(op.fn), None)
        named = f"its variable {variable!r}" if variable else "a value that it holds"
        raise UnpicklablePlanError(
            f"{op.name}: the function cannot be sent to workers, since {named} cannot be pickled "
            f"({type(error).__name__}: {error}). Create it inside the function, or in a module that workers import.",
            op=op.name,
            variable=variable,
        ) from error


def _check_value(value: object, what: str, error: BaseException) -> None:
    try:
        dumps(value)
    except Exception as cause:
        raise UnpicklablePlanError(
            f"{what} cannot be sent to workers: {type(cause).__name__}: {cause}", variable=what
        ) from error


def unpicklable_variables(fn: Any) -> Iterator[str]:
    """Yield the names of the variables that a function holds and that cannot be pickled."""
    for name, value in held_by(fn):
        try:
            # Both ways, because some values can be pickled and not unpickled.
            pickle.loads(dumps(value))
        except Exception:
            yield name


def _held_by_code(fn: Any, code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the closure variables, globals and defaults of a function of Python."""
    cells = zip(code.co_freevars, fn.__closure__ or (), strict=False)
    # A variable that gets its value later in the program has an empty cell, which raises where it is read.
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != types.CellType())
    yield from ((name, fn.__globals__[name]) for name in code.co_names if name in fn.__globals__)
    parameters = inspect.signature(fn).parameters.values()
    yield from ((each.name, each.default) for each in parameters if each.default is not each.empty)


def held_by(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function holds: closure variables, globals, defaults, bound arguments and attributes."""
    if isinstance(fn, functools.partial):
        for place, value in enumerate(fn.args):
            yield f"argument {place + 1} of partial", value
        yield from fn.keywords.items()
        yield from held_by(fn.func)
        return
    code = own_attribute(fn, "__code__")
    if code is not None:
        yield from _held_by_code(fn, code)
    owner = own_attribute(fn, "__self__", fn)
    yield from own_attribute(owner, "__dict__", {}).items()
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if (value := own_attribute(owner, name, owner)) is not owner:
                yield name, value
