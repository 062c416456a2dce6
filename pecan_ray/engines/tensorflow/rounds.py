"""Rounds of coordinated reads: the graph gives elements, and Python makes a batch of them for each trainer.

Decisions: docs/decisions/batches-and-groups.md#233-rounds-of-a-graphs-elements.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import pecan_ray.engines.tensorflow.checks as checks
from pecan_ray.engines.contract import EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.grouping import grouped
from pecan_ray.engines.items import ItemIterator
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.produced_items import produced_of
from pecan_ray.engines.slots import HeapSlots, waiting_for_room
from pecan_ray.engines.stages import Recognized
from pecan_ray.engines.tensorflow.columns import TensorColumns
from pecan_ray.engines.tensorflow.elements import NoTensorsError, of_tensors
from pecan_ray.engines.tensorflow.engine import TensorFlowEngine
from pecan_ray.errors import OutputTypeError
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.operators import Map, Plan
from pecan_ray.plan.shape import last_batching
from pecan_ray.plan.splits import Element, Source

LENGTH = "pecan length"
"""The column in which a graph tells Python by which length an element finds its bucket."""


class RoundsEngine(TensorFlowEngine):
    """Runs the operators before the buckets as a graph, and makes rounds of what comes out."""

    def __init__(self, plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> None:
        bucket = last_batching(plan)
        assert isinstance(bucket, BucketByLength)
        before = plan.ops[: plan.ops.index(bucket)]
        if callable(bucket.length):
            before = (*before, _measured(bucket, bucket.length))
            bucket = replace(bucket, length=_take_length)
        # Elements lie in memory of their own until they are in a batch: the slots are for what a trainer takes.
        super().__init__(replace(plan, ops=before), sources, options, HeapSlots())
        self._bucket, self._batch_slots = bucket, slots

    def batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the rounds of one stretch, a batch for each rank."""
        skipped_positions = SkippedPositions()
        items = self._tensors(of_tensors(self.items(leases, skipped_positions)))
        for batch in grouped(items, self._bucket, self._options, skipped_positions):
            if batch is not None:
                yield produced_of(batch, skipped_positions, self._batch_slots)
            elif (report := skipped_positions.report(self._current_assignment.epoch)) is not None:
                yield report
        if (rest := skipped_positions.report(self._current_assignment.epoch)) is not None:
            yield rest

    def stages(self) -> dict[CodeType, Recognized]:
        """Return the functions by which stacks show that it reads, or waits for memory."""
        return {**super().stages(), **waiting_for_room(self._batch_slots)}

    def _tensors(self, items: ItemIterator) -> ItemIterator:
        try:
            yield from items
        except NoTensorsError as error:
            raise OutputTypeError(
                f"{self._bucket.name}: {error} where it is padded; only tensors may be there. Make it one by a map "
                "before (RaggedTensor.to_tensor, tf.sparse.to_dense).",
                op=self._bucket.name,
            ) from error


def _measured(bucket: BucketByLength, length: Any) -> Map:
    """Return a map that adds the length: a user's function of tensors, which is compiled as the others are."""

    def measured(columns: TensorColumns) -> TensorColumns:
        return {**columns, LENGTH: checks.length(bucket.name, length(columns))}

    return Map(name=bucket.name, fn=measured)


def _take_length(element: Element) -> int:
    # Taken out, because each column that is left becomes one of the batch.
    return int(element.pop(LENGTH))
