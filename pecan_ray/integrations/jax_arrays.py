"""Batches as arrays of JAX that lie on a mesh of devices, of one process or of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pecan_ray.engines.contract import is_plain
from pecan_ray.errors import PlanError
from pecan_ray.integrations.formats import Converter, each
from pecan_ray.integrations.jax_range import check_compatible
from pecan_ray.integrations.jax_shapes import OneShape, Shapes
from pecan_ray.plan.grouping import BucketByLength, GroupBy, GroupingOp
from pecan_ray.plan.operators import Batch, Filter, FlatMap, Map, PaddedBatch, Plan, Unbatch
from pecan_ray.plan.splits import Element
from pecan_ray.runtime.client import BatchClient, next_columns

MAKE_BATCHES = (Batch, PaddedBatch, GroupingOp)
CHANGE_ROWS = (Map, FlatMap, Filter, Unbatch)
"""Behind these a batch may have any number of rows."""


class OnMesh:
    """Makes global arrays of the batches of this process, each of which holds its part of the rows.

    JAX copies in the background: a batch that has come already is on its way while the step before runs.
    """

    def __init__(self, shardings: Any) -> None:
        """`shardings`: one for all columns, or one for each column by name."""
        self._sharding_specs = shardings
        self._one_shape = OneShape(jax.process_index(), jax.process_count()) if jax.process_count() > 1 else None
        self._prefetched: tuple[Any, Element | PlanError] | None = None
        """A batch that the training loop does not have yet, and its arrays, or why there are none."""

    def deliver(self, columns: Element, convert: Converter, client: BatchClient | None) -> Element:
        """Return a batch on the mesh, and begin to copy the next one if a client has it already."""
        batch = self.take(columns) or self.copy(convert(columns))
        if client is not None and (following := next_columns(client)) is not None:
            self.stage(following, convert(following))
        return batch

    def close(self) -> None:
        """JAX itself holds what it still copies."""

    def stage(self, columns: Any, batch: Element) -> None:
        """Begin to copy a batch that comes next, unless it is lost meanwhile; `columns` names it."""
        try:
            self._prefetched = columns, self.copy(batch)
        except PlanError as error:  # it is that batch's own, and the one before is good
            self._prefetched = columns, error

    def take(self, columns: Any) -> Element | None:
        """Return the arrays of a batch that was staged; None if it was not."""
        ahead, self._prefetched = self._prefetched, None
        if ahead is None or ahead[0] is not columns:
            return None
        if isinstance(ahead[1], PlanError):
            raise ahead[1]
        return ahead[1]

    def copy(self, batch: Element) -> Element:
        """Return a batch on the mesh; columns without a sharding, or that are no numbers, stay as they are."""
        if isinstance(self._sharding_specs, Mapping) and (
            unknown := sorted(self._sharding_specs.keys() - batch.keys())
        ):
            raise PlanError(f"sharding: there is no column {unknown[0]!r}; a batch has {sorted(batch)}.")
        if self._one_shape is not None:
            self._one_shape.check(self._shapes(batch))
        return {name: each(value, partial(self._placed, name), in_lists=False) for name, value in batch.items()}

    def _shapes(self, batch: Element) -> Shapes:
        found: dict[str, str] = {}

        def note(name: str, value: Any) -> None:
            if self._sharding_of(name, value) is not None:
                place = name if name not in found else f"{name} ({len(found)})"  # a part of a nested column
                found[place] = f"{value.dtype}{list(np.shape(value))}"

        for name, value in batch.items():
            each(value, partial(note, name), in_lists=False)
        return found

    def _sharding_of(self, name: str, value: Any) -> NamedSharding | None:
        """Return where a column, or a part of it, goes; None: it stays."""
        one = self._sharding_specs.get(name) if isinstance(self._sharding_specs, Mapping) else self._sharding_specs
        numbers = isinstance(value, (np.ndarray, np.generic)) and is_plain(value.dtype)
        return one if numbers and value.dtype.kind not in "mMSU" else None

    def _placed(self, name: str, value: Any) -> Any:
        one = self._sharding_of(name, value)
        if one is None:
            return value
        check_compatible(name, value)
        array, processes = np.asarray(value), jax.process_count()
        if array.ndim == 0:
            raise PlanError(
                f"sharding: column {name!r} is a single number, of which a mesh can hold no part: make batches by "
                ".batch(n), or name the columns that have rows: sharding={'x': ...}."
            )
        # One sharding for all columns may name more dimensions than some of them have.
        spec = tuple(one.spec)[: array.ndim]
        for dimension, entry in enumerate(spec):
            parts = parts_here(one.mesh, entry)
            if array.shape[dimension] % parts:
                raise PlanError(_not_divisible_message(one, f"column {name!r}", array.shape, dimension, parts))
        # All processes have equally many rows, which `OneShape` has checked before.
        whole = (array.shape[0] * processes, *array.shape[1:])
        placed = NamedSharding(one.mesh, PartitionSpec(*spec))
        return jax.make_array_from_process_local_data(placed, array, whole)


def on_mesh(sharding: Any, plan: Plan, rank: int, world_size: int) -> OnMesh:
    """Return what places batches on a mesh; raises PlanError where a plan's batches do not fit on it."""
    for name, one in sharding.items() if isinstance(sharding, Mapping) else [("", sharding)]:
        if not isinstance(one, NamedSharding):
            of = f"sharding={{{name!r}: ...}}" if name else "sharding"
            raise PlanError(f'{of} must be a jax.sharding.NamedSharding with format="jax", but got {one!r:.80}.')
        _check_process_sharding(one)
        _check_batch_divisible(one, plan)
    if isinstance(sharding, NamedSharding):
        _check_fixed_padding(plan)
    here = jax.process_index(), jax.process_count()
    if (rank, world_size) != here:
        raise PlanError(
            f"sharding: this is process {here[0]} of the {here[1]} of JAX, which each hold their part of every batch, "
            f"but rank={rank} and world_size={world_size}: leave these out."
        )
    return OnMesh(sharding)


def place_of_process(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Return rank and world size: those of JAX unless given, where it has several processes."""
    if rank is None and world_size is None and jax.process_count() > 1:
        return jax.process_index(), jax.process_count()
    return rank, world_size


def axes_of(entry: Any) -> Sequence[str]:
    """Return the mesh axes over which an entry of a PartitionSpec divides a dimension."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def parts_here(mesh: Mesh, entry: Any) -> int:
    """Return into how many parts a dimension is divided on the devices of this process."""
    places = [mesh.axis_names.index(axis) for axis in axes_of(entry)]
    mine = np.argwhere([device.process_index == jax.process_index() for device in mesh.devices.flat])
    found = [np.unravel_index(int(flat), mesh.devices.shape) for (flat,) in mine]
    return len({tuple(int(index[place]) for place in places) for index in found})


def _check_process_sharding(one: NamedSharding) -> None:
    """Raise PlanError unless each process holds rows of its own, and all that there is of the other dimensions."""
    processes = jax.process_count()
    for dimension, entry in enumerate(tuple(one.spec) or (None,)):
        parts = math.prod(one.mesh.shape[axis] for axis in axes_of(entry))
        wanted = parts_here(one.mesh, entry) * (processes if dimension == 0 else 1)
        if wanted != parts:
            where = "rows" if dimension == 0 else f"dimension {dimension}"
            raise PlanError(
                f"sharding {_describe(one)}: the {where} of a batch are in {parts} parts, of which this process of "
                f"{processes} has {parts_here(one.mesh, entry)}. Each process gives rows of its own, whole ones: let "
                "the first dimension's axes be those that lie across processes."
            )


def _check_batch_divisible(one: NamedSharding, plan: Plan) -> None:
    """Raise PlanError for the size of a plan's batches, where it is known, that its parts do not divide."""
    parts = parts_here(one.mesh, (tuple(one.spec) or (None,))[0])
    last = next((op for op in reversed(plan.ops) if isinstance(op, (*MAKE_BATCHES, *CHANGE_ROWS))), None)
    if isinstance(last, MAKE_BATCHES):
        op = last
        for size in op.full_sizes:
            if size % parts:
                raise PlanError(_not_divisible_message(one, f"the batch of {op.name!r}", (size,), 0, parts))
        fills = isinstance(op, GroupBy) and op.tail == "fill"
        if jax.process_count() > 1 and not (op.drop_remainder or fills):
            drop = 'tail="drop"' if isinstance(op, GroupBy) else "drop_remainder=True"
            raise PlanError(
                f"sharding: with {jax.process_count()} processes of JAX all must have batches of the same size, and "
                f"the last ones of an epoch may be smaller: say {drop} for {op.name!r}."
            )


def _check_fixed_padding(plan: Plan) -> None:
    """Raise PlanError where several processes would pad each its batches to lengths of their own."""
    last = plan.ops[-1] if plan.ops else None
    shapes = last.shapes if isinstance(last, PaddedBatch) else None
    fixed = shapes is not None and not any(None in shape for shape in shapes.values())
    if jax.process_count() > 1 and isinstance(last, (PaddedBatch, BucketByLength)) and not fixed:
        raise PlanError(
            f"sharding: with {jax.process_count()} processes of JAX all must have batches of one shape, and "
            f"{last.name!r} pads each batch to its own longest element: say "
            ".padded_batch(n, shapes={...}, drop_remainder=True)."
        )


def _not_divisible_message(one: NamedSharding, what: str, shape: Sequence[int], dimension: int, parts: int) -> str:
    has, do = "rows", f"Make batches of a multiple of {parts}, with drop_remainder=True"
    if dimension:
        has, do = f"in dimension {dimension}", f"Pad it to a multiple of {parts}, or do not divide this dimension"
    return (
        f"sharding {_describe(one)}: {what} has {shape[dimension]} {has}, which the {parts} parts on the devices of "
        "this "
        f"process do not divide. {do}."
    )


def _describe(one: NamedSharding) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in one.mesh.shape.items())
    return f"{one.spec} over the mesh ({axes})"
