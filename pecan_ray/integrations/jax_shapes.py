"""One shape for the batches of all processes of JAX: on others each would compute other values, without an error."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
from jax._src import distributed  # the only store that its processes share, which has no public name

from pecan_ray.errors import PlanError
from pecan_ray.runtime.long_wait import LongWait

Shapes: TypeAlias = Mapping[str, str]
"""Dtype and shape by column, and by its place in a nested one."""

LOOK_MS = 1_000
"""Milliseconds that one question to the store waits, so that Ctrl-C is heard between two."""

_numbers = itertools.count()
"""Of the iterators with a sharding in this process: all processes make the same ones."""


class OneShape:
    """Checks that batches are like the first one, and the first one like that of process 0."""

    def __init__(self, process: int, processes: int) -> None:
        """`process`: this one's number among the `processes` of JAX."""
        self._process, self._processes = process, processes
        self._key = f"pecan_ray/shapes/{next(_numbers)}"
        self._first: Shapes | None = None

    def check(self, shapes: Shapes) -> None:
        """Raise PlanError, naming the column, if a batch has another shape than the first one, here or elsewhere.

        If the first batches differ, all processes raise the same error: none goes on to a step that waits for others.
        """
        if self._first is None:
            self._check_consistency(shapes)
            self._first = shapes
        else:
            mine = f"this batch of process {self._process}"
            _check_same_shapes(shapes, self._first, mine, "its first batch")

    def _check_consistency(self, shapes: Shapes) -> None:
        store: Any = distributed.global_state.client
        if store is None:
            raise PlanError("sharding: several processes of JAX need jax.distributed.initialize() first.")
        comparison_result = f"{self._key}/verdict"
        if self._process == 0:
            store.key_value_set(comparison_result, json.dumps(self._first_mismatch(store, shapes)))
        else:
            store.key_value_set(self._key_of(self._process), json.dumps(dict(shapes)))
        with LongWait("process 0 of JAX has not compared the first batches of all processes yet: one has none"):
            differing = json.loads(_from(store, comparison_result))
        if differing is not None:
            process, others, first = differing
            _check_same_shapes(others, first, f"the first batch of process {process}", "that of process 0")

    def _first_mismatch(self, store: Any, shapes: Shapes) -> tuple[int, Shapes, Shapes] | None:
        """Return the first process whose batch differs from this one's, and both shapes; None if all are alike."""
        for process in range(1, self._processes):
            with LongWait(f"process {process} of JAX has no batch yet, whose shapes are compared with this process's"):
                others: Shapes = json.loads(_from(store, self._key_of(process)))
            if others != shapes:
                return process, others, shapes
        return None

    def _key_of(self, process: int) -> str:
        return f"{self._key}/{process}"


def _from(store: Any, key: str) -> str:
    while True:
        try:
            return str(store.blocking_key_value_get(key, LOOK_MS))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def _check_same_shapes(shapes: Shapes, others: Shapes, mine: str, whose: str) -> None:
    for name in (*shapes, *others):
        has, wants = (of.get(name, "no array") for of in (shapes, others))
        if has != wants:
            raise PlanError(
                f"sharding: column {name!r} is {has} in {mine}, and {wants} in {whose}. With several processes of JAX "
                "all batches must have one shape: pad to a fixed one (.padded_batch(n, shapes=...)), and let nothing "
                "behind the batch change how many rows it has."
            )
