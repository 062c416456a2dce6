"""A source read by indices that a sampler draws anew in each pass.

What is dealt out are the places of the sampler's sequence: splits are ranges of them, the same in each pass, so that
exactly once, states and order hold over places as they do over elements.  Which index lies at a place the worker finds
when it reads: it draws the sequence of the pass, which is the same in each worker.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from pecan_ray.errors import PlanError, SourceError
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.operators import ELEMENTS
from pecan_ray.plan.option_types import of_kind
from pecan_ray.plan.splits import Element, IndependentElements, Lease, Source, Split, seeks
from pecan_ray.sampling.random_keys import sampler_key
from pecan_ray.sources.memory import row_ranges
from pecan_ray.sources.samplers import Drawn, Permutation, Sampler, sampler_of, weighted

if TYPE_CHECKING:
    from typing_extensions import Self

CAN_SEEK = "Arrays, Items, ImageFolder, AudioFolder, Files, HuggingFace, Lance, LitData or TokenFiles"
PASSES_KEPT = 2
"""Sequences that a process keeps: of the pass that ends, and of the one that begins."""


@runtime_checkable
class Indexed(Source, Protocol):
    """A source of which any elements can be read by their numbers."""

    @property
    def split_rows(self) -> int | None:
        """Elements in a split; None: so that there are at least 16 splits."""
        ...

    def rows_at(self, indices: Iterable[int]) -> Iterator[Element]:
        """Yield the elements with these numbers."""
        ...


@runtime_checkable
class IndexedPastErrors(Indexed, Protocol):
    """One that can read on behind an element that is broken."""

    def rows_past_errors(self, indices: Iterable[int]) -> Iterator[Element | SourceError]:
        """Yield what `rows_at` does, and in the place of an element that cannot be read its error."""
        ...


@runtime_checkable
class SupportsByIndex(Source, Protocol):
    """A source that can be read by numbers once it is listed, or its version is fixed."""

    def by_index(self) -> Indexed:
        """Return it as it is now; raises PlanError where that cannot be."""
        ...


def indexed(what: str, given: object) -> Indexed:
    """Return a source by the numbers of its elements; raises PlanError for one that cannot be read so."""
    source = given.by_index() if isinstance(given, SupportsByIndex) else given
    if not isinstance(source, Indexed):
        raise PlanError(
            f"{what} reads by indices, which {type(source).__name__} cannot: it needs {CAN_SEEK}. For other sources "
            "write .shuffle(buffer) behind them."
        )
    return source


class SequencesKept:
    """The last sequences that were drawn in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the sequences, and lets one thread draw while others wait for what it draws."""
        self._drawn: OrderedDict[tuple[int, int], Drawn] = OrderedDict()

    def __reduce__(self) -> tuple[type[SequencesKept], tuple[()]]:
        # Empty: each process draws by itself, and a lock cannot be pickled.
        return SequencesKept, ()

    def drawn(self, sampler: Sampler, epoch: int, seed: int, count: int) -> Drawn:
        """Return what a sampler gives for a pass."""
        with self._lock:
            # Taken out and put back, so that what was used last goes last.
            found = self._drawn.pop((epoch, seed), None) or sampler.drawn(epoch, seed, count)
            self._drawn[epoch, seed] = found
            if len(self._drawn) > PASSES_KEPT:
                self._drawn.popitem(last=False)
        return found


P_co = TypeVar("P_co", bound=IndependentElements, covariant=True)
"""What is read in one pass."""


@dataclass(frozen=True, eq=False, init=False)
class DrawnSource(ABC, Generic[P_co]):
    """A source of which a sampler draws what is read, anew in each pass."""

    sampler: Sampler = field(repr=False)
    seed: int
    _kept: SequencesKept = field(repr=False)

    @abstractmethod
    def _pass(self, epoch: int, seed: int) -> P_co:
        """Return what is read in a pass."""

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the elements of a split in epoch 0 under the seed 0, as a look at the data shows it."""
        return self._pass(0, self.seed).read(split, start)

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield what `read` does, and errors in the place of what cannot be read."""
        return self._pass(0, self.seed).read_past_errors(split, start)

    def with_seed(self, seed: int) -> Self:
        """Return the source as a job of a seed reads it."""
        seeded = copy.copy(self)
        object.__setattr__(seeded, "seed", seed)
        return seeded

    def of_lease(self, lease: Lease) -> P_co:
        """Return what is read in the pass of a lease; raises PlanError where the sampler gives too many, or too few."""
        return self._pass(lease.epoch, seed_of_pass(self.seed, lease))


@dataclass(frozen=True)
class SamplerArguments:
    """The arguments that ask for a sampler, as a user gave them."""

    sampler: Any
    batch_sampler: Any
    weights: Any
    shuffle: bool

    def __bool__(self) -> bool:
        return self.shuffle is not False or any(
            one is not None for one in (self.sampler, self.batch_sampler, self.weights)
        )

    def only(self, what: str) -> tuple[str, Any]:
        """Return the one that is given, with its name; raises PlanError for several and for none."""
        of_kind(f"{what}(shuffle=...)", self.shuffle, bool)
        given = {**vars(self), "shuffle": self.shuffle or None}
        chosen = [(name, one) for name, one in given.items() if one is not None]
        if len(chosen) != 1:
            raise PlanError(
                f"{what} needs one of sampler, batch_sampler, weights and shuffle=True, but got "
                f"{' and '.join(name for name, _ in chosen) or 'none'}."
            )
        return chosen[0]


@dataclass(frozen=True, eq=False, init=False)
class ByIndex(DrawnSource["SampledPass"]):
    """The elements of another source by the indices that a sampler draws, in another sequence in each pass."""

    given: Source
    """As it was written."""
    source: Indexed
    """The same elements by their numbers."""
    places: int
    """In a pass."""
    varies: bool
    """Whether passes have other numbers of them."""
    stacks: bool
    """Whether a pipeline stacks the elements of each batch, as nobody else does."""
    rows_by_range: ClassVar[Literal[True]] = True

    def __init__(
        self,
        source: Source,
        *,
        sampler: Any = None,
        batch_sampler: Any = None,
        weights: Any = None,
        shuffle: bool = False,
    ) -> None:
        """Give one of these; raises PlanError for several, and for what is no sampler.

        Args:
            source: of which any element can be read by its number: `Arrays`, `Items`, `ImageFolder`, `AudioFolder`,
                `Files`, tables of `HuggingFace`, `Lance` and `LitData`. Files are listed at once.
            sampler: a function of epoch and seed that returns indices: any number of them, with or without repetition;
                the same ones whenever it is called with the same numbers. Or a sampler of torch.
            batch_sampler: the same with a sequence of indices for each batch, whose elements are stacked.
            weights: one for each element, which are drawn in proportion to them, with replacement.
            shuffle: each element once, in a random order.
        """
        asked = SamplerArguments(sampler, batch_sampler, weights, shuffle)
        self._sample("ByIndex", source, asked, batch_sampler is not None)

    @classmethod
    def for_caller(cls, what: str, source: Source, asked: SamplerArguments, *, stacks: bool = False) -> ByIndex:
        """Return what the constructor makes; `what` is named in messages in its place."""
        made = cls.__new__(cls)
        made._sample(what, source, asked, stacks)
        return made

    def _sample(self, what: str, given: Source, asked: SamplerArguments, stacks: bool) -> None:
        name, one = asked.only(what)
        source = indexed(f"{what}({name}=...)", given)
        count = source.num_elements()
        assert count is not None
        named = f"{what}({name}=...)"
        if name in ("shuffle", "weights"):
            sampler = Sampler(Permutation(count), named) if name == "shuffle" else weighted(named, one, count)
            places, varies = count, False
        else:
            sampler = sampler_of(named, one, in_batches=name == "batch_sampler")
            places, varies = _pass_length(sampler, count)
        made = {"given": given, "source": source, "sampler": sampler, "places": places, "varies": varies}
        # The class is frozen, and two constructors fill it.
        for field_name, value in {**made, "stacks": stacks, "seed": 0, "_kept": SequencesKept()}.items():
            object.__setattr__(self, field_name, value)

    @property
    def counts_splits(self) -> bool:
        """Return whether splits tell how many places they hold, as they do where that is the same in each pass."""
        return not self.varies

    def splits(self) -> Iterator[Split]:
        """Yield ranges of places; where passes have other numbers of them, shares of each pass."""
        # A place is a whole batch then, and the source's number of rows is one of elements.
        rows = None if self.sampler.in_batches else self.source.split_rows
        for split in row_ranges(self.places, rows):
            # Of a share only its number counts, from which `_range` finds the places in each pass.
            yield Split(split.index, start=split.index, stop=split.index + 1) if self.varies else split

    def _pass(self, epoch: int, seed: int) -> SampledPass:
        count = self.source.num_elements()
        assert count is not None
        # Drawn by who reads: every state and journal of a job would hold the indices otherwise
        # (docs/decisions/sources.md#141-samplers-and-places).
        drawn = self._kept.drawn(self.sampler, epoch, seed, count)
        if len(drawn) != self.places and not self.varies:
            raise PlanError(
                f"{self.sampler.name} gave {len(drawn)} indices for epoch {epoch}, and {self.places} for the first "
                "ones: give as many in each epoch, or other numbers in epochs 0 and 1 already, so that no length is "
                "promised."
            )
        return SampledPass(self, drawn)

    @property
    def seeks(self) -> bool:
        """Return whether each element is read alone, as in the source."""
        return seeks(self.given)

    def num_elements(self) -> int | None:
        """Return the places of a pass; None where that differs."""
        return None if self.varies else self.places

    def identity(self) -> str:
        """Return that of the source, and what the sampler does."""
        # A state of another sampler names places of other elements.
        digest = hashlib.sha256(canonical_text(self.sampler).encode()).hexdigest()
        return f"ByIndex:{self.source.identity()}:{digest}"


def seed_of_pass(seed: int, lease: Lease) -> int:
    """Return what a sampler is given as its seed in the pass of a lease: each of a `repeat` is one of its own."""
    # The first pass has the seed itself, so that it is the same with a `repeat` and without one.
    return sampler_key(seed, 0, lease.pass_index)[0] >> 1 if lease.pass_index else seed


@dataclass(frozen=True)
class SampledPass:
    """What is read in one pass."""

    whole: ByIndex
    drawn: Drawn

    def splits(self) -> Iterator[Split]:
        """Yield those of each pass."""
        return self.whole.splits()

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the elements of a range of places, of which only those that are asked for are read."""
        first, stop = self._range(split)
        source, drawn = self.whole.source, self.drawn
        if drawn.bounds is None:
            yield from source.rows_at(drawn.indices[first + start : stop])
            return
        for indices in drawn.batches(first + start, stop):
            yield {ELEMENTS: list(source.rows_at(indices))}

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield what `read` does, and errors in the place of elements, or of batches, that cannot be read."""
        source, drawn = self.whole.source, self.drawn
        if not isinstance(source, IndexedPastErrors):
            yield from self.read(split, start)
            return
        first, stop = self._range(split)
        if drawn.bounds is None:
            yield from source.rows_past_errors(drawn.indices[first + start : stop])
            return
        for indices in drawn.batches(first + start, stop):
            rows = list(source.rows_past_errors(indices))
            broken = [row for row in rows if isinstance(row, SourceError)]
            # A batch is what was drawn: without one of its elements it would be another one.
            yield broken[0] if broken else {ELEMENTS: rows}

    def _range(self, split: Split) -> tuple[int, int]:
        if not self.whole.varies:
            return split.start, self.whole.places if split.stop is None else split.stop
        shares = sum(1 for _ in self.whole.splits())
        first, stop = (len(self.drawn) * number // shares for number in (split.index, split.index + 1))
        return first, stop

    def num_elements(self) -> int:
        """Return the places of this pass."""
        return len(self.drawn)

    def identity(self) -> str:
        """Return that of all passes."""
        return self.whole.identity()


def _pass_length(sampler: Sampler, count: int) -> tuple[int, bool]:
    """Return how many places a pass has, and whether passes differ in it.

    Raises PlanError for a sampler that gives other indices when it is asked again: workers would not agree.
    """
    # Epoch 0 twice: each worker asks for itself. Epoch 1: its length may be another one.
    first, again, second = (sampler.drawn(epoch, 0, count) for epoch in (0, 0, 1))
    if not _same(first, again):
        raise PlanError(
            f"{sampler.name} gave other indices for epoch 0 when it was asked again: each worker asks it, so it must "
            "depend on epoch and seed alone. Let it draw from numpy.random.default_rng((seed, epoch)), and keep "
            "nothing between calls."
        )
    return len(first), len(first) != len(second)


def _same(one: Drawn, other: Drawn) -> bool:
    if one.bounds is not None and other.bounds is not None and not np.array_equal(one.bounds, other.bounds):
        return False
    return np.array_equal(one.indices, other.indices)
