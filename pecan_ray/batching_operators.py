"""The methods of `PecanPipeline` that put elements together to batches, and take them apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
from pecan_ray.peer_names import explain_foreign_arguments
from pecan_ray.plan.arguments import a_function, buckets, positive
from pecan_ray.plan.grouping import BucketByLength, GroupBy, Tail
from pecan_ray.plan.operators import Batch, Collate, Function, Gather, Op, PaddedBatch, Plan, Unbatch
from pecan_ray.plan.option_types import of_kind
from pecan_ray.plan.own_attributes import called
from pecan_ray.plan.renaming import free_name

if TYPE_CHECKING:
    from typing_extensions import Self


@explain_foreign_arguments
class BatchingMethods(ABC):
    """Each returns a new pipeline, with one operator more."""

    _plan: Plan
    _name: str
    _engine: EngineName

    @abstractmethod
    def _with(self, plan: Plan) -> Self:
        """Return the pipeline with another plan."""

    @abstractmethod
    def _then(self, op: Op) -> Self:
        """Return the pipeline with one more operator at its end."""

    def batch(self, size: int, drop_remainder: bool = False, *, collate: Function | None = None) -> Self:
        """Stack `size` elements into a batch with a leading dimension; images and tensors become arrays.

        Args:
            size: elements in a batch.
            drop_remainder: leave out what does not fill a batch at the end of an epoch.
            collate: a function that takes the list of elements and returns the batch, a dict of anything that can be
                pickled: lists of arrays of unequal shapes, graphs, padded tokens. Workers run it; one with a parameter
                `rng` gets a generator for each batch (python engine).
        """
        size = positive("batch", size)
        if collate is None:
            return self._then(Batch(name=self._unique("batch"), size=size, drop_remainder=drop_remainder))
        if self._engine != "python":
            raise PlanError(
                f"batch(collate=...): the {self._engine} engine gives no function a list of elements: use "
                'engine="python", or padded_batch.'
            )
        fn = a_function("batch(collate=...)", collate)
        element_lists = self._then(Gather(name=self._unique("batch"), size=size, drop_remainder=drop_remainder))
        return element_lists._collated(fn)

    def _collated(self, fn: Function) -> Self:
        """Make batches of lists of elements."""
        return self._then(Collate(name=self._unique(called(fn, "collate")), fn=fn))

    def padded_batch(
        self,
        size: int,
        *,
        padding: Any = 0,
        shapes: Mapping[str, tuple[int | None, ...]] | None = None,
        same_shape: Sequence[str] = (),
        drop_remainder: bool = False,
    ) -> Self:
        """Stack elements of unequal shapes, lists too, padded with `padding` (a value, or one per column).

        Columns under `same_shape` are padded to one shape, the largest of them all, so that a loop can put one behind
        the other: ``same_shape=("chosen", "rejected")``.
        """
        size, same_shape = positive("padded_batch", size), self._padded_together("padded_batch", same_shape)
        return self._then(
            PaddedBatch(
                name=self._unique("padded_batch"),
                size=size,
                drop_remainder=drop_remainder,
                padding=padding,
                shapes=shapes,
                same_shape=same_shape,
            )
        )

    def bucket_by_length(
        self,
        boundaries: Sequence[int],
        *,
        sizes: int | Sequence[int],
        length: Function | str,
        padding: Any = 0,
        same_shape: Sequence[str] = (),
        drop_remainder: bool = False,
    ) -> Self:
        """Batch elements of similar length: bucket i takes lengths below ``boundaries[i]``, the last one the rest.

        `length` is a column, or a function of the element; `sizes` a batch size, or one per bucket; `padding` and
        `same_shape` as of `padded_batch`.
        """
        same_shape = self._padded_together("bucket_by_length", same_shape)
        length = length if isinstance(length, str) else a_function("bucket_by_length(length=...)", length)
        bounds, per_bucket = buckets(boundaries, sizes)
        return self._then(
            BucketByLength(
                name=self._unique("bucket_by_length"),
                length=length,
                boundaries=bounds,
                sizes=per_bucket,
                drop_remainder=drop_remainder,
                padding=padding,
                same_shape=same_shape,
            )
        )

    def _padded_together(self, where: str, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that are padded to one shape."""
        named: tuple[str, ...] = tuple(of_kind(f"{where}(same_shape=...)", columns, Sequence[str]))
        if named and self._engine != "python":
            raise PlanError(f"{where}(same_shape=...) needs engine='python', but this pipeline's is {self._engine!r}.")
        return named

    def group_by(
        self,
        key: Function | str,
        size: int | Function,
        *,
        tail: Tail = "keep",
        collate: Function | None = None,
    ) -> Self:
        """Batch elements with equal keys together (python engine).

        Each worker keeps less than a batch of each key. Elements that fill no batch when an epoch ends go to one
        worker, which makes batches of those of all workers, equally many for each trainer: see `tail`.  To get there it
        halves a batch where need be.

        Args:
            key: a column that holds a number or a text, or a function of the element that returns one or a tuple.
            size: elements in a batch, or a function of the key that returns their number.
            tail: what becomes of the elements of a key that fill no batch when an epoch ends. "keep": a smaller batch.
                "fill": a batch of full size, which holds its elements again, from the first one on, behind all of them.
                "merge": batches of several keys, each at most as large as the smallest size of its keys; where all
                keys have one size, only the last may be smaller. "drop": nothing, and `report().left_out_elements`
                counts them.
            collate: a function that takes the list of elements and returns the batch, as that of `batch`.
        """
        if self._engine != "python":
            raise PlanError(
                f'group_by: the {self._engine} engine has no group_by: use engine="python", or bucket_by_length.'
            )
        grouped = self._then(
            GroupBy(
                name=self._unique("group_by"),
                key=key if isinstance(key, str) else a_function("group_by(key=...)", key),
                size=a_function("group_by(size=...)", size) if callable(size) else positive("group_by(size=...)", size),
                tail=tail,
                drop_remainder=tail == "drop",
                lists=collate is not None,
            )
        )
        return grouped if collate is None else grouped._collated(a_function("group_by(collate=...)", collate))

    def unbatch(self, *, same_rows: bool = False) -> Self:
        """Split batches into elements again.

        A function between `batch` and `unbatch` may drop, add, merge or sort rows, so one worker runs such a pipeline.
        With `same_rows` many do: each row of what it returns is made of the element in the same row, and of no other.
        """
        return self._then(Unbatch(name=self._unique("unbatch"), same_rows=same_rows))

    # --- inside --------------------------------------------------------------------------------------------

    def _unique(self, name: str) -> str:
        return free_name(name, {op.name for op in self._plan.all_ops()})

    def _given_or_unique(self, name: str | None, fn: Function, method: str) -> str:
        """Return the name that the user has given, which is kept or refused, or else one for the function."""
        name = of_kind("name", name, str | None)
        if not name:
            return self._unique(called(fn, method))
        if name in (op.name for op in self._plan.all_ops()):
            raise PlanError(f"the name {name!r} is taken by another operator of the pipeline {self._name}.")
        return name
