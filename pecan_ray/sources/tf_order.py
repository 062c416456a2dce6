"""Datasets that keep their order though their makers ask for any (`deterministic=False`).

What a lost worker has left of a shard is read by another one, which skips as many elements as were delivered: in
another order these would be others (docs/decisions/tensorflow-engine.md#206-shards-keep-their-order).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

WITH_ORDER = {
    "gen_dataset_ops": ("parallel_map_dataset_v2", "parallel_interleave_dataset_v4", "parallel_batch_dataset"),
    "gen_experimental_dataset_ops": ("legacy_parallel_interleave_dataset_v2", "parse_example_dataset_v2"),
}
"""Operations of TensorFlow's that have an attribute `deterministic`, by the module that tf.data calls them in."""
OPTIONS = "options_dataset"


@contextmanager
def in_order() -> Iterator[None]:
    """Have the datasets that this thread makes meanwhile keep their order; others may be made beside them."""
    from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

    modules: dict[str, Any] = {
        one.__name__.rpartition(".")[2]: one for one in (gen_dataset_ops, gen_experimental_dataset_ops)
    }
    with ExitStack() as stack:
        for module, names in WITH_ORDER.items():
            for name in names:
                stack.enter_context(replaced(modules[module], name, _ordered))
        stack.enter_context(replaced(gen_dataset_ops, OPTIONS, _options_in_order))
        yield


@contextmanager
def replaced(module: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Have this thread call a changed operation; it is there under its name for all others."""
    mine, operation = threading.get_ident(), getattr(module, name)
    changed = change(operation)

    def chosen(*given: Any, **named: Any) -> Any:
        return (changed if threading.get_ident() == mine else operation)(*given, **named)

    setattr(module, name, chosen)
    try:
        yield
    finally:
        setattr(module, name, operation)


def _ordered(operation: Callable[..., Any]) -> Callable[..., Any]:
    def ordered(*given: Any, **named: Any) -> Any:
        if named.get("deterministic") == "false":
            named["deterministic"] = "true"
        return operation(*given, **named)

    return ordered


def _options_in_order(operation: Callable[..., Any]) -> Callable[..., Any]:
    from tensorflow.core.framework import dataset_options_pb2

    def options_in_order(data: Any, serialized: bytes, *given: Any, **named: Any) -> Any:
        options = dataset_options_pb2.Options.FromString(serialized)
        if options.WhichOneof("optional_deterministic") and not options.deterministic:
            options.deterministic = True
            serialized = options.SerializeToString()
        return operation(data, serialized, *given, **named)

    return options_in_order
