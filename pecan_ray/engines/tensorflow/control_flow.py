"""Functions whose ifs and loops over tensors become graph operations."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

logger = logging.getLogger(__name__)

MOST_CONVERTED = 64
"""Functions whose conversion by AutoGraph is kept: more than a pipeline has."""


def with_control_flow(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose ifs and loops over tensors become graph operations, where its source is at hand."""
    # A method that is kept would keep its object in memory.
    return converted(fn) if inspect.isfunction(fn) else _convert(fn)


@functools.lru_cache(maxsize=MOST_CONVERTED)
def converted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `_convert` does, once for a function: it takes longer than all else that tracing does."""
    return _convert(fn)


def _convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    # Callable objects and `functools.partial` have no source of their own.
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        return fn
    try:
        in_graph: Callable[..., Any] = tf.autograph.to_graph(fn)
    except Exception as error:  # the conversion runs the function's source anew, which can fail in any way
        logger.info("AutoGraph cannot convert %s, which is traced as it is: %s", fn.__name__, error)
        return fn
    return in_graph
