"""Random numbers in a tf.data.Dataset whose state begins anew wherever the dataset is made: in each shard and epoch.

A dataset tells what it was made of by attributes that tf.data does not document; a dataset without them is not checked.
"""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from pecan_ray.sources.tf_shards import chain, has_seed

SEEDED = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "StatelessMultinomial",
    "TruncatedNormal",
)
"""Operations that draw from a sequence of their own, which is the same wherever it begins if a seed is given."""
STATEFUL = ("RngReadAndSkip", "RngSkip", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
"""Operations that move a generator on, or a variable: of `tf.random.Generator`, and of layers of Keras."""
PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
"""Operations that call Python: `tf.numpy_function`, `tf.py_function`, `Dataset.from_generator`."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
MAX_DEPTH = 8
"""From the function that TensorFlow calls to a generator that the user's function holds; 5 for `from_generator`."""


def restarting_randomness(data: Any) -> tuple[str, ...]:
    """Return the operations in a dataset whose random numbers begin anew wherever the dataset is made."""
    found: dict[str, None] = {}
    for one in chain(data):
        if drawn := _drawn_by(one):
            found[drawn] = None
        for graph in _graphs(one):
            found.update(dict.fromkeys(filter(None, map(_restarts, _nodes(graph)))))
    return tuple(found)


def _drawn_by(data: Any) -> str:
    """Name a dataset that draws random numbers itself, from a seed; empty for others."""
    kind = type(data).__name__
    if kind == "_ShuffleDataset" and has_seed(data) and bool(getattr(data, "_reshuffle_each_iteration", True)):
        return "shuffle(seed=...)"
    return "Dataset.random(seed=...)" if kind == "_RandomDataset" and has_seed(data) else ""


def _graphs(data: Any) -> Iterator[Any]:
    """Yield the graphs of the functions that a dataset calls."""
    functions = getattr(data, "_functions", None)
    for one in [] if functions is None else functions():
        yield one.function.graph.as_graph_def()


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _restarts(node: Any) -> str:
    """Name an operation whose random numbers begin anew; empty for others."""
    if node.op in STATEFUL:
        return str(node.op)
    if node.op in SEEDED and (node.attr["seed"].i or node.attr["seed2"].i):
        return str(node.op)
    if node.op in PYTHON and (held := _generator_in(_python_function(node), MAX_DEPTH)) is not None:
        return f"{node.op} (a {type(held).__name__} of {type(held).__module__.partition('.')[0]})"
    return ""


def _python_function(node: Any) -> Any:
    """Return the function of Python that an operation calls; None if TensorFlow does not tell."""
    script_ops = importlib.import_module("tensorflow.python.ops.script_ops")
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
