"""Samplers: what gives the indices of a pass, and what it gave, looked at before anybody reads by it.

A sampler is asked in every worker that reads, so it must be a function of epoch and seed alone: two workers that were
given other sequences would read elements twice, or not at all, without a word.  Samplers of torch become such functions
with a generator of their own for each pass.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import PlanError, describe_error, is_interrupt
from pecan_ray.sampling.random_keys import generator, sampler_key

DrawIndices: TypeAlias = Callable[[int, int], Any]
"""Returns the indices of an epoch under a seed; of a batch sampler, a sequence of indices for each batch."""
DrawnIndices: TypeAlias = npt.NDArray[np.integer[Any]]
MOST_IN_FOUR_BYTES = 1 << 31
"""Number of indices that fit into 32 bits with a sign."""
MOST_PASSES, MOST_YIELDED = 20, 10_000_000
"""A pass may yield each element so many times, and so many indices more: what yields on has no end.  Ten million
indices are eight times those of ImageNet, and take a second and 400 MB."""
INDICES_AS_LARGE = 16
"""The array of a batch takes as much memory as so many indices, beside its own."""


@dataclass(frozen=True)
class Permutation:
    """Every index once, in a random order."""

    count: int

    def __call__(self, epoch: int, seed: int) -> DrawnIndices:
        """Return the order of a pass, in four bytes for each index where they suffice."""
        order: DrawnIndices = np.arange(self.count).astype(np.int32 if self.count <= MOST_IN_FOUR_BYTES else np.int64)
        generator(sampler_key(seed, epoch)).shuffle(order)
        return order


@dataclass(frozen=True, eq=False)
class Weighted:
    """Indices drawn with replacement in proportion to their weights."""

    weights: npt.NDArray[np.float64]
    draws: int

    def __call__(self, epoch: int, seed: int) -> DrawnIndices:
        """Return the indices of a pass."""
        bounds = np.cumsum(self.weights)
        places = generator(sampler_key(seed, epoch)).random(self.draws) * bounds[-1]
        # Rounding may put a place on the last bound: the last index that has a weight takes it.
        last = int(np.flatnonzero(self.weights)[-1])
        indices: DrawnIndices = np.searchsorted(bounds, places, side="right").clip(max=last)
        return indices


class OfObject:
    """An object that is iterated over, such as one of torch's samplers: `set_epoch` is called, if it has that.

    So are those that it holds as `sampler`, whose indices it puts together.
    """

    def __init__(self, sampler: Any) -> None:
        self._seeds: list[int] = []
        """Of the generators that the user has given it: these do not travel to other processes."""
        self._sampler = self._make_copy(sampler, self._note)

    def __call__(self, epoch: int, seed: int) -> Any:
        """Return what yields the indices of an epoch."""
        key = sampler_key(sum(self._seeds, seed), epoch)

        def new_generator(given: Any) -> Any:
            torch = sys.modules.get("torch")
            return None if torch is None else torch.Generator().manual_seed(key[0] >> 1)

        return self._make_copy(self._sampler, new_generator, epoch)

    def _note(self, given: Any) -> None:
        if given is not None:
            self._seeds.append(int(given.initial_seed()))

    def _make_copy(self, sampler: Any, make: Callable[[Any], Any], epoch: int | None = None) -> Any:
        """Return a copy with other generators of torch's, in an epoch if one is given."""
        # It gives one rank's share alone, which the job would take for all of a pass.
        if getattr(sampler, "num_replicas", 1) > 1:
            raise PlanError(
                f"{type(sampler).__name__} deals indices to ranks, which the job does: give the sampler behind it, or "
                "shuffle=True."
            )
        held = getattr(sampler, "__dict__", {})
        # Nothing in it draws for itself or holds another sampler.
        if not (held.keys() & {"generator", "sampler"}) and not hasattr(sampler, "set_epoch"):
            return sampler
        sampler = copy.copy(sampler)
        given = held.get("generator")
        if "generator" in held and (given is None or hasattr(given, "initial_seed")):
            sampler.generator = make(given)
        if "sampler" in held:
            sampler.sampler = self._make_copy(held["sampler"], make, epoch)
        if epoch is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return sampler


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a sampler has given for a pass: an index at each place, or the indices of a batch."""

    indices: DrawnIndices
    bounds: npt.NDArray[np.int64] | None = None
    """Where the batches begin, and where the last one ends; None: there are no batches."""

    def __len__(self) -> int:
        return len(self.indices) if self.bounds is None else len(self.bounds) - 1

    def batches(self, start: int, stop: int) -> Iterator[DrawnIndices]:
        """Yield the indices of some batches."""
        assert self.bounds is not None
        for place in range(start, stop):
            yield self.indices[self.bounds[place] : self.bounds[place + 1]]


@dataclass(frozen=True, eq=False)
class Sampler:
    """A function of epoch and seed."""

    draw: DrawIndices
    name: str
    """The argument that it was given as, for messages."""
    in_batches: bool = False

    def drawn(self, epoch: int, seed: int, count: int) -> Drawn:
        """Return the indices of a pass, all below `count`; raises PlanError for anything else."""
        try:
            given = self.draw(epoch, seed)
            most = MOST_PASSES * count + MOST_YIELDED
            arrays = [self._checked(one, epoch, count, most) for one in list(self._batches(given, epoch, most))]
        except PlanError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise PlanError(f"{self.name} failed in epoch {epoch}: {describe_error(error)}") from error
        if not self.in_batches:
            return Drawn(arrays[0])
        lengths = [len(one) for one in arrays]
        if 0 in lengths:
            raise PlanError(f"{self.name}: batch {lengths.index(0)} of epoch {epoch} is empty: leave such batches out.")
        return Drawn(np.concatenate(arrays) if arrays else np.empty(0, np.int64), np.cumsum([0, *lengths]))

    def _batches(self, given: Any, epoch: int, most: int) -> Iterator[Any]:
        """Yield what is given for each batch, and refuse what yields batches without end."""
        if not self.in_batches:
            yield given
            return
        yielded = 0
        for batch in given:
            yield batch
            yielded += INDICES_AS_LARGE + (len(batch) if isinstance(batch, Sized) else 0)
            # What has a length has an end.
            if yielded > most and not isinstance(given, (Sequence, np.ndarray)):
                self._reject_endless(epoch, most)

    def _reject_endless(self, epoch: int, most: int) -> NoReturn:
        raise PlanError(
            f"{self.name} yields more than {most:,} indices for epoch {epoch}, and goes on: a sampler gives those of "
            "one epoch, and ends. More of them can be returned as an array. For a run without end write .repeat(), or "
            "iter_batches(epochs=None)."
        )

    def _as_list(self, given: Any, epoch: int, most: int) -> list[Any]:
        if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
            where = "in the place of the indices of a batch" if self.in_batches else "and no indices"
            raise TypeError(f"it returned {type(given).__name__}, {where}")
        if isinstance(given, Sequence):
            return list(given)
        listed = list(itertools.islice(given, most + 1))
        if len(listed) > most:
            self._reject_endless(epoch, most)
        return listed

    def _checked(self, given: Any, epoch: int, count: int, most: int) -> DrawnIndices:
        as_it_is = hasattr(given, "__array__") or isinstance(given, list)
        indices = np.asarray(given if as_it_is else self._as_list(given, epoch, most))
        if not indices.size:
            return np.empty(0, np.int64)
        message = f"{self.name} gave for epoch {epoch}"
        if indices.dtype.kind not in "iu" or indices.ndim != 1:
            what = "a sequence of indices for each batch" if self.in_batches else "indices"
            raise PlanError(
                f"{message} {indices.dtype}{list(indices.shape)}, but it must give {what}: whole numbers, one behind "
                "the other. A mask becomes indices by numpy.flatnonzero."
            )
        low, high = indices.min(), indices.max()
        if low < 0 or high >= count:
            raise PlanError(
                f"{message} the index {low if low < 0 else high}, but there are {count} elements, from 0 on."
            )
        return indices


def sampler_of(what: str, given: Any, *, in_batches: bool = False) -> Sampler:
    """Return a user's sampler; raises PlanError for what is none.  `what` names the argument."""
    if isinstance(given, Iterator):
        kind = type(given).__name__
        raise PlanError(f"{what}: a {kind} can be gone through only once: give a function that makes it.")
    if isinstance(given, Iterable):
        return Sampler(OfObject(given), what, in_batches)
    if not callable(given):
        raise PlanError(
            f"{what} needs a function of epoch and seed that returns indices, or a sampler of torch, but got "
            f"{type(given).__name__}."
        )
    return Sampler(given, what, in_batches)


def weighted(what: str, given: Any, count: int, *, draws: int | None = None, item_name: str = "element") -> Sampler:
    """Return what draws by weights, so many or as many as there are.

    Raises PlanError unless there is a weight for each element (or other `item_name`), and some are positive.
    """
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{what} needs a number for each {item_name}: {error}.") from error
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise PlanError(
            f"{what} needs a number >= 0 for each of the {count} {item_name}s, of which one is positive, but got "
            f"{_wrong_of(weights, count)}."
        )
    return Sampler(
        Weighted(weights / weights.max(), count if draws is None else draws), what
    )  # so that no sum is too large


def _wrong_of(weights: npt.NDArray[np.float64], count: int) -> str:
    """Say what is wrong with weights."""
    if weights.shape != (count,):
        return f"{weights.dtype}{list(weights.shape)}"
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    return f"{weights[wrong[0]]} at place {wrong[0]}" if len(wrong) else "none that is positive"
