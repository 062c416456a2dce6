"""What a thread's stack shows of chains and maps: which operator works, and on which element."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
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

    def one(local: Mapping[str, Any]) -> ThreadActivity | None:
        chain, step, item = local.get("self"), local.get("step"), local.get("item")
        # By the very options: another engine in this process runs the same code. A frame that has just begun
        # lacks some names.
        if chain is None or chain._options is not options or step is None or item is None:
            return None
        return working(step.op, [item], local.get("output", 0))

    def several(local: Mapping[str, Any]) -> ThreadActivity | None:
        chain, step, items = local.get("self"), local.get("step"), local.get("items")
        if chain is None or chain._options is not options or step is None or not items:
            return None
        return working(step.op, items, items[0].output)

    def by_columns(local: Mapping[str, Any]) -> ThreadActivity | None:
        chain, step, rows, place = (local.get(name) for name in ("self", "step", "rows", "place"))
        if chain is None or chain._options is not options or step is None or rows is None or place is None:
            return None
        return working(step.op, [chain._named(rows, place)], 0)

    def in_rows(local: Mapping[str, Any]) -> ThreadActivity | None:
        maps, op, item = local.get("self"), local.get("op"), local.get("item")
        if maps is None or maps._options is not options or op is None or item is None:
            return None
        return working(op, [item], item.output)

    return {
        Chain._call.__code__: one,
        Chain._prefetch_calls.__code__: several,
        ColumnChain._call_each.__code__: by_columns,
        RowMaps._call.__code__: in_rows,
    }


def call_stages(options: EngineOptions) -> dict[types.CodeType, Recognized]:
    """Return the functions by which a stack shows in which operator of an engine with these very options it is."""

    def inspect_locals(local: Mapping[str, Any]) -> ThreadStage | None:
        chain, step = local.get("self"), local.get("step")
        op = local.get("op") if step is None else step.op
        if chain is None or chain._options is not options or op is None:
            return None
        return ThreadStage("operator", op.name, step is not None and isinstance(step.call, InProcess))

    calls = (Chain._call, Chain._prefetch_calls, ColumnChain._call_each, RowMaps._call)
    return dict.fromkeys((call.__code__ for call in calls), inspect_locals)


def working(op: ElementOp, items: Sequence[Item], output: int) -> ThreadActivity:
    """Return that an operator works on an element, or on one of several."""
    first = items[0]
    where = first.where() if first.members is None else f"the batch that begins with {first.where()}"
    if len(items) > 1:
        where = f"{len(items)} elements from {where} on"
    lease = first.lease
    key = (op.name, lease.epoch, lease.key, first.element, output, len(items))
    # Of several elements nobody knows which one hangs, so no origin is named and the job searches for it.
    alone = len(items) == 1 and first.members is None
    at = AtWork(op.name, origin_of(lease, first.element) if alone else None)
    return ThreadActivity(key, f"{op.name} has been working on {where} for {{seconds}}", at)
