"""Traced functions of TensorFlow with other operations, or other seeds."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

Definition = Any
"""A FunctionDef of TensorFlow: the operations of a function."""

_numbers = itertools.count()
"""Names are not given twice in a process: a function with other seeds is another one."""


class RewrittenFunction:
    """What tf.data takes of a traced function, of one with other operations; all else is as it was traced."""

    def __init__(self, traced: Any, own: Definition, called: list[Definition], others: list[Definition]) -> None:
        """`own` and the functions that it calls, which are changed, too; `others` are not."""
        self._traced = traced
        self.function_def = own
        self.name = own.signature.name.encode()
        self._definitions, self._others = [own, *called], others
        _register(self, self._definitions)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._traced, name)

    def nodes(self) -> Iterator[Any]:
        """Yield the operations of the function and of those that it calls."""
        for one in (*self._definitions, *self._others):
            yield from one.node_def


def new_name(name: str, why: str) -> str:
    """Return a name that no function of this process has."""
    return f"{name}_{why}_{next(_numbers)}"


def with_seeds(traced: Any, values: Mapping[int, int]) -> Any:
    """Return a traced function with other seeds; `values`: the new number for each number of a seed."""
    own = traced.function_def
    named = {one.signature.name: one for one in (*traced.graph.as_graph_def().library.function, own)}
    names = {name: new_name(name, "seeds") for name in _seeded(named, values)}
    mine, others = own.signature.name, [one for name, one in named.items() if name not in names]
    if mine not in names:
        return traced
    called = [_make_copy(named[name], names, values) for name in named if name in names and name != mine]
    return RewrittenFunction(traced, _make_copy(own, names, values), called, others)


def _register(function: RewrittenFunction, definitions: list[Definition]) -> None:
    """Make functions known to TensorFlow, until nobody holds the one that calls them."""
    from tensorflow.python.eager import context

    process: Any = context.context()
    for one in definitions:
        process.add_function_def(one)
    names = [one.signature.name for one in definitions]
    # Not at the interpreter's end, where the functions go with the process.
    weakref.finalize(function, _forget, process, names).atexit = False


def _forget(process: Any, names: list[str]) -> None:
    for name in names:
        process.remove_function(name)


def _seeded(named: Mapping[str, Definition], values: Mapping[int, int]) -> set[str]:
    """Return the functions that have a seed, or call one that has."""
    calls = {name: set(_called(one)) & named.keys() for name, one in named.items()}
    found = {name for name, one in named.items() if any(_has_seed(node, values) for node in one.node_def)}
    while more := {name for name in named if name not in found and calls[name] & found}:
        found |= more
    return found


def _called(definition: Definition) -> Iterator[str]:
    for node in definition.node_def:
        yield node.op
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            for one in value.list.func:
                yield one.name


def _has_seed(node: Any, values: Mapping[int, int]) -> bool:
    if "seed2" in node.attr:
        return node.attr["seed"].i in values or node.attr["seed2"].i in values
    return node.op == "Const" and any(number in values for number in _scalar(node))


def _scalar(node: Any) -> list[int]:
    """Return the number of a constant: seeds of datasets within a function are constants."""
    tensor = node.attr["value"].tensor
    return [] if tensor.tensor_shape.dim else list(tensor.int64_val)


def _make_copy(definition: Definition, names: Mapping[str, str], values: Mapping[int, int]) -> Definition:
    """Return a function under its new name, with its new seeds, that calls others under theirs."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name = names[copy.signature.name]
    for node in copy.node_def:
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            if value.HasField("func"):
                value.func.name = names.get(value.func.name, value.func.name)
            for one in value.list.func:
                one.name = names.get(one.name, one.name)
        if "seed2" in node.attr:
            for seed in ("seed", "seed2"):
                node.attr[seed].i = values.get(node.attr[seed].i, node.attr[seed].i)
        elif node.op == "Const" and (found := _scalar(node)):
            node.attr["value"].tensor.int64_val[:] = [values.get(number, number) for number in found]
    return copy
