"""Splits and positions: how one element of a source is named, everywhere.

A source is cut into splits, a split holds elements, and an element can yield several outputs (flat_map).
A position inside a split is one integer, ``element << OUTPUT_BITS | output``, so that any set of delivered
or missing data is a set of integer intervals (`pecan_ray.sampling.spans`).  An element has 2**OUTPUT_BITS positions;
flat_map shares them out evenly among its outputs, and so does another one behind it, so that each output is an
interval that is the same whoever computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from pecan_ray.errors import SourceError, strip_credentials

# Below `END` they leave 30 bits for elements of a split
# (docs/decisions/exactly-once.md#5-positions-and-spans).
OUTPUT_BITS = 32
"""An element has two to the power of so many positions."""
END = 1 << 62
"""Position after the last one of a split whose length is not known yet."""

LeaseKey: TypeAlias = tuple[int, int, int]
"""Name of a split within its epoch: (branch, repetition, split index)."""

Element = dict[str, Any]
"""Column name -> NumPy array, bytes, str or number."""

Array: TypeAlias = np.ndarray[Any, Any]

Columns = Mapping[str, Array]
"""Column name -> the values of consecutive elements, equally many of each: ``column[row]`` is an element's value."""


@dataclass(frozen=True)
class Split:
    """A readable piece of a source: a file, a byte range, a row range."""

    index: int
    """Place in the source's order; names the split for random numbers, the ledger and reports."""
    path: str = ""
    """File or object it lies in; empty for in-memory sources."""
    start: int = 0
    """First byte or row, as the source counts."""
    stop: int | None = None
    """One past the last byte or row; None: to the end."""
    elements: int | None = None
    """Number of elements, where known without reading."""
    files: tuple[str, ...] = ()
    """The file of each element, where every element is a file of its own."""
    payload: Any = None
    """What else the source needs to read it: row groups, archive members, object references."""
    version: str = ""
    """Of the file, as it was listed: another one is not read in its place.  Empty: any will do."""
    versions: tuple[str, ...] = ()
    """Of each of `files`, likewise."""
    about: int | None = None
    """Where `elements` is not known without reading: an estimate, which may be wrong."""
    whole: bool = False
    """An element is reached only through all those before it, as in a compressed file: one worker reads all of it."""

    @property
    def by_estimate(self) -> Split:
        """The split as if its estimate were its number of elements, where that is not known."""
        return self if self.elements is not None else replace(self, elements=self.about)

    @property
    def counted(self) -> int | None:
        """Number of elements, where it is known and not estimated."""
        return self.elements if self.about is None else None

    def file_of(self, element: int) -> str:
        """Return the path of the file that an element lies in; empty for in-memory sources."""
        return self.files[element] if element < len(self.files) else self.path

    def number_of(self, element: int) -> int:
        """Return an element's number in its file, where the split is a range of the file's elements."""
        return element + (self.start if self.path and self._counts_elements else 0)

    def where(self, element: int) -> str:
        """Say in words where an element lies, for error messages."""
        if element < len(self.files):
            return strip_credentials(self.files[element])
        if not self.path:
            return f"element {element} of split {self.index}"
        # Which number it has in the file is not known where other splits hold what lies before, by bytes.
        behind = "" if self._counts_elements or not self.start else f" behind byte {self.start}"
        return f"element {self.number_of(element)}{behind} of {strip_credentials(self.path)}"

    @property
    def _counts_elements(self) -> bool:
        """Return whether `start` and `stop` are numbers of elements: of bytes there are more than elements."""
        return self.stop is not None and self.counted == self.stop - self.start


class SplitLister(Protocol):
    """What lists the splits of a source."""

    def splits(self) -> Iterator[Split]:
        """Yield the splits in a fixed order, each as soon as it is known."""
        ...


@dataclass(frozen=True)
class KnownSplits:
    """The splits of a source, without what reads them."""

    known: tuple[Split, ...]

    def splits(self) -> Iterator[Split]:
        """Yield the splits."""
        yield from self.known


@runtime_checkable
class Source(Protocol):
    """What a pipeline reads from.  Instances are pickled to workers: they hold no open handle, no credential."""

    def splits(self) -> Iterator[Split]:
        """Yield the splits in a fixed order, each as soon as it is known (listing is lazy)."""
        ...

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the elements of a split from number `start` on, without reading what comes before if possible."""
        ...

    def num_elements(self) -> int | None:
        """Return the number of elements if it is known without reading the data."""
        ...

    def identity(self) -> str:
        """Return a string that changes when the data does (paths, sizes, modification times)."""
        ...


@runtime_checkable
class CountingSource(Source, Protocol):
    """A source that may know how many elements each of its splits holds, without reading them."""

    @property
    def counts_splits(self) -> bool:
        """Return whether the source counts elements as it lists: then all splits tell their `elements`."""
        ...


@runtime_checkable
class RowRangeSource(CountingSource, Protocol):
    """A source whose rows have numbers: split after split holds those from its `start` to its `stop`.

    Listing its splits reads nothing, and gives the same ones in each process.
    """

    rows_by_range: ClassVar[Literal[True]]


@runtime_checkable
class SeekingSource(Source, Protocol):
    """A source that may read any element of a split without those before it, and none behind it in vain."""

    @property
    def seeks(self) -> bool:
        """Return whether it does."""
        ...


@runtime_checkable
class SequentialSource(Source, Protocol):
    """A source that reads the files of its splits from the front, so that their beginnings can be fetched early."""

    sequential: ClassVar[Literal[True]]


@runtime_checkable
class OneSplitSource(Source, Protocol):
    """A source of which a process reads one split at a time: each runs a pipeline of its own, with its own buffers.

    An element is reached only through those before it, which are computed again.
    """

    one_split_at_a_time: ClassVar[Literal[True]]


@runtime_checkable
class ListedSource(Source, Protocol):
    """A source that knows its splits without reading anything, and holds functions or objects of the user's.

    The job lists its splits without these: unpickling them would import what they use, such as TensorFlow or torch.
    """

    def listed(self) -> KnownSplits:
        """Return its splits."""
        ...


def lister_of(source: Source) -> SplitLister:
    """Return what a job needs of a source to list its splits."""
    return source.listed() if isinstance(source, ListedSource) else source


@runtime_checkable
class ColumnarSource(Source, Protocol):
    """A source that holds its data by columns, and can give it so."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield what `read` yields, several consecutive elements at a time; nobody writes into the columns.

        Numbers, dates and arrays of one shape come in arrays of their dtype, all else in arrays of objects.
        """
        ...


@runtime_checkable
class IndependentElements(Source, Protocol):
    """A source that can read on behind an element that is broken: the next line, file or row group."""

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield what `read` yields, and in the place of an element that cannot be read its error.

        An error with a field `elements` stands for so many consecutive elements. An error that is raised ends the
        split.
        """
        ...


@runtime_checkable
class IndependentRows(ColumnarSource, Protocol):
    """A source that can read on behind broken rows, by columns."""

    def read_columns_past_errors(self, split: Split, start: int = 0) -> Iterator[Columns | SourceError]:
        """Yield what `read_columns` yields, and errors as `IndependentElements.read_past_errors` does."""
        ...


@runtime_checkable
class MaybeColumnar(Source, Protocol):
    """A source of which only looking at its data tells whether it can be given by columns."""

    @property
    def columnar(self) -> ColumnarSource | None:
        """The same splits and elements by columns; None where elements are unlike, or hold what no column can."""
        ...


def as_written(source: Any) -> Any:
    """Return the source that the user has written, of one that gives its elements by columns in its place."""
    return getattr(source, "whole", source)


def seeks(source: Source) -> bool:
    """Tell whether any element of a source is read alone."""
    written = as_written(source)
    return isinstance(written, SeekingSource) and written.seeks


def as_columnar(source: Source) -> ColumnarSource | None:
    """Return a source that gives the same by columns; None where there is none."""
    if isinstance(source, MaybeColumnar):
        return source.columnar
    return source if isinstance(source, ColumnarSource) else None


@dataclass(frozen=True)
class Lease:
    """A split, or what is still missing of it, as given to one worker."""

    epoch: int
    split: Split
    spans: tuple[tuple[int, int], ...] = ((0, END),)
    """Intervals of positions to deliver; the rest of the split was delivered already."""
    branch: int = 0
    """Which of the plan's sources the split belongs to."""
    pass_index: int = 0
    """Which pass of a `repeat` it belongs to."""
    passed: bool = False
    """A worker has had all of it behind the filters, and gave it back: it passes them unasked, since one that holds a
    state of its own would answer differently the second time."""
    row: int | None = None
    """Where rows come in order: which element of the epoch the first one of the split is, or would be."""
    place: int | None = None
    """Where rows are joined: the number of the split in the epoch."""
    starts_epoch: bool = False
    """Where rows are joined: whether nothing of the epoch, or of what is left of it, lies before the lease."""
    left_out: bool = False
    """Where rows are joined: nobody can make what it holds, so the worker only says that it yields nothing."""
    ends_run: bool = False
    """Behind it the engine gives up rows that fill no batch, and goes on with other leases."""

    @property
    def key(self) -> LeaseKey:
        """Name of the split within its epoch: (branch, repetition, split index)."""
        return (self.branch, self.pass_index, self.split.index)

    @property
    def as_listed(self) -> Lease:
        """The lease without what is only estimated of its split."""
        return self if self.split.about is None else replace(self, split=replace(self.split, elements=None))


@runtime_checkable
class RandomSource(Source, Protocol):
    """A source that draws random numbers by itself: which ones depends on the job's seed and the pass."""

    def with_seed(self, seed: int) -> RandomSource:
        """Return the source as a job of a seed reads it."""
        ...

    def of_lease(self, lease: Lease) -> Source:
        """Return the source as it is read in the pass of a lease."""
        ...


def with_seed(source: Source, seed: int) -> Source:
    """Return a source as a job of a seed reads it."""
    return source.with_seed(seed) if isinstance(source, RandomSource) else source


def of_lease(source: Source, lease: Lease) -> Source:
    """Return a source as it is read in the pass of a lease."""
    return source.of_lease(lease) if isinstance(source, RandomSource) else source


@dataclass(frozen=True)
class Origin:
    """Where an element comes from, as far as its random numbers depend on it."""

    epoch: int
    repetition: int
    branch: int
    """Which source of the plan."""
    split: int
    element: int
    output: int = 0
    """Which output of the element it is, behind flat_map: the first of its positions."""


def origin_of(lease: Lease, element: int, output: int = 0) -> Origin:
    """Return the origin of an element of a lease."""
    return Origin(lease.epoch, lease.pass_index, lease.branch, lease.split.index, element, output)


@dataclass(frozen=True)
class AtWork:
    """What is being done, and with which data."""

    op: str
    origin: Origin | None = None
    """The element, where it is known to be this one alone."""
    reads: bool = False
    """It is being read: nobody comes to what lies behind it."""
