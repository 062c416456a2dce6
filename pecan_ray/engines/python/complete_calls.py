"""Functions of operators, completed: all of their work is done in their call, and raises there."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.engines.own_results import HeldValue, SharedBuffers, own_value
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap

Call: TypeAlias = Callable[..., Any]
NO_ANSWERS = (
    *(types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType),
)
"""What is true for Python, whatever it would answer if it were run."""
MOST_OUTPUTS = 1 << 20
"""What a generator of a flat_map may yield for one element: one without an end would fill the memory."""


def complete_call(op: ElementOp) -> Call:
    """Return a function that does all of an operator's work on a value, so that whatever it raises is raised there.

    A filter's answer becomes a bool, and the outputs of a flat_map are drawn from its generator.
    """
    if isinstance(op, Filter):
        return partial(_filter_result, op.fn)
    if isinstance(op, FlatMap):
        return partial(_drawn, op.fn, SharedBuffers())
    return op.fn


def _filter_result(fn: Call, value: Any, **keywords: Any) -> Any:
    """Return a filter's answer as Python takes it for an `if`; what is none, and a masked one, as they are.

    None is what has no truth of its own: a coroutine, a generator, a function that nobody has called.
    """
    answer = fn(value, **keywords)
    # First, because nearly all filters return one of these.
    if type(answer) is bool or type(answer) is np.bool_:
        return bool(answer)
    if answer is None or isinstance(answer, (np.ma.MaskedArray, *NO_ANSWERS)):
        return answer
    if isinstance(answer, (float, np.floating)) and answer != answer:  # bool(NaN) is True
        raise ValueError("it returned NaN, which is neither True nor False")
    return bool(answer)


def _drawn(fn: Call, buffers: SharedBuffers, value: Any, **keywords: Any) -> Any:
    before, started = dict(value) if isinstance(value, dict) else {"": value}, buffers.now()
    held: list[HeldValue] = []
    drawn = _own_outputs(fn(value, **keywords), before, value, held)
    if held:
        buffers.check(held, started)
    return drawn


def _own_outputs(outputs: Any, before: Mapping[str, Any], given: Any, held: list[HeldValue]) -> Any:
    """Return the outputs of a flat_map as a list, each as it is drawn: a generator may change it for the next one."""
    # Iterables that a function returns by mistake: their keys or letters would become elements. The chain
    # names the error.
    if isinstance(outputs, (dict, str, bytes)) or not isinstance(outputs, Iterable):
        return outputs
    bounded = not isinstance(outputs, (list, tuple))
    values = iter(outputs) if bounded else pop_all(list(outputs))
    del outputs  # a list that the function does not hold itself holds nothing any more
    drawn: list[Any] = []
    with suppress(StopIteration):
        # Lists are in memory already, so only what is drawn from a generator is bounded.
        while len(drawn) <= MOST_OUTPUTS or not bounded:
            drawn.append(own_value(next(values), before, given, held))
    if bounded and len(drawn) > MOST_OUTPUTS:
        raise ValueError(
            f"it yields more than {MOST_OUTPUTS:,} elements for one, and all of these are held in memory. Let it end; "
            "where an element really stands for so many, return a list of them, or let the source have smaller ones."
        )
    return drawn


def pop_all(values: list[Any]) -> Iterator[Any]:
    """Yield the values of a list, which holds none of them any more then."""
    # A value that a list still held would look as if somebody else had it, and be copied (`own_results`).
    values.reverse()
    while values:
        yield values.pop()
