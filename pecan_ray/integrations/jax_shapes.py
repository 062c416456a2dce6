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
"""For so long one question to the store waits, so that Ctrl-C is heard between two."""

_numbers = itertools.count()
"""Of the iterators with a sharding in this process: all processes make the same ones."""


class OneShape:
    """Checks that batches are like the first one, and the first one like that of process 0."""

    def __init__(self) -> None:
        self._key = f"pecan_ray/shapes/{next(_numbers)}"
        self._first: Shapes | None = None

    def check(self, shapes: Shapes) -> None:
        """Raise PlanError, naming the column, for a batch of another shape than the first one, here or in process 0."""
        if self._first is None:
            self._agree(shapes)
            self._first = shapes
        else:
            _must_be_alike(shapes, self._first, "the first batch")

    def _agree(self, shapes: Shapes) -> None:
        store: Any = distributed.global_state.client
        if store is None:
            raise PlanError("sharding: several processes of JAX need jax.distributed.initialize() first.")
        if jax.process_index() == 0:
            store.key_value_set(self._key, json.dumps(dict(shapes)))
            return
        with LongWait("process 0 of JAX has no batch yet, with whose shapes those of this process are compared"):
            _must_be_alike(shapes, json.loads(_from(store, self._key)), "the first batch of process 0")


def _from(store: Any, key: str) -> str:
    while True:
        try:
            return str(store.blocking_key_value_get(key, LOOK_MS))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def _must_be_alike(shapes: Shapes, others: Shapes, whose: str) -> None:
    for name in (*shapes, *others):
        has, wants = (of.get(name, "no array") for of in (shapes, others))
        if has != wants:
            raise PlanError(
                f"sharding: column {name!r} is {has} in this batch of process {jax.process_index()}, and {wants} in "
                f"{whose}. With several processes of JAX all batches must have one shape: pad to a fixed one "
                "(.padded_batch(n, shapes=...)), and let nothing behind the batch change how many rows it has."
            )
