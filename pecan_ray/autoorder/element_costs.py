"""What reading and each operator of a plan cost, from a sample: what caching decides by."""

from __future__ import annotations

from collections.abc import Sequence

from pecan_ray.autocache.decision import SampledCosts
from pecan_ray.autoorder.accepted import OpSequenceOrder
from pecan_ray.autoorder.op_samples import OpSample
from pecan_ray.cache.execution_profile import OperatorCost, SourceCost
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.sources.memory import Arrays, Items

REMOTE_WAITING = 0.9
"""Share of reading from a bucket in which a thread needs no CPU."""


def costs_of(plan: Plan, orders: Sequence[OpSequenceOrder]) -> SampledCosts | None:
    """Return what reading and the operators of a plan cost, as a sample shows it; None where it does not."""
    samples = {op.name: op for one in orders for op in one.sample.ops if _measured(op)}
    names = [op.name for op in element_ops_from(plan, 0)]
    if not names or not samples.keys() >= set(names):
        return None
    first = next((one.sample for one in orders if names[0] in one.names), None)
    if first is None or first.reading_s is None:
        return None
    source = _source_cost(plan, samples[names[0]], first.reading_s)
    return SampledCosts(source, tuple(_cost(samples[name]) for name in names))


def _source_cost(plan: Plan, head: OpSample, reading_s: float) -> SourceCost:
    """Return what an element of the source costs; `head`: the first operator, which is given these."""
    remote = "://" in str(getattr(plan.head, "patterns", "") or getattr(plan.head, "root", ""))
    # What lies in memory is read no faster from a disk, whatever the sample says.
    reading = 0.0 if type(plan.head) in (Arrays, Items) else reading_s
    return SourceCost(reading, head.bytes_in / head.elements_in, REMOTE_WAITING if remote else 0.0)


def _measured(op: OpSample) -> bool:
    return op.elements_in > 0 and op.seconds is not None


def _cost(op: OpSample) -> OperatorCost:
    size = op.bytes_out / op.elements_out if op.elements_out else 0.0
    return OperatorCost(op.name, op.seconds or 0.0, size, op.elements_out / op.elements_in, op.profiled.random)
