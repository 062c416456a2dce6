"""What a thread's stack shows of a chain: which operator works, and on which element."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.python.processes import InProcess
from pecan_ray.engines.stages import Recognized, ThreadStage
from pecan_ray.engines.under_way import Recognize, ThreadActivity
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import AtWork, origin_of


def calls_under(options: EngineOptions) -> dict[types.CodeType, Recognize]:
    """Return the functions by which a stack shows which operator an engine with these very options has called."""

    def one(local: Mapping[str, Any]) -> ThreadActivity | None:
        chain, step, item = local.get("self"), local.get("step"), local.get("item")
        if chain is None or chain._options is not options or step is None or item is None:
            return None
        return working(step.op, [item], local.get("output", 0))

    def several(local: Mapping[str, Any]) -> ThreadActivity | None:
        chain, step, items = local.get("self"), local.get("step"), local.get("items")
        if chain is None or chain._options is not options or step is None or not items:
            return None
        return working(step.op, items, items[0].output)

    return {Chain._call.__code__: one, Chain._call_ahead.__code__: several}


def call_stages(options: EngineOptions) -> dict[types.CodeType, Recognized]:
    """Return the functions by which a stack shows in which operator of an engine with these very options it is."""

    def inspect_locals(local: Mapping[str, Any]) -> ThreadStage | None:
        chain, step = local.get("self"), local.get("step")
        if chain is None or chain._options is not options or step is None:
            return None
        return ThreadStage("operator", step.op.name, isinstance(step.call, InProcess))

    return {Chain._call.__code__: inspect_locals, Chain._call_ahead.__code__: inspect_locals}


def working(op: ElementOp, items: Sequence[Item], output: int) -> ThreadActivity:
    """Return that an operator works on an element, or on one of several."""
    first = items[0]
    where = first.where() if first.members is None else f"the batch that begins with {first.where()}"
    if len(items) > 1:
        where = f"{len(items)} elements from {where} on"
    lease = first.lease
    key = (op.name, lease.epoch, lease.key, first.element, output, len(items))
    alone = len(items) == 1 and first.members is None
    at = AtWork(op.name, origin_of(lease, first.element) if alone else None)
    return ThreadActivity(key, f"{op.name} has been working on {where} for {{seconds}}", at)
