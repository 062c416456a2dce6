"""What a user wrote, as frozen values: operators, joins and the plan they form.

A `Plan` is a head (a source, or a join of other plans) followed by a chain of operators.  It only describes;
engines make it run.
"""

from __future__ import annotations

import inspect
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from pecan_ray.errors import PlanError
from pecan_ray.plan.own_attributes import own_attribute
from pecan_ray.plan.splits import Source
from pecan_ray.plan.weight_schedule import WeightSchedule

Function: TypeAlias = Callable[..., Any]

ELEMENTS = "elements"
"""Name of what `Gather` yields: a list of elements."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One step of a pipeline; `name` is unique within the plan and names it in errors, metrics and seeds."""

    name: str

    @property
    def excluded_fields(self) -> frozenset[str]:
        """Names of fields that fingerprints leave out."""
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class ElementOp(Op):
    """A step that runs a user's function on one element (or, after `batch`, on one batch)."""

    fn: Function
    on: str | None = None
    """Column whose value the function takes; None: the whole element."""
    keep_position: bool = False
    """Whether AutoOrder must leave it where it is."""
    random: bool | None = None
    """Whether equal inputs give different outputs; None: found out from samples."""
    processes: bool = False
    """Run it in a process pool, for code that holds the GIL (python engine only)."""


@dataclass(frozen=True, kw_only=True)
class Map(ElementOp):
    """One element in, one out."""


@dataclass(frozen=True, kw_only=True)
class Filter(ElementOp):
    """Keeps the elements for which the function is true."""


def _keep(element: Any) -> bool:
    """Keep an element: what a part leaves out is told by its place, and not by its value."""
    return True


@dataclass(frozen=True, kw_only=True)
class Subset(Filter):
    """Keeps the elements of a source whose places lie in an interval (`pecan_ray.sampling.subsets`)."""

    # It decides by the place in the source, so it stays there, and its function is asked nothing.
    fn: Function = _keep
    keep_position: bool = True
    random: bool | None = False
    low: float
    high: float
    seed: int
    level: int = 0
    """How many such operators stand before it: each of them divides the elements on its own."""


@dataclass(frozen=True, kw_only=True)
class FlatMap(ElementOp):
    """One element in, an iterable of elements out."""


@dataclass(frozen=True, kw_only=True)
class BatchingOp(Op, ABC):
    """Makes batches of elements; what does not fill one at the end is a smaller batch, unless it is dropped."""

    drop_remainder: bool = False

    @property
    @abstractmethod
    def full_sizes(self) -> tuple[int, ...]:
        """Elements in a full batch: one number, or several that occur; empty where the elements decide it."""

    @property
    def most_rows(self) -> int:
        """Elements in its largest batches; 1 where that is not known."""
        return max(self.full_sizes, default=1)


@dataclass(frozen=True, kw_only=True)
class FixedSizeBatchingOp(BatchingOp):
    """Makes batches of `size` elements."""

    size: int

    @property
    def full_sizes(self) -> tuple[int, ...]:
        """Elements in a batch."""
        return (self.size,)


@dataclass(frozen=True, kw_only=True)
class Batch(FixedSizeBatchingOp):
    """Stacks `size` elements; columns get a leading dimension."""


@dataclass(frozen=True, kw_only=True)
class BatchInRows(Batch):
    """A `Batch` of which AutoOrder has found that all maps before it may run on many elements at a time."""

    maps: tuple[str, ...]
    """Their names, from the source on."""
    exactly: bool = False
    """Whether only arithmetic may run so that is equal to the last bit by its definition."""


@dataclass(frozen=True, kw_only=True)
class Gather(FixedSizeBatchingOp):
    """Takes `size` elements together as a list, which the `Collate` behind it makes a batch of."""


@dataclass(frozen=True, kw_only=True)
class Collate(Map):
    """Makes a batch of a list of elements: what its function returns is the batch, whatever its columns hold."""

    on: str | None = ELEMENTS
    keep_position: bool = True


@dataclass(frozen=True, kw_only=True)
class PaddedBatch(FixedSizeBatchingOp):
    """Stacks `size` elements of unequal shapes, padded to the longest (or to `shapes`)."""

    padding: Any = 0
    """Value to pad with, or one per column."""
    shapes: Mapping[str, tuple[int | None, ...]] | None = None
    """Fixed padded shape per column; None in a shape: the longest of the batch."""
    same_shape: tuple[str, ...] = ()
    """Columns that are padded to one shape."""

    @property
    def excluded_fields(self) -> frozenset[str]:
        """Leave out of fingerprints what earlier versions did not have."""
        return frozenset() if self.same_shape else frozenset({"same_shape"})


@dataclass(frozen=True, kw_only=True)
class Unbatch(Op):
    """Splits batches into elements again."""

    same_rows: bool = False
    """Whether functions on these batches keep their rows: as many, in the same order, each made of its element."""


@dataclass(frozen=True, kw_only=True)
class Pack(Op):
    """Puts the token sequences of `among` elements at a time together into rows of `length` tokens."""

    length: int
    on: str
    among: int
    padding: int
    along: Mapping[str, Any] = field(default_factory=dict)
    """Other columns that have a value for each token, and what stands for padding in each."""
    checks_others: bool = False
    """Other columns with a number for each token are refused: the user has said nothing of them."""

    @property
    def excluded_fields(self) -> frozenset[str]:
        """Leave out of fingerprints what earlier versions did not have, and what changes no row."""
        return frozenset({"checks_others"} if self.along else {"along", "checks_others"})


# Of ten shards with one class each, a batch of 100 held 1.9 classes when it was one split
# (docs/decisions/randomness-and-passes.md#148-a-shuffle-reads-several-splits).
SPLITS_OF_A_SHUFFLE = 10
"""Splits that a shuffle draws from at a time: files are often sorted, and ten of them hold most classes of many sets.
`datasets` fills its buffer from as many."""


@dataclass(frozen=True, kw_only=True)
class Shuffle(Op):
    """Draws at random from a buffer of elements, of several splits; these are shuffled too."""

    buffer: int
    seed: int | None = None
    """The user's own; None: the job's, and the name, decide the draws."""
    reshuffle: bool = True
    """Whether each pass has another order."""
    splits: int = SPLITS_OF_A_SHUFFLE
    """Splits that are read at a time, as far as the buffer and memory allow."""

    @property
    def excluded_fields(self) -> frozenset[str]:
        """Leave out of fingerprints what earlier versions did not have, where all is as it was for them."""
        same = {"reshuffle": self.seed is None and self.reshuffle, "splits": self.splits == 1}
        return frozenset(name for name, as_before in same.items() if as_before)


@dataclass(frozen=True, kw_only=True)
class Repeat(Op):
    """Passes over the data `count` times within one epoch; None: for ever."""

    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Take(Op):
    """Keeps the first `count`."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Skip(Op):
    """Leaves out the first `count`."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Prefetch(Op):
    """Keeps `count` elements, or batches, ready ahead of what takes them, in each worker."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Autocache(Op):
    """Marks where elements may be kept, for later epochs and for other jobs (Cachew §4.4)."""

    version: str = ""
    """Stands for what cannot be seen of the functions before: with another one nothing is found that was kept."""
    refresh: float = 0.0
    """Share of the splits that are computed again in each epoch, and kept anew."""
    key: str = ""
    """What the entries kept here are named by, beside their splits; empty: nothing is kept here."""
    remote: bool = False
    """Whether they are kept for other machines, too, where `Cache(remote=...)` says."""

    def __post_init__(self) -> None:
        # By its type: True is an int too.
        if type(self.refresh) not in (int, float) or not 0 <= self.refresh < 1:
            raise PlanError(f"autocache(refresh=...) must be a share from 0 to less than 1, but got {self.refresh!r}.")


def is_idle(op: Op) -> bool:
    """Tell whether an operator is a point at which nothing is kept."""
    return isinstance(op, Autocache) and not op.key


def acting_ops(ops: Iterable[Op]) -> list[Op]:
    """Return the operators that do something to elements.

    `prefetch` only keeps them ready, `repeat` hands out the splits again, and some points keep nothing.
    """
    return [op for op in ops if not (isinstance(op, (Prefetch, Repeat)) or is_idle(op))]


JoinKind: TypeAlias = Literal["zip", "concat", "mix"]
MixStop: TypeAlias = Literal["first", "all"]


@dataclass(frozen=True, kw_only=True)
class Join:
    """Several plans made one."""

    kind: JoinKind
    inputs: tuple[Plan, ...]
    weights: tuple[float, ...] = ()
    """For mix: how often each input is drawn from, in proportion."""
    stop: MixStop = "all"
    """For mix: end with the first input that runs out, or when all have."""
    schedule: WeightSchedule | None = None
    """For mix: weights that change; `weights` are the first ones."""
    in_step: bool = False
    """For zip: each worker reads the same rows of all inputs (`pecan_ray.plan.in_step`)."""

    @property
    def counts_draws(self) -> bool:
        """Return whether what is drawn depends on how many elements were drawn before."""
        return self.schedule is not None and self.schedule.by == "elements"

    @property
    def leaves_out(self) -> bool:
        """Return whether nothing is drawn from some input, at least for a while."""
        weights = [self.weights] if self.schedule is None else [one for _, one in self.schedule.steps]
        return any(0 in one for one in weights)

    def weights_at(self, epoch: int, drawn: int = 0) -> tuple[float, ...]:
        """Return the weights by which the next element of an epoch is drawn."""
        if self.schedule is None:
            return self.weights
        return self.schedule.at(drawn if self.counts_draws else epoch)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A source or join, and the chain of operators behind it."""

    head: Source | Join
    ops: tuple[Op, ...] = field(default=())
    lengths: tuple[tuple[int, int], ...] = ()
    """What the user says of lengths: (behind so many operators, so many elements or batches come in an epoch)."""

    def then(self, op: Op) -> Plan:
        """Return the plan with one more operator at its end."""
        return replace(self, ops=(*self.ops, op))

    def with_length(self, count: int) -> Plan:
        """Return the plan with what the user says of how much comes out of it in an epoch."""
        return replace(self, lengths=(*self.lengths, (len(self.ops), count)))

    def sources(self) -> Iterator[Source]:
        """Yield the sources from left to right: their places are the branch numbers of leases."""
        if isinstance(self.head, Join):
            for plan in self.head.inputs:
                yield from plan.sources()
        else:
            yield self.head

    def split_sources(self) -> list[Source]:
        """Return the sources whose splits a job deals out: of those that are read in step the first one."""
        sources = list(self.sources())
        return sources[:1] if self.is_in_step else sources

    @property
    def is_in_step(self) -> bool:
        """Return whether it begins with a zip whose inputs are read in step."""
        return isinstance(self.head, Join) and self.head.in_step

    def all_ops(self) -> Iterator[Op]:
        """Yield every operator, inputs of joins first."""
        if isinstance(self.head, Join):
            for plan in self.head.inputs:
                yield from plan.all_ops()
        yield from self.ops


def wants_rng(fn: Function) -> bool:
    """Tell whether a function is given a generator of random numbers: it has a parameter named `rng`."""
    return _takes(fn, "rng")


def wants_epoch(fn: Function) -> bool:
    """Tell whether a function is given the number of the epoch: it has a parameter named `epoch`."""
    return _takes(fn, "epoch")


def is_pass_dependent(op: ElementOp) -> bool:
    """Tell whether it is known that equal elements give different results in another pass."""
    return bool(op.random) or wants_rng(op.fn) or wants_epoch(op.fn)


def _takes(fn: Function, name: str) -> bool:
    """Tell whether a function declares a parameter of a name and takes it from its caller.

    What `functools.partial` has given already stays, and a wrapper that does not take it has one of its own.
    """
    if isinstance(fn, partial) and name in fn.keywords:
        return False
    python = isinstance(fn, (types.FunctionType, types.MethodType, partial, type))
    if not python and not any(own_attribute(fn, one) for one in ("__signature__", "__wrapped__")):
        fn = type(fn).__call__  # else `inspect` asks the `__getattr__` of the user's object
    try:
        declared = inspect.signature(fn).parameters
        taken = inspect.signature(fn, follow_wrapped=False).parameters
    except Exception:  # builtins have no signature, and `__getattr__` of an object in a partial may raise anything
        return isinstance(fn, partial) and _takes(fn.func, name)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    return name in declared and (name in taken or takes_any)


def method_name(op: Op) -> str:
    """Return the name of the pipeline's method that makes such an operator."""
    # Written as `batch(n, collate=fn)`, of which it is the first half.
    if isinstance(op, Gather):
        return "batch"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()


def as_written(op: Op) -> str:
    """Return an operator as a user might write it: its method, its own name, and its numbers."""
    kind = method_name(op)
    given = {one.name: getattr(op, one.name) for one in fields(op) if getattr(op, one.name) != one.default}
    numbers = [str(value) for value in given.values() if isinstance(value, int) and not isinstance(value, bool)]
    named = [] if op.name == kind else [op.name]
    return f"{kind}({', '.join(named if isinstance(op, ElementOp) else named + numbers)})"
