"""Data that the program holds already: lists of elements, and arrays."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import io
import itertools
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from pecan_ray.by_value import SHARED_BYTES, SharedArray, name_here
from pecan_ray.errors import PlanError
from pecan_ray.plan.exact_arrays import exact_array
from pecan_ray.plan.fingerprint import canonical_text, tensor_text
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.copies import own_copy
from pecan_ray.sources.files import check_positive
from pecan_ray.sources.packed_items import PackedItems, items_between, packed

MIN_SPLITS = 16
"""Splits at least, as far as there are rows: several workers have some each."""
MAX_SPLIT_ROWS = 4096
"""Rows of a split: a lease of them is not most of the data."""
COLUMNS_BYTES = 1 << 18
"""Items are put together to columns of about so many bytes: they stay in a processor's cache."""
ORDERS = ("sampler", "batch_sampler", "shuffle")
"""Arguments of a pipeline that somebody may give to a source: `Arrays` takes them for columns."""
PLAIN_KINDS = frozenset({int, float, str, bytes, *(np.dtype(code).type for code in "?bhilqBHILQefdFD")})
"""Types of which a column gives each value back as it was."""


def row_ranges(rows: int, split_rows: int | None) -> Iterator[Split]:
    """Yield row ranges of `split_rows`; None: at least 16 of them, as far as there are so many rows."""
    step = split_rows or max(1, min(rows // MIN_SPLITS, MAX_SPLIT_ROWS))
    for index, start in enumerate(range(0, rows, step)):
        stop = min(start + step, rows)
        yield Split(index=index, start=start, stop=stop, elements=stop - start)


@dataclass(frozen=True, eq=False)
class Items:
    """Elements from a list of dicts, or of single values, which come in the column ``item``.

    A list of more than 1 MiB is put once on each node, and its elements are unpickled when they are read: for very
    much data use files, or `RayDataset`.  Raises PlanError if dicts and other values are mixed.
    """

    items: Sequence[Any] = field(repr=False)
    split_rows: int | None = field(default=None, kw_only=True)
    """Elements in a split; None: so that there are at least 16 splits."""
    counts_splits: ClassVar[bool] = True
    rows_by_range: ClassVar[Literal[True]] = True
    seeks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # A list of its own, which nobody makes longer or shorter later.
        object.__setattr__(self, "items", list(self.items))
        if self.split_rows is not None:
            check_positive(split_rows=self.split_rows)
        dicts = sum(isinstance(item, Mapping) for item in self.items)
        if dicts not in (0, len(self.items)):
            first = next(
                n
                for n, item in enumerate(self.items)
                if isinstance(item, Mapping) != isinstance(self.items[0], Mapping)
            )
            raise PlanError(
                f"Items holds {dicts} dicts among {len(self.items)} values (see item {first}): use one kind."
            )

    def splits(self) -> Iterator[Split]:
        """Yield row ranges."""
        return row_ranges(len(self.items), self.split_rows)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the elements of a row range as copies, so that functions may write into them."""
        return map(_own_columns, items_between(self.items, split.start + start, split.stop))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent: a large list as arrays that are put apart, and what was found by looking at it."""
        # It holds this object, and each process can make it anew.
        state = {name: value for name, value in self.__dict__.items() if name != "columnar"}
        items = None if isinstance(self.items, PackedItems) else packed(self.items, name_here(self))
        if items is not None:
            # Before it is packed, because all of a packed list would have to be unpickled for it.
            columnar = self._by_columns()
            state |= {"items": items, "columns": None if columnar is None else columnar.names}
        return state

    @functools.cached_property
    def columnar(self) -> ItemsByColumns | None:
        """The same elements by columns; None unless all have the same ones, each of one type, shape and dtype.

        That can be numbers and arrays of numbers of NumPy, and Python's numbers, texts and bytes.
        """
        if isinstance(self.items, PackedItems):
            names: tuple[str, ...] | None = self.__dict__["columns"]
            return None if names is None else ItemsByColumns(self, names)
        return self._by_columns()

    def _by_columns(self) -> ItemsByColumns | None:
        if not self.items:
            return None
        one = self.items[0]
        names = list(one) if type(one) is dict else ["item"]
        if type(one) is dict and any(type(item) is not dict or item.keys() != one.keys() for item in self.items):
            return None
        if not names or isinstance(one, Mapping) != (type(one) is dict):
            return None
        # Any other list has its elements one by one: docs/decisions/sources.md#80-lists-by-columns.
        alike = all(_have_one_type(values) for values in (_column(self.items, name) for name in names))
        return ItemsByColumns(self, tuple(names)) if alike else None

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the elements with some numbers, as copies."""
        return (_own_columns(self.items[index]) for index in indices)

    def num_elements(self) -> int:
        """Return the length of the list."""
        return len(self.items)

    def identity(self) -> str:
        """Return a digest of the pickled items."""
        digest = hashlib.sha256(repr(self.split_rows).encode())
        for pickled in _pickles_of(self.items):
            digest.update(pickled)
        return f"Items:{digest.hexdigest()}"


@dataclass(frozen=True, eq=False)
class ItemsByColumns:
    """Elements of a list that have the same columns, several at a time."""

    whole: Items
    names: tuple[str, ...]
    counts_splits: ClassVar[bool] = True

    def splits(self) -> Iterator[Split]:
        """Yield those of the list."""
        return self.whole.splits()

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield elements one by one."""
        return self.whole.read(split, start)

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the columns of a range, some rows at a time: none is as long as the data."""
        items = items_between(self.whole.items, split.start + start, split.stop)
        first = list(itertools.islice(items, 1))
        if not first:
            return
        # Python's own objects count nothing: a column holds references to them.
        sizes = [getattr(_column(first, name)[0], "nbytes", 0) for name in self.names]
        rows = max(1, min(MAX_SPLIT_ROWS, COLUMNS_BYTES // max(1, sum(sizes))))
        rest = itertools.chain(first, items)
        while some := list(itertools.islice(rest, rows)):
            yield {name: _put_together(_column(some, name)) for name in self.names}

    def num_elements(self) -> int:
        """Return the length of the list."""
        return self.whole.num_elements()

    def identity(self) -> str:
        """Return that of the list."""
        return self.whole.identity()


def _own_columns(item: Any) -> Element:
    """Return an item as an element that can be changed."""
    columns = item if type(item) is dict or isinstance(item, Mapping) else {"item": item}
    return {name: own_copy(value) for name, value in columns.items()}


def _column(items: Sequence[Any], name: str) -> list[Any]:
    """Return a column of items that are all dicts with it, or none."""
    return [item[name] for item in items] if type(items[0]) is dict else list(items)


def _have_one_type(values: list[Any]) -> bool:
    """Tell whether values can be one column, from which each comes out as it was."""
    (kind, *others) = set(map(type, values))
    if others:
        return False
    if kind is np.ndarray:
        dtype, shape = values[0].dtype, values[0].shape
        # Stacking would turn other byte orders into the native one, and arrays without dimensions into
        # scalars.
        numbers = dtype.kind in "biufcmM" and dtype.isnative and len(shape) > 0
        return numbers and all(value.dtype == dtype and value.shape == shape for value in values)
    return kind in PLAIN_KINDS


def _put_together(values: list[Any]) -> np.ndarray[Any, Any]:
    """Return a column of values that are alike."""
    one = values[0]
    if isinstance(one, np.ndarray):
        return np.stack(values)
    if isinstance(one, np.generic):
        return np.array(values)
    # `np.array(values)` would make numbers and texts of NumPy of them.
    column = np.empty(len(values), object)
    column[:] = values
    return column


@dataclass(frozen=True, eq=False, init=False)
class Arrays:
    """Elements from arrays of equal length, given as one dict or by keyword; row i of each makes element i.

    One table does as well: of pandas, polars or Arrow; its values are those that `Parquet` gives.

    Arrays of numbers of more than 1 MiB are put once on each node, whose workers map them: for very much data use
    files, or `RayDataset`.  Raises PlanError if there are no arrays, or their lengths differ.
    """

    arrays: dict[str, np.ndarray[Any, Any]] = field(repr=False)
    split_rows: int | None = None
    counts_splits: ClassVar[bool] = True
    rows_by_range: ClassVar[Literal[True]] = True
    seeks: ClassVar[bool] = True

    def __init__(
        self, columns: Mapping[str, Any] | Any = None, /, *, split_rows: int | None = None, **arrays: Any
    ) -> None:
        if split_rows is not None:
            check_positive(split_rows=split_rows)
        if columns is not None and not isinstance(columns, Mapping):
            from pecan_ray.sources.tables import arrays_of_table  # which imports Arrow

            columns = arrays_of_table(columns)
        if twice := sorted(set(columns or ()) & set(arrays)):
            raise PlanError(f"Arrays: {twice[0]!r} is given twice, in a dict or table and by keyword: leave one out.")
        given = {**(columns or {}), **arrays}
        held = {name: _as_array(name, value) for name, value in given.items()}
        _check_not_masked(given)
        _check_rows(held)
        object.__setattr__(self, "arrays", held)
        object.__setattr__(self, "split_rows", split_rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent: large arrays of numbers by names, under which they are put apart."""
        arrays: dict[str, Any] = dict(self.arrays)
        for name, array in self.arrays.items():
            by_path = isinstance(array, np.memmap)  # each node maps its file
            if array.nbytes >= SHARED_BYTES and not array.dtype.hasobject and not by_path:
                # Once on each node, not once in each worker:
                # docs/decisions/sources.md#132-arrays-once-on-each-node.
                arrays[name] = SharedArray(f"{name_here(self)}:{name}", array)
        return {**self.__dict__, "arrays": arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = {name: one.array if isinstance(one, SharedArray) else one for name, one in state["arrays"].items()}
        self.__dict__.update(state, arrays=arrays)

    def splits(self) -> Iterator[Split]:
        """Yield row ranges."""
        return row_ranges(self.num_elements(), self.split_rows)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the rows of a range as copies, so that functions may write into them."""
        return self.rows_at(range(split.start + start, self.num_elements() if split.stop is None else split.stop))

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the rows with some numbers, as copies."""
        return ({name: _own(array[row]) for name, array in self.arrays.items()} for row in indices)

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the columns of a range, numbers as views of the arrays."""
        stop = self.num_elements() if split.stop is None else split.stop
        if split.start + start < stop:
            yield {name: _own_objects(array[split.start + start : stop]) for name, array in self.arrays.items()}

    def num_elements(self) -> int:
        """Return the length of the arrays."""
        return len(next(iter(self.arrays.values())))

    def identity(self) -> str:
        """Return a digest of names, dtypes, shapes and contents."""
        digest = hashlib.sha256(repr(self.split_rows).encode())
        for name, array in self.arrays.items():
            digest.update(repr((name, array.dtype.str, array.shape)).encode())
            # By ranges, because `tobytes` makes a copy.
            for split in row_ranges(len(array), None):
                rows = array[split.start : split.stop]
                digest.update(pickle.dumps(rows) if array.dtype.hasobject else rows.tobytes())
        return f"Arrays:{digest.hexdigest()}"


def _as_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return exact_array(value)
    except OverflowError as error:
        raise PlanError(f"Arrays: no array can be made of {name}: {error}.") from error
    except ValueError as error:
        raise PlanError(
            f"Arrays: no array can be made of {name} ({error}). Its rows have unequal shapes: give a list of elements "
            "to Items, or an array of dtype object."
        ) from error


def _own(value: Any) -> Any:
    """Return a copy of a value that can be changed."""
    return own_copy(value)


def _own_objects(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return rows of which no value that functions may change belongs to the source: a batch holds objects as such."""
    if rows.dtype == object and rows.ndim == 1:
        return np.fromiter((_own(value) for value in rows), object, len(rows))
    return rows.copy() if rows.dtype.kind in "OV" else rows


def _check_not_masked(given: Mapping[str, Any]) -> None:
    masked = [name for name, value in given.items() if isinstance(value, np.ma.MaskedArray)]
    if masked:
        raise PlanError(
            f"Arrays: {', '.join(masked)} is a masked array, whose mask would be lost. Give "
            f"{masked[0]}.filled(...), and numpy.ma.getmaskarray({masked[0]}) as an array of its own."
        )


def _check_rows(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raise PlanError unless there are arrays, of equally many rows."""
    if not arrays:
        raise PlanError("Arrays needs at least one array: Arrays(image=images, label=labels).")
    flat = [name for name, array in arrays.items() if array.ndim == 0]
    if flat:
        order = next((name for name in flat if name in ORDERS), "")
        asked = f" An order is the pipeline's: PecanPipeline(Arrays(...), {order}=...)." if order else ""
        raise PlanError(f"Arrays: {', '.join(flat)} has no rows; every array needs a first dimension.{asked}")
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name}: {len(array)}" for name, array in arrays.items())
        raise PlanError(f"Arrays must have equal lengths, but got {lengths}.")


def _pickles_of(items: Iterable[Any]) -> Iterator[bytes]:
    """Yield what stands for each of many values: their pickles, which are equal for equal tensors too."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    for item in items:
        if any(isinstance(one, (set, frozenset)) for one in (item.values() if type(item) is dict else [item])):
            # Sets of texts have another order in each process.
            yield canonical_text(item).encode(errors="surrogatepass")
        elif kind is None:
            yield pickle.dumps(item, protocol=5)
        else:
            written = io.BytesIO()
            pickler = pickle.Pickler(written, protocol=5)
            pickler.dispatch_table = {**copyreg.dispatch_table, kind: _reduced_tensor}
            pickler.dump(item)
            yield written.getvalue()


def _reduced_tensor(tensor: Any) -> Any:
    text = tensor_text(tensor)
    return tensor.__reduce_ex__(5) if text is None else (str, (text,))
