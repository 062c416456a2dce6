"""Random numbers in a tf.data.Dataset that a seed of its own pass and shard does not reach."""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pecan_ray.sources.tf_datasets import chain, functions_of, nodes_called

STATEFUL = ("RngReadAndSkip", "RngSkip", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
"""Operations that move a generator on, or a variable: of `tf.random.Generator`, and of layers of Keras."""
PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
"""Operations that call Python: `tf.numpy_function`, `tf.py_function`, `Dataset.from_generator`."""
HOLDS_MANY = ("_ShuffleDataset", "_GlobalShuffleDataset")
"""Datasets that fill a buffer before they yield the first element; its size is bounded by the user's memory."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
MAX_DEPTH = 8
"""From the function that TensorFlow calls to a generator that the user's function holds; 5 for `from_generator`."""


def outside_states(data: Any, made: Sequence[Any]) -> tuple[str, ...]:
    """Return the operations that move on a state that was not made with the dataset.

    `made`: handles of the variables that were.
    """
    known, found = set(map(id, made)), dict[str, None]()
    for function in _functions(data):
        held = (one for one in function.captured_inputs if _is_variable(one))
        if any(id(one) not in known for one in held):
            moved = (str(node.op) for node in nodes_called(function) if node.op in STATEFUL)
            found.update(dict.fromkeys(moved))
    return tuple(found)


def python_generators(data: Any) -> tuple[str, ...]:
    """Return the operations that call functions of Python which hold a generator of random numbers."""
    found: dict[str, None] = {}
    for function in _functions(data):
        for node in nodes_called(function):
            if node.op in PYTHON and (held := _generator_in(_python_function(node), MAX_DEPTH)) is not None:
                module = type(held).__module__.partition(".")[0]
                found[f"{node.op} (a {type(held).__name__} of {module})"] = None
    return tuple(found)


def calls_python(data: Any) -> bool:
    """Tell whether a dataset calls functions of Python, which may draw from the process's generators."""
    return any(node.op in PYTHON for function in _functions(data) for node in nodes_called(function))


def is_independent(data: Any) -> bool:
    """Tell whether a dataset may compute elements beside other ones: it has no state, and holds few elements."""
    # Its buffer would take its memory twice
    # (docs/decisions/tensorflow-engine.md#177-the-next-shard-is-opened-beside).
    if any(type(one).__name__ in HOLDS_MANY for one in chain(data)):
        return False
    called = (node.op for function in _functions(data) for node in nodes_called(function))
    return not any(op in PYTHON or op in STATEFUL or op.startswith("ShuffleDataset") for op in called)


def _functions(data: Any) -> Iterator[Any]:
    for one in chain(data):
        yield from functions_of(one)


def _is_variable(handle: Any) -> bool:
    """Tell whether what a function holds is a variable; tables, say, have no type of their values."""
    described = getattr(handle, "_handle_data", None)
    return described is not None and bool(described.is_set)


def _python_function(node: Any) -> Any:
    """Return the function of Python that an operation calls; None if TensorFlow does not tell."""
    script_ops = importlib.import_module("tensorflow.python.ops.script_ops")
    # A private name: without it nobody is warned, and nothing else changes.
    functions = getattr(getattr(script_ops, "_py_funcs", None), "_funcs", {})
    return functions.get(node.attr["token"].s.decode())


def _generator_in(value: Any, depth: int) -> Any:
    """Return a generator of random numbers that a function holds; None: there is none."""
    if isinstance(value, GENERATORS):
        return value
    if depth == 0:
        return None
    found = (_generator_in(one, depth - 1) for one in _held_by(value))
    return next((one for one in found if one is not None), None)


def _held_by(value: Any) -> Iterator[Any]:
    """Yield what a function or an object holds; not the globals of its module, which live as long as the process."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif callable(getattr(value, "__func__", None)):
        yield from (value.__func__, value.__self__)
    elif hasattr(value, "__code__"):
        yield from (value.__defaults__ or ())
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # it is empty: a function that is being made
                continue
    elif type(value).__module__ not in ("builtins", "numpy") and not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).values()
