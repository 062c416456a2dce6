"""Where operators are tried out on single elements, in this process: what the profile needs from an engine."""

from __future__ import annotations

import contextlib
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.op_samples import reading_seconds
from pecan_ray.engines.timers import ProcessTimer, ThreadTimer
from pecan_ray.errors import ColumnError, ElementError, strip_credentials
from pecan_ray.plan.splits import Element, Split

Token: TypeAlias = Any
"""An element under way, as the engine keeps it: with what names it and seeds its random numbers."""
Timer: TypeAlias = ThreadTimer | ProcessTimer
SampleClock: TypeAlias = Callable[[], float]
OP_FAILURES = (ElementError, ColumnError)
"""How an operator fails on an element: its function raises, or a column is missing, which another operator creates."""


@dataclass(frozen=True)
class SampleLimits:
    """How large a sample may become."""

    # docs/decisions/autoorder.md: a sample of at most 300 elements.
    elements: int = 300
    deadline: float = float("inf")
    """Reading of the clock after which nothing more is begun."""
    bytes: int = 256 << 20
    """Bytes of the elements that are held."""
    soft_limit: float = float("inf")
    """Reading of the clock after which a few elements are enough."""
    hard_limit: float = float("inf")
    """Reading of the clock after which so many are enough as times can be measured on."""
    spread: bool = True
    """Draw them from the whole data; else they are the first ones."""
    later: bool = False
    """Draw other elements than a first look at the same data, as far as there are: those last that it draws first."""
    skip_bad: bool = False
    """Elements that operators cannot take are left out; else they end the sample."""


@dataclass
class Scans:
    """What was read of splits only to draw elements from them."""

    timer: Callable[[], Timer]
    """Makes what times it, as the reading of an element is timed."""
    apart_s: float = 0.0
    """Seconds that no job takes: other elements were read than those that were given on, each of which has a lease."""
    passed: int = 0
    """Elements that were read and not drawn."""
    full: bool = False
    """Whether the elements of a split were too large to hold as many as were wanted."""
    cut: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Splits that were not read to their ends, in words: how many elements of each were read, and why no more."""

    def __post_init__(self) -> None:
        self._between = self.timer()
        self._between.start()

    @contextlib.contextmanager
    def giving(self, seconds: float) -> Iterator[None]:
        """Give on an element that took so many seconds to read; what has passed since the last one is apart."""
        self.apart_s += self._between.stop() - seconds
        try:
            yield
        finally:
            self._between.start()

    def add(self, split: Split, read: int, taken: int, cut: str) -> None:
        """Note that so many elements of a split were read, and why they were not all of it."""
        self.passed += read - taken
        if cut:
            self.cut[strip_credentials(split.path) or f"split {split.index}"] = (read, cut)

    def notes(self) -> Iterator[str]:
        """Yield what a sample does not have, in words."""
        if self.cut:
            where, (read, why) = next(iter(self.cut.items()))
            others = f", and of the first ones of {len(self.cut) - 1} more splits" if len(self.cut) > 1 else ""
            yield f"the sample is of the first {read:,} elements of {where}{others}: {why}"


@dataclass(frozen=True)
class ObservedRun:
    """What a second, watched run of one operator on one element has shown."""

    outputs: list[Token]
    reads: frozenset[str]
    writes: frozenset[str]
    """Columns that it was given and that came out as another value, or were written into."""
    draws: bool = False
    """Whether it has drawn from a generator that others share: its own `rng` does not count."""
    comparable: bool = True
    """Whether another run on equal input should give equal results."""


@dataclass(frozen=True)
class Stage:
    """One or more operators, ready to be run on an element."""

    names: tuple[str, ...]
    run: Callable[[Token], list[Token]]
    """Returns what becomes of an element, which may be written into."""
    traced: Any = None
    """What an engine that traces operators knows of them."""


def run_through(stages: Sequence[Stage], token: Token) -> list[Token]:
    """Return what becomes of an element, which may be written into, behind several stages."""
    pieces = [token]
    for stage in stages:
        pieces = [made for piece in pieces for made in stage.run(piece)]
    return pieces


class OpRunner(ABC):
    """The operators of one stretch in one engine."""

    def __init__(self, elements: Generator[Token], scans: Scans) -> None:
        """`elements`: those that enter the stretch; `scans`: what else is read for them."""
        self._elements, self.scans = elements, scans
        self._reading: list[float] = []
        """Seconds for each of them."""

    def inputs(self) -> Iterator[Token]:
        """Yield the elements that enter the stretch."""
        timer = self.timer()
        while True:
            apart_s = self.scans.apart_s
            timer.start()
            token = next(self._elements, None)
            # What was only read to draw from is no reading of a job's.
            self._reading.append(max(timer.stop() - (self.scans.apart_s - apart_s), 0.0))
            if token is None:
                return
            self._entered(token)
            yield token

    def close(self) -> None:
        """End reading."""
        self._elements.close()

    @abstractmethod
    def _entered(self, token: Token) -> None:
        """Take note of an element that has entered."""

    @property
    def reading_s(self) -> float | None:
        """Return the seconds for one element that enters the stretch: reading and all operators before; None: none."""
        return reading_seconds(self._reading, 0, 0)

    @abstractmethod
    def stages(self, order: Sequence[str], *, fused: bool = False, decoders: Collection[str] = ()) -> list[Stage]:
        """Return the operators in an order: one in a stage, or `fused` as the engine runs them.

        `decoders`: those that take over what directly follows them, as far as they can.
        """

    @abstractmethod
    def fresh(self, token: Token) -> Token:
        """Return a copy that operators may write into."""

    @abstractmethod
    def columns(self, token: Token) -> dict[str, Any]:
        """Return the columns of an element as NumPy arrays, bytes, str and numbers."""

    @abstractmethod
    def replaced(self, token: Token, columns: Mapping[str, Any]) -> Token:
        """Return an element with other values in some columns."""

    @abstractmethod
    def observe_run(self, stage: Stage, token: Token, in_time: Callable[[], bool]) -> ObservedRun:
        """Run an operator on a copy of an element and watch it: several times, as long as there is time."""

    def replaced_columns(self, before: Element, outputs: Sequence[Element]) -> set[str]:
        """Return the columns in whose place outputs have other values, beyond what `observe_run` knows at once."""
        return set()

    def timer(self) -> Timer:
        """Return what times this engine's operators."""
        return self.scans.timer()


class GlobalRandomState:
    """The states of the generators that functions share: those of `random`, NumPy and torch (if it is in use)."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state(legacy=False)
        # Not imported for this: whoever draws from it has done so.
        torch = sys.modules.get("torch")
        self._torch: Any = torch.get_rng_state() if torch is not None else None

    def restore(self) -> None:
        """Put the generators back into these states."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch = sys.modules.get("torch")
        # A function may have imported it since: then there is no state to put back.
        if torch is not None and self._torch is not None:
            torch.set_rng_state(self._torch)

    @staticmethod
    def seed(number: int) -> None:
        """Put the generators into states that belong to a number."""
        random.seed(number)
        np.random.seed(number)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(number)

    def moved(self) -> bool:
        """Tell whether anybody has drawn a number since."""
        now = GlobalRandomState()
        if self._python != now._python or not equal(self._numpy, now._numpy):
            return True
        return self._torch is not None and not bool((self._torch == now._torch).all())
