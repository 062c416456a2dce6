"""Which maps of a sampled stretch can be one look-up table: asked before it is run and measured, since most cannot."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pecan_ray.autoorder.op_runner import OP_FAILURES, run_through
from pecan_ray.autoorder.push_down import Pushed
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import OpOrder
from pecan_ray.engines.python.lookup_table import LookupTable, TableSteps, can_be_looked_up
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.errors import MissingExtraError
from pecan_ray.plan.operators import ElementOp
from pecan_ray.warps import opencv

ASKED = 2
"""Elements that are asked,"""
DRAWS = 8
"""and random numbers for each: a function may do something else with some (mirror the image)."""


class TableTrial:
    """Asks whether maps are arithmetic on the bytes of images."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled
        self._ops: dict[str, ElementOp] = {op.name: op for op in sampled.stretch.ops}
        self._inputs: dict[OpOrder, list[dict[str, Any]]] = {}
        """What comes out of operators in that order."""

    def possible(self, order: OpOrder, one: Pushed) -> bool:
        """Tell whether maps can be one table in an order, by its first elements."""
        if any(op.draws or op.unequal or op.stateful for op in self._sampled.profile().ops if op.name in one.ops):
            return False  # what is tried in vain would move it
        column = self._ops[one.ops[0]].on
        steps: TableSteps = tuple((name, self._ops[name].fn) for name in one.ops)
        found = LookupTable(steps, one.exactly)
        assert column is not None
        images = [element.get(column) for element in self._given(order[: order.index(one.ops[0])])]
        return bool(images) and all(_makes_a_table(found, image) for image in images)

    def _given(self, before: OpOrder) -> list[dict[str, Any]]:
        if before not in self._inputs:
            stages, made = self._sampled.runner.stages(before), []
            try:
                for number in range(min(ASKED, len(self._sampled.held))):
                    outputs = run_through(stages, self._sampled.token(number))
                    made += [dict(self._sampled.runner.columns(output)) for output in outputs]
            except OP_FAILURES:
                made = []
            self._inputs[before] = made
        return self._inputs[before]


def _makes_a_table(found: LookupTable, image: Any) -> bool:
    if not can_be_looked_up(image):
        return False
    try:
        opencv()
        for seed in range(DRAWS):
            found.table(image.shape, functools.partial(_generator, seed))
    except (NotInRowsError, MissingExtraError):
        return False
    return True


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng((seed, *name.encode()))
