"""Parquet's INT96: moments of Spark, Hive and Impala, as nanoseconds of a day and the number of the day.

Arrow has 64 bits for a moment.  Counted in nanoseconds they reach from 1677 to 2262, and Arrow lets what lies beyond
wrap around; in microseconds they reach everywhere, and Arrow cuts nanoseconds off.  Neither is said.  Columns of INT96
are therefore read in both units: where these differ, the wanted one has not the moment that is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import parquet as pq

from pecan_ray.errors import PlanError
from pecan_ray.plan.splits import Array
from pecan_ray.sources.arrow import leaves_of
from pecan_ray.sources.parquet_rows import selected_columns

Int96Unit: TypeAlias = Literal["us", "ns"]
INT96_UNITS: tuple[Int96Unit, ...] = ("us", "ns")
NS_PER_US = 1000  # nanoseconds of a microsecond


def exact_batches(
    file: Any, metadata: Any, unit: Int96Unit, names: Sequence[str] | None, path: str, **how: Any
) -> Iterator[Any]:
    """Yield a file's batches, with INT96 in a unit; raise PlanError for a moment that the unit does not hold."""
    shared = pa.PythonFile(file, mode="r")  # its lock keeps the seek and the read of two readers together
    parquet = pq.ParquetFile(
        shared, metadata=metadata, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit=unit
    )
    places = selected_columns(metadata, names)
    batches = _batches(parquet, places, **how)
    columns = map(metadata.schema.column, places)
    if not any(column.physical_type == "INT96" for column in columns):
        yield from batches
        return
    # Read twice, so twice the work, but real dates are right:
    # docs/decisions/values.md#97-values-as-they-are-stored.
    other = INT96_UNITS[1 - INT96_UNITS.index(unit)]
    second = pq.ParquetFile(shared, metadata=metadata, coerce_int96_timestamp_unit=other)
    pairs = zip(parquet.schema_arrow, second.schema_arrow, strict=True)
    # The unit is the only difference between the readers, so what differs holds INT96.
    held = [one.name for one, two in pairs if one.type != two.type]
    asked = sorted(set(places) & set(selected_columns(metadata, held)))
    for batch, again in zip(batches, _batches(second, asked, **how), strict=True):
        for name in again.schema.names:
            _check(batch.column(name), again.column(name), unit, name, path)
        yield batch


def _batches(parquet: Any, places: Sequence[int], *, row_groups: Sequence[int], **how: Any) -> Iterator[Any]:
    """Yield the batches of some row groups: one group after the other where Arrow cannot join their dictionaries.

    Each row group has dictionaries of its own, and those inside of lists and structures are not made one.
    """
    kinds = [field.type for field in parquet.schema_arrow]
    apart = any(_has_dictionary(kind) and not pa.types.is_dictionary(kind) for kind in kinds)
    for together in [[group] for group in row_groups] if apart else [row_groups]:
        # By places: of a structure "s" and a column "s.a" the names are not told apart.
        yield from parquet.reader.iter_batches(row_groups=together, column_indices=places, **how)


def _has_dictionary(kind: Any) -> bool:
    """Tell whether a type is, or has inside, a dictionary."""
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(_has_dictionary(part) for part in parts)


def _check(read: Any, again: Any, unit: Int96Unit, name: str, path: str) -> None:
    """Raise PlanError unless a column that is read in two units has the same moments."""
    for one, other in zip(_moments(read), _moments(again), strict=True):
        us, ns = (one, other) if unit == "us" else (other, one)
        if unit == "us":
            with np.errstate(over="ignore"):
                differs = us * NS_PER_US != ns  # both wrap around alike
            lacks, remedy = "nanoseconds, which microseconds do not hold", "ns"
        else:
            differs = ns // NS_PER_US != us
            lacks, remedy = "a moment before 1677 or after 2262, which 64 bits of nanoseconds do not hold", "us"
        if differs.any():
            raise PlanError(
                f"Column {name!r} of {path} (INT96) has {lacks}: {us[differs.argmax()].astype('M8[us]')}. Say "
                f"Parquet(..., int96_unit={remedy!r}).",
                path=path,
                column=name,
            )


def _moments(array: Any) -> Iterator[Array]:
    """Yield the moments inside of a column as integers, 0 for a null."""
    for leaf in leaves_of(array):
        if pa.types.is_timestamp(leaf.type):
            yield pc.fill_null(leaf.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
