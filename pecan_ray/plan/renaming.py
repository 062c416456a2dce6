"""Names of operators that are free in a plan."""

from __future__ import annotations

import re
from dataclasses import replace

from pecan_ray.plan.operators import Join, Plan


def free_name(name: str, taken: set[str]) -> str:
    """Return `name`, or with the first number that makes it differ from `taken`."""
    if name not in taken:
        return name
    # The next one of `map_2` is `map_3`, and not `map_2_2`.
    stem = re.sub(r"_\d+$", "", name)
    number = 2
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"


def with_new_names(plan: Plan, taken: set[str]) -> Plan:
    """Return the plan with names that differ from `taken`, to which they are added."""
    head = plan.head
    if isinstance(head, Join):
        head = replace(head, inputs=tuple(with_new_names(branch, taken) for branch in head.inputs))
    ops = []
    for op in plan.ops:
        name = free_name(op.name, taken)
        taken.add(name)
        ops.append(replace(op, name=name))
    return replace(plan, head=head, ops=tuple(ops))
