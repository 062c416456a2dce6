"""What a thread's stack shows of chains and maps: which operator works, and on which element."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.python.column_chain import ColumnChain
from pecan_ray.engines.python.processes import InProcess
from pecan_ray.engines.python.row_maps import RowMaps
from pecan_ray.engines.stages import Recognized, ThreadStage
from pecan_ray.engines.under_way import Recognize, ThreadActivity
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import AtWork, origin_of


def calls_under(options: EngineOptions) -> dict[types.CodeType, Recognize]:
    """Return the functions by which a stack shows which operator an engine with these very options has called."""

    def one(op: ElementOp, local: Mapping[str, Any]) -> ThreadActivity:
        return working(op, [local["item"]], local.get("output", local["item"].output))

    def several(op: ElementOp, local: Mapping[str, Any]) -> ThreadActivity | None:
        return working(op, local["items"], local["items"][0].output) if local["items"] else None

    def by_columns(op: ElementOp, local: Mapping[str, Any]) -> ThreadActivity:
        return working(op, [local["self"]._named(local["rows"], local["place"])], 0)

    def recognizing(found: Callable[[ElementOp, Mapping[str, Any]], ThreadActivity | None], *names: str) -> Recognize:
        def recognize(local: Mapping[str, Any]) -> ThreadActivity | None:
            op = _op_in(local, options)
            # A frame that has just begun lacks some names.
            return None if op is None or any(local.get(name) is None for name in names) else found(op, local)

        return recognize

    return {
        Chain._call.__code__: recognizing(one, "item"),
        Chain._prefetch_calls.__code__: recognizing(several, "items"),
        ColumnChain._call_each.__code__: recognizing(by_columns, "rows", "place"),
        RowMaps._call.__code__: recognizing(one, "item"),
    }


def call_stages(options: EngineOptions) -> dict[types.CodeType, Recognized]:
    """Return the functions by which a stack shows in which operator of an engine with these very options it is."""

    def inspect_locals(local: Mapping[str, Any]) -> ThreadStage | None:
        op, step = _op_in(local, options), local.get("step")
        if op is None:
            return None
        return ThreadStage("operator", op.name, step is not None and isinstance(step.call, InProcess))

    calls = (Chain._call, Chain._prefetch_calls, ColumnChain._call_each, RowMaps._call)
    return dict.fromkeys((call.__code__ for call in calls), inspect_locals)


def _op_in(local: Mapping[str, Any], options: EngineOptions) -> ElementOp | None:
    """Return the operator that a frame of a chain, or of maps on many rows, is calling."""
    chain, step = local.get("self"), local.get("step")
    # By the very options: another engine in this process runs the same code.
    if chain is None or chain._options is not options:
        return None
    op: ElementOp | None = local.get("op") if step is None else step.op
    return op


def working(op: ElementOp, items: Sequence[Item], output: int) -> ThreadActivity:
    """Return that an operator works on an element, or on one of several."""
    first = items[0]
    where = first.where_all()
    if len(items) > 1:
        where = f"{len(items)} elements from {where} on"
    lease = first.lease
    key = (op.name, lease.epoch, lease.key, first.element, output, len(items))
    # Of several elements nobody knows which one hangs, so no origin is named and the job searches for it.
    alone = len(items) == 1 and first.members is None
    at = AtWork(op.name, origin_of(lease, first.element) if alone else None)
    return ThreadActivity(key, f"{op.name} has been working on {where} for {{seconds}}", at)
