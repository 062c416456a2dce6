"""Map-style data sets, which have a length and `__getitem__`: their indices are what is dealt out to workers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pecan_ray.engines.collate import collate
from pecan_ray.engines.foreign import as_array, is_tensor
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.nested import BatchRows, finished
from pecan_ray.errors import PlanError
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.operators import ELEMENTS
from pecan_ray.plan.splits import Element, Lease, Split
from pecan_ray.sources.memory import row_ranges

LOT = 32
"""Rows that are asked for at once.  Chosen: some are images, which are held until they are taken."""
_reseeded: list[str] = []
"""Libraries whose generators of random numbers were seeded in this process."""


@dataclass(frozen=True, eq=False)
class DatasetIndices:
    """The indices of a data set, as the column ``index``."""

    count: int
    split_rows: ClassVar[int | None] = None
    counts_splits: ClassVar[bool] = True
    rows_by_range: ClassVar[Literal[True]] = True
    seeks: ClassVar[bool] = True

    def splits(self) -> Iterator[Split]:
        """Yield ranges of indices."""
        return row_ranges(self.count, None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the indices of a range."""
        for index in range(split.start + start, self.count if split.stop is None else split.stop):
            yield {"index": index}

    def num_elements(self) -> int:
        """Return the length of the data set."""
        return self.count

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield some indices."""
        return ({"index": int(index)} for index in indices)

    def identity(self) -> str:
        """Return the length: what lies at an index is what the function that fetches it says."""
        return f"DatasetIndices:{self.count}"


class HeldDataset:
    """A data set and how its samples become elements, as it travels to workers."""

    def __init__(self, dataset: Any, columns: Sequence[str] | None) -> None:
        self.dataset = dataset
        self.columns = tuple(columns) if columns is not None else None
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise PlanError(f"from_torch_dataset(columns={list(self.columns)}): two columns have the same name.")
        self._at_home = True
        """It is in the process in which the pipeline was written, whose random numbers are the user's."""

    @property
    def __wrapped__(self) -> tuple[Any, ...]:
        """What stands for it where pipelines are compared: data sets of Hugging Face have a digest of their own."""
        return getattr(self.dataset, "_fingerprint", None) or self.dataset, self.columns

    def __reduce__(self) -> tuple[Any, ...]:
        return _held, (self.dataset, self.columns)

    def fetch(self, element: Element) -> Element:
        """Return the sample of an index."""
        self._reseed()
        return self._element(self.dataset[element["index"]])

    def fetch_all(self, batch: Element) -> Element:
        """Return the samples of the indices of a batch."""
        return {ELEMENTS: [self.fetch(element) for element in batch[ELEMENTS]]}

    def rows(self, wanted: Iterable[int]) -> Iterator[Element]:
        """Yield the samples of some indices, of which the data set gives several at once."""
        self._reseed()
        numbers = map(int, wanted)
        while indices := list(itertools.islice(numbers, LOT)):
            samples = list(self.dataset.__getitems__(indices))
            if len(samples) != len(indices):
                raise PlanError(
                    f"{type(self.dataset).__name__}.__getitems__ was asked for {len(indices)} samples, from index "
                    f"{indices[0]} on, and gave {len(samples)}: it must give one for each index."
                )
            yield from map(self._element, samples)

    def _element(self, sample: Any) -> Element:
        if sample is None:
            raise PlanError(f"a sample of {type(self.dataset).__name__} is None: its __getitem__ returns nothing.")
        if isinstance(sample, Mapping):
            if self.columns is not None and {*self.columns} != {*map(str, sample)}:
                raise PlanError(
                    f"from_torch_dataset(columns={list(self.columns)}): samples of {type(self.dataset).__name__} are "
                    f"dicts, whose keys are the columns: {sorted(map(str, sample))}. Leave columns out."
                )
            return {str(name): _value(value) for name, value in sample.items()}
        values = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
        names = self.columns or getattr(sample, "_fields", None) or tuple(map(str, range(len(values))))
        if len(names) != len(values):
            raise PlanError(
                f"from_torch_dataset(columns={list(names)}): a sample of {type(self.dataset).__name__} has "
                f"{len(values)} values; name as many columns."
            )
        return dict(zip(names, map(_value, values), strict=True))

    def _reseed(self) -> None:
        """Give a worker's process random numbers of its own: torch begins with the same ones in every process."""
        torch = sys.modules.get("torch")
        if not self._at_home and torch is not None and "torch" not in _reseeded:
            _reseeded.append("torch")
            torch.seed()


def _held(dataset: Any, columns: tuple[str, ...] | None) -> HeldDataset:
    held = HeldDataset(dataset, columns)
    held._at_home = False
    return held


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """The samples of a data set that gives several at once by ``__getitems__``."""

    held: HeldDataset = field(repr=False)
    split_rows: ClassVar[int | None] = None
    counts_splits: ClassVar[bool] = True

    def splits(self) -> Iterator[Split]:
        """Yield ranges of indices."""
        return row_ranges(self.num_elements(), None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the samples of a range."""
        stop = self.num_elements() if split.stop is None else split.stop
        return self.held.rows(range(split.start + start, stop))

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the samples of some indices."""
        return self.held.rows(indices)

    def num_elements(self) -> int:
        """Return the length of the data set."""
        return len(self.held.dataset)

    def identity(self) -> str:
        """Return what the data set holds, spelled out."""
        return f"DatasetRows:{canonical_text(self.held)}"


def stacked(elements: list[Element]) -> Element:
    """Return samples as a batch, as `PecanPipeline.batch` puts elements together."""
    split = Split(0, files=tuple(f"sample {number} of the batch" for number in range(len(elements))))
    items = [Item(element, [], Lease(0, split), number) for number, element in enumerate(elements)]
    return finished(collate(items, "collate"), BatchRows("collate", items[0], items))


def check_map_style(dataset: Any) -> None:
    """Raise PlanError for what has no length, or no `__getitem__`."""
    kind = type(dataset).__name__
    missing = [name for name in ("__getitem__", "__len__") if not hasattr(type(dataset), name)]
    if missing or isinstance(dataset, (str, bytes)):
        raise PlanError(
            f"from_torch_dataset needs a map-style data set, with __getitem__ and __len__, but {kind} "
            f"{'has no ' + ' and no '.join(missing) if missing else 'is a text'}. What can only be iterated over "
            "cannot be divided among workers: read its files by pecan_ray.sources, or write a source for it "
            "(docs/howto/sources.md)."
        )


def _value(value: Any) -> Any:
    return as_array(value) if is_tensor(value) else value
