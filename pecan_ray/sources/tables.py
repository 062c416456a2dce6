"""Tables that the program holds already, as arrays by column: of pandas, Arrow, and others that give Arrow's stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pecan_ray.errors import PlanError
from pecan_ray.plan.splits import Array
from pecan_ray.sources.arrow import column_of, objects

NUMBERS = "biufcmM"
"""Kinds of NumPy's dtypes that columns of pandas hold as they are."""


def arrays_of_table(table: Any) -> dict[str, Array]:
    """Return the columns of a table by name; raises PlanError for what is none, and for names that cannot be.

    Values are those that `Parquet` gives for such columns.  Columns of numbers in pandas come as their arrays, and
    columns of objects as they are.
    """
    if type(table).__module__.partition(".")[0] == "pandas":
        return _of_pandas(table)
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif not isinstance(table, pa.Table):
        if not hasattr(table, "__arrow_c_stream__"):
            raise PlanError(
                "Arrays needs arrays by name, or a table of pandas, polars or Arrow, but got "
                f"{type(table).__name__}: Arrays(image=images, label=labels)."
            )
        table = pa.table(table)
    _check_names(table.column_names)
    return {name: _read(name, table.column(name)) for name in table.column_names}


def _of_pandas(frame: Any) -> dict[str, Array]:
    if not hasattr(frame, "columns"):
        raise PlanError(f"Arrays: a {type(frame).__name__} of pandas is no table: say series.to_frame('name').")
    index = frame.index
    if index.nlevels > 1 or index.name is not None or index.dtype.kind not in "iu":
        raise PlanError(
            f"Arrays: the table's index ({', '.join(map(str, index.names))}) would be lost: pass table.reset_index(), "
            "or table.reset_index(drop=True)."
        )
    names = list(frame.columns)
    _check_names(names)
    return {name: _column(name, frame[name]) for name in names}


def _read(name: str, column: Any) -> Array:
    try:
        return column_of(_whole(column))
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise PlanError(f"Arrays: column {name!r} ({column.type}): {error}.", column=name) from error


def _column(name: str, series: Any) -> Array:
    if type(series.dtype).__name__ == "SparseDtype":  # Arrow has no such columns
        series = series.sparse.to_dense()
    if isinstance(series.dtype, np.dtype):
        values = series.to_numpy()
        return values if values.dtype.kind in NUMBERS else objects(list(values))
    # `from_pandas`: what pandas has for a missing value is a null.
    array = pa.array(series, from_pandas=True)
    if isinstance(array.type, pa.ExtensionType):  # periods and intervals: their storage is not what they mean
        return objects(list(series))
    return _read(name, array)


def _whole(column: Any) -> Any:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _check_names(names: Sequence[Any]) -> None:
    irregular = [name for name in names if not isinstance(name, str)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if irregular:
        raise PlanError(f"Arrays: columns must be named by texts, but got {irregular[0]!r}: table.rename(columns=str).")
    if twice:
        raise PlanError(f"Arrays: the table has the column {twice[0]!r} twice: rename one.")
