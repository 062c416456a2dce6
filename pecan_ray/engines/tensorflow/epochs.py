"""The number of the epoch for functions that are given it: a constant of the graph, which is made anew for each."""

from __future__ import annotations

import functools
from dataclasses import replace

import tensorflow as tf

from pecan_ray.engines.tensorflow.columns import Tensor
from pecan_ray.plan.op_sequences import with_ops
from pecan_ray.plan.operators import ElementOp, Plan, wants_epoch


def with_epoch_number(plan: Plan, epoch: int) -> Plan:
    """Return the plan for one epoch: functions that are given its number have it."""
    # A constant and no variable: graphs of an epoch that was left may still run with their own number.
    number = tf.constant(epoch, tf.int64)
    return with_ops(
        plan, {op.name: replace(op, fn=functools.partial(op.fn, epoch=number)) for op in ops_told_of_epoch(plan)}
    )


def ops_told_of_epoch(plan: Plan) -> list[ElementOp]:
    """Return the operators whose functions are given the number of the epoch: a trace of one holds for one epoch."""
    return [op for op in plan.all_ops() if isinstance(op, ElementOp) and wants_epoch(op.fn)]


def of_first_epoch(op: ElementOp) -> dict[str, Tensor]:
    """Return what a function is told that runs outside of an epoch's graph: a sample is of the first epoch."""
    return {"epoch": tf.constant(0, tf.int64)} if wants_epoch(op.fn) else {}
