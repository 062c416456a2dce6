"""Functions of tf.data pipelines that TensorFlow has traced, for the next dataset that calls the same ones.

`make_dataset` is called for each shard in each pass.  To trace its functions takes most of the time of a call: 30 to 50
ms of CPU for a few operations.  A function is traced again only if its code, or a value that it holds, has changed
(docs/decisions/tensorflow-engine.md#160-traces-are-used-again).
"""

from __future__ import annotations

import dis
import pickle
import random
import threading
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.plan.fingerprint import CanonicalSerializer
from pecan_ray.sources.tf_datasets import nodes_called
from pecan_ray.sources.tf_random_state import PYTHON
from pecan_ray.sources.tf_rewritten_function import with_seeds
from pecan_ray.sources.tf_seeds import SeedFold, SeedRequest
from pecan_ray.sources.tf_wide_constants import with_rows_of_constants

Wrapper: TypeAlias = Any
"""A StructuredFunctionWrapper of tf.data: a function as it was traced."""

MAX_KEYS = 128
"""Functions that differ by a value of each shard are traced for each: 16 shards of 8 functions are kept."""
MAX_VALUES = 10_000
"""A function that holds more values than this is traced again: comparing them takes as long."""
MAX_ARRAY_BYTES = 1 << 20
"""So is one that holds a larger array: hashing it takes a millisecond for each MB."""
IMPORT_NAME = dis.opmap["IMPORT_NAME"]


@dataclass(frozen=True)
class TracedFunction:
    """A function as it was traced, and the seeds that it asked for meanwhile."""

    wrapper: Wrapper
    requests: tuple[SeedRequest, ...]

    def attributes(self, fold: SeedFold) -> dict[str, Any]:
        """Return the attributes of a wrapper of the same function, with the seeds of the dataset that is being made."""
        attributes = dict(vars(self.wrapper))
        values: dict[int, int] = {}
        for request in self.requests:
            new = fold.fold(request.given, at_once=False)
            values.update({int(a): int(b) for a, b in zip(request.combined, new, strict=True) if a != b})
        if values:
            attributes["_function"] = with_seeds(self.wrapper.function, values)
        return attributes


class TracedFunctions:
    """The traced functions of one pipeline in this process; other processes begin with none."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[TracedFunction]] = OrderedDict()
        """By what a function computes, the last used one at the end."""

    def __reduce__(self) -> tuple[type[TracedFunctions], tuple[()]]:
        return TracedFunctions, ()

    @contextmanager
    def reused(self, fold: SeedFold) -> Iterator[None]:
        """Have this thread's datasets use functions that were traced before; `fold` gives the seeds."""
        from tensorflow.python.data.ops import structured_function

        traced: type[Wrapper] = structured_function.StructuredFunctionWrapper
        structured_function.StructuredFunctionWrapper = self._reuse_wrapper(traced, fold)
        try:
            yield
        finally:
            structured_function.StructuredFunctionWrapper = traced

    def _reuse_wrapper(self, traced: type[Wrapper], fold: SeedFold) -> type[Wrapper]:
        mine, uses = threading.get_ident(), Counter[str]()

        def wrapped(self_: Wrapper, func: Callable[..., Any], transformation: str, *given: Any, **options: Any) -> None:
            here = threading.get_ident() == mine and not given and _is_eager(options)
            key = _key(func, transformation, options) if here else None
            if key is None:
                traced.__init__(self_, func, transformation, *given, **options)
                if here:
                    self_._function = with_rows_of_constants(self_._function)
                return
            # Two functions of one dataset never become one: each operation draws its own sequence.
            known, number = self._kept.get(key, []), uses[key]
            uses[key] += 1
            if number < len(known):
                self._kept.move_to_end(key)
                self_.__dict__.update(known[number].attributes(fold))
                return
            before, states = len(fold.log), _states()
            traced.__init__(self_, func, transformation, **options)
            self_._function = with_rows_of_constants(self_._function)
            requests = fold.log[before:]
            # One that draws while it is traced would have been traced with other numbers the next time.
            if states == _states() and _is_reused(self_, requests):
                self._keep(key, TracedFunction(self_, tuple(requests)))

        return type(traced.__name__, (traced,), {"__init__": wrapped})

    def _keep(self, key: str, trace: TracedFunction) -> None:
        self._kept.setdefault(key, []).append(trace)
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_KEYS:
            self._kept.popitem(last=False)


def _is_eager(options: dict[str, Any]) -> bool:
    """Tell whether a function becomes one of a dataset itself, and not of a graph around it."""
    from tensorflow.python.eager import context

    return context.executing_eagerly() and not options.get("use_legacy_function")


def _key(func: Callable[..., Any], transformation: str, options: dict[str, Any]) -> str | None:
    """Return a text for what tracing a function depends on; None: it is to be traced."""
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.eager import context

    process: Any = context.context()
    given = {name: value for name, value in options.items() if name != "dataset"}
    data = options.get("dataset")
    spec = None if data is None else data.element_spec
    around = (context.global_seed(), process.device_name, ag_ctx.control_status_ctx().status)
    try:
        return f"{transformation} {spec!r} {given!r} {around} {_BoundedSerializer().to_text(func)}"
    except (PlanError, RecursionError):  # it holds something of which no more than the type is known
        return None


class _BoundedSerializer(CanonicalSerializer):
    """Spells out a function, if it is known what it depends on, and not too much."""

    def __init__(self) -> None:
        super().__init__(strict=True)
        self._values = 0

    def to_text(self, value: Any) -> str:
        self._values += 1
        if self._values > MAX_VALUES:
            raise PlanError(f"it holds more than {MAX_VALUES} values")
        return super().to_text(value)

    def _array(self, value: Any) -> str:
        if getattr(value, "nbytes", 0) > MAX_ARRAY_BYTES:
            raise PlanError(f"it holds an array of {value.nbytes} bytes")
        return super()._array(value)

    def _code(self, code: Any) -> str:
        # Each instruction is two bytes, of which the first is the operation.
        if IMPORT_NAME in code.co_code[::2]:
            raise PlanError(f"{code.co_name} imports in its body, and what it takes from there may have changed")
        return super()._code(code)

    def _function(self, fn: types.FunctionType) -> str:
        # What others have hung on it: of names with underscores, Python's and AutoGraph's are known otherwise.
        hung = {name: value for name, value in vars(fn).items() if not name.endswith("__")}
        return super()._function(fn) + (self.to_text(hung) if hung else "")

    def _instance(self, value: Any) -> str:
        import tensorflow as tf

        if isinstance(value, tf.Tensor):
            if not hasattr(value, "numpy") or value.dtype in (tf.resource, tf.variant):
                raise PlanError("it holds a tensor without values")
            return f"tensor:{self._array(value.numpy())}"
        return super()._instance(value)


def _states() -> tuple[Any, bytes]:
    """Return where Python's and NumPy's global generators stand."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _is_reused(wrapper: Wrapper, requests: Sequence[SeedRequest]) -> bool:
    """Tell whether another dataset may use a traced function: it has no state, and its seeds can be replaced.

    Seeds are replaced by their values.  Those that are the user's own may be other numbers of the graph, too.
    """
    import tensorflow as tf

    if any(request.combined == request.given or request.at_once for request in requests):
        return False
    if any(one.dtype in (tf.resource, tf.variant) for one in wrapper.function.captured_inputs):
        return False
    return all(node.op not in PYTHON for node in nodes_called(wrapper.function))
